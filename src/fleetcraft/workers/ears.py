"""Signals as readable events: the handler only notes the number and wakes the loop; the loop decides."""

from __future__ import annotations

import os
import signal
from types import FrameType

# Ends a session, a terminal or a job; HUP is ignored, since a worker outlives the login that started it.
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)


class Ears:
    """A pipe that becomes readable when a stop signal came or a thread of ours has news."""

    def __init__(self) -> None:
        self.descriptor, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.heard: list[int] = []
        self._before = {number: signal.signal(number, self._on_signal) for number in STOPS}
        self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.heard.append(number)
        self.wake()

    def wake(self) -> None:
        """Make the loop look around; safe from a signal handler and from any thread."""
        try:
            os.write(self._writer, b"!")
        except BlockingIOError:
            return  # it will wake anyway

    def take(self) -> list[int]:
        """The signals heard since the last call, in order."""
        try:
            os.read(self.descriptor, 4096)
        except BlockingIOError:
            return []
        heard, self.heard = self.heard, []
        return heard

    def close(self) -> None:
        """Put the old handlers back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.descriptor)
        os.close(self._writer)
