"""The progress files of the slots: where a task may write, and what the worker takes from there.

A task of a moment costs no look-up of a name: on a shared file system thousands of them each second would be heard. So
its file may outlive it, and until somebody has looked, only a file that names its attempt is believed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.progress import MAX_FILE_BYTES, decode
from fleetcraft.store.files import Files

# Attempts that took this long are always asked for their last word, of shorter ones at most one in a while.
ASKED_FROM_S = 0.25
LOOK_EVERY_S = 1.0


@dataclass(slots=True)
class ProgressFiles:
    """One file per slot in the life's folder, there only from a task's first word to its end or soon after."""

    files: Files
    folder: str
    _unswept: set[int] = field(default_factory=set)  # slots on which an attempt ended and nobody looked since
    _looked_s: float = float("-inf")

    def path(self, slot: int) -> str:
        """Where the task on that slot writes."""
        return os.path.join(self.folder, f"progress-{slot}.json")

    def read(self, slot: int, task: str, attempt: int) -> dict[str, Any] | None:
        """What a running attempt says, None when it says nothing."""
        try:
            # One byte more tells a file that is too long from one that just fits.
            data = self.files.read_small(self.path(slot), MAX_FILE_BYTES + 1)
        except OSError:
            return None
        return decode(data, task=task, attempt=attempt, named=slot in self._unswept)

    def take(self, slot: int, task: str, attempt: int, *, wall_s: float, now_s: float) -> dict[str, Any] | None:
        """The last word of an attempt that ended after `wall_s`; the next one on the slot does not inherit it."""
        if wall_s < ASKED_FROM_S and now_s - self._looked_s < LOOK_EVERY_S:
            self._unswept.add(slot)
            return None
        self._looked_s = now_s
        path, named = self.path(slot), slot in self._unswept
        try:
            data = self.files.read_small(path, MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            self._unswept.discard(slot)
            return None
        except OSError:
            data = b""  # a pipe or a link: not read, but not left to the next attempt either
        with suppress(OSError):
            self.files.unlink(path)
            self._unswept.discard(slot)
        return decode(data, task=task, attempt=attempt, named=named)
