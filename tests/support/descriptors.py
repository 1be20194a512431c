"""What a process that died would have closed: descriptors that a test left open on files of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

# Journals and files aside. Python's own file objects are closed by Python, and never on such names.
_OURS = ("/batches/", "/workers/", "/requests/", "/tokens/", "/segments/", "/journal.jsonl", "/log")


def _open_now() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor of the listing itself
    return found


@contextmanager
def closing_leftovers() -> Iterator[None]:
    """Close what was opened meanwhile: lives that were never closed, writers that crashed."""
    before = _open_now()
    try:
        yield
    finally:
        for descriptor, path in _open_now().items():
            if before.get(descriptor) != path and any(part in path for part in _OURS):
                os.close(descriptor)
