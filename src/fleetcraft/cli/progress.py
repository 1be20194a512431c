"""A progress line on a terminal, and none in a pipe."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from fleetcraft.cli.output import Output
from fleetcraft.core.quantities import format_duration

_EVERY_S = 0.1


class Progress:
    """Call it with how much is done (and of how much); it redraws one line on stderr, at most ten times a second."""

    def __init__(self, output: Output, what: str, unit: str = "tasks", *, begin_after_s: float = 0.5) -> None:
        self._stream = output.stderr
        self._shown = output.stderr.isatty()
        self._what = what
        self._unit = unit
        self._started_s = time.monotonic()
        # Short work ends before anything is drawn.
        self._next_s = self._started_s + begin_after_s
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int | None = None) -> None:
        """Say how far it is."""
        if not self._shown:
            return
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + _EVERY_S
        took_s = now - self._started_s
        share = f" of {total:,} ({100 * done // total} %)" if total else ""
        rate = done / took_s if took_s > 0 else 0.0
        left = f", {format_duration((total - done) / rate)} left" if total and rate > 0 else ""
        self._stream.write(f"\r\x1b[K{self._what} {done:,}{share} {self._unit}, {rate:,.0f}/s{left}")
        self._stream.flush()
        self._drawn = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
