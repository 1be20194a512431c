"""Time as a parameter: everything that waits or stamps asks a `Clock`, so that tests never sleep."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Three readings that mean different things and are never mixed."""

    def utc(self) -> float:
        """Seconds since the epoch, for records that people read; it may jump."""
        ...

    def mono(self) -> float:
        """Seconds that only grow while this machine runs; for durations and deadlines of one process."""
        ...

    def boot(self) -> float:
        """Seconds since boot, suspension included; a gap in it shows that this process was paused."""
        ...


class SystemClock:
    """The machine's clocks."""

    def utc(self) -> float:
        """See `Clock.utc`."""
        return time.time()

    def mono(self) -> float:
        """See `Clock.mono`."""
        return time.monotonic()

    def boot(self) -> float:
        """See `Clock.boot`."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


def stamp_utc(seconds: float) -> float:
    """Round a time for a record: milliseconds are what a reader can use."""
    return round(seconds, 3)
