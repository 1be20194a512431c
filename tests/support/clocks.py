"""A wall clock that a test sets forward and back from outside, while the time of a process goes on as it is."""

from __future__ import annotations

import os

from fleetcraft.core.clock import Clock, SystemClock


class JumpingClock(SystemClock):
    """Adds to the wall clock what a file says at that moment."""

    def __init__(self, path: str) -> None:
        self._path = path

    def utc(self) -> float:
        """See `Clock.utc`."""
        with open(self._path, encoding="ascii") as source:
            return super().utc() + float(source.read())


def jumping_clock(path: str) -> Clock:
    """The clock for a worker; `set_jump` moves it."""
    return JumpingClock(path)


def set_jump(path: str, seconds: float) -> None:
    """Let the wall clock of whoever uses the file be off by so much from now on."""
    aside = f"{path}.aside"
    with open(aside, "w", encoding="ascii") as target:
        target.write(f"{seconds}")
    os.replace(aside, path)
