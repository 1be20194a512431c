"""What a process that died would have closed: descriptors that a test left open on files of its own."""

from __future__ import annotations

import gc
import io
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


def _leftovers(before: dict[int, str]) -> list[int]:
    return [
        descriptor
        for descriptor, path in _open_now().items()
        if before.get(descriptor) != path and any(part in path for part in _OURS)
    ]


@contextmanager
def closing_leftovers(*, with_python_files: bool = False) -> Iterator[None]:
    """Close what was opened meanwhile: lives that were never closed, writers that crashed.

    `with_python_files`: the code under test may leave file objects of Python in unreachable circles, a half read
    generator for one. Those are collected first. Closed behind their back, their number would be closed once more
    when they are collected, and by then it may be somebody else's.
    """
    before = _open_now()
    try:
        yield
    finally:
        found = _leftovers(before)
        if found and with_python_files:
            gc.collect()
            kept = {one.fileno() for one in gc.get_objects() if isinstance(one, io.FileIO) and not one.closed}
            found = [descriptor for descriptor in _leftovers(before) if descriptor not in kept]
        for descriptor in found:
            os.close(descriptor)
