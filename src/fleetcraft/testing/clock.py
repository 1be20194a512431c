"""A clock that moves only when a test moves it, so that nothing ever waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ManualClock:
    """Three readings, as `core.clock.Clock` wants them; each can be moved apart from the others."""

    utc_s: float = 1_700_000_000.0
    mono_s: float = 1_000.0
    boot_s: float = 1_000.0

    def utc(self) -> float:
        """See `Clock.utc`."""
        return self.utc_s

    def mono(self) -> float:
        """See `Clock.mono`."""
        return self.mono_s

    def boot(self) -> float:
        """See `Clock.boot`."""
        return self.boot_s

    def advance(self, seconds: float) -> None:
        """Let time pass: all three readings grow. Takes the place of `time.sleep`."""
        self.utc_s += seconds
        self.mono_s += seconds
        self.boot_s += seconds

    def jump_utc(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator or a time server does."""
        self.utc_s += seconds

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep: the wall clock and the time since boot go on, the monotonic reading stands."""
        self.utc_s += seconds
        self.boot_s += seconds
