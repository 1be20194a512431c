"""Noticing new work: the kernel tells of changes on a local disk; elsewhere the folder's time is looked at.

Polling costs one stat a second and one directory read per five seconds, so that hundreds of idle workers do
not trouble a metadata server; on a local file system inotify wakes the worker at once.
"""

from __future__ import annotations

import ctypes
import os

_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_IN_NONBLOCK = 0o4000
_IN_CLOEXEC = 0o2000000
STAT_EVERY_S = 1.0
LIST_EVERY_S = 5.0


class Watch:
    """`descriptor` is None when only polling is possible (or asked for)."""

    def __init__(self, folders: list[str], *, poll_only: bool = False) -> None:
        self.descriptor: int | None = None
        if not poll_only:
            self.descriptor = _inotify(folders)

    def drain(self) -> bool:
        """Forget pending events; True when there were any."""
        if self.descriptor is None:
            return False
        found = False
        while True:
            try:
                found = bool(os.read(self.descriptor, 1 << 16)) or found
            except BlockingIOError:
                return found

    def close(self) -> None:
        """Give the descriptor back."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def _inotify(folders: list[str]) -> int | None:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = int(libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))
    except (OSError, AttributeError):
        return None
    if descriptor < 0:
        return None  # the user's limit of watches is reached: polling does
    for folder in folders:
        if libc.inotify_add_watch(descriptor, os.fsencode(folder), _IN_MOVED_TO | _IN_CREATE) < 0:
            os.close(descriptor)
            return None
    return descriptor
