"""What samples say about a device's tensor pipes and clock over any stretch: sums by prefix, absent values left out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from fleetcraft.usage.api import Stretch

_FIELDS = ("tensor_pct", "sm_clock_mhz")


@dataclass(slots=True)
class Device:
    """One GPU: the name that its driver gives it, and its samples."""

    name: str
    simulated: bool = False
    sample_ms: int = 0  # how long its samples hold, mostly
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    _sums: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)  # value x ms, ms in which known

    @classmethod
    def of(cls, name: str, stretches: Iterable[Stretch], *, simulated: bool = False) -> Device:
        """From samples in any order; where two hold at once, the first one's time is its own."""
        one = cls(name, simulated, _sums={each: ([0.0], [0.0]) for each in _FIELDS})
        for stretch in sorted(stretches, key=lambda each: each.start_ms):
            start_ms = max(stretch.start_ms, one.ends[-1] if one.ends else stretch.start_ms)
            if start_ms >= stretch.end_ms:
                continue
            one.starts.append(start_ms)
            one.ends.append(stretch.end_ms)
            length = stretch.end_ms - start_ms
            for each, value in (("tensor_pct", stretch.tensor_pct), ("sm_clock_mhz", stretch.sm_clock_mhz)):
                totals, known = one._sums[each]
                totals.append(totals[-1] + (value or 0.0) * length)
                known.append(known[-1] + (length if value is not None else 0))
        lengths = sorted(end - start for start, end in zip(one.starts, one.ends, strict=True))
        one.sample_ms = lengths[len(lengths) // 2] if lengths else 0
        return one

    def over(self, what: str, start_ms: int, end_ms: int) -> tuple[float, float]:
        """Sum of value x ms over [start, end), and the ms in which the value was known."""
        if not self.starts or start_ms >= end_ms:
            return 0.0, 0.0
        totals, known = self._sums[what]
        return (
            self._upto(totals, end_ms) - self._upto(totals, start_ms),
            self._upto(known, end_ms) - self._upto(known, start_ms),
        )

    def _upto(self, sums: list[float], moment_ms: int) -> float:
        place = bisect_right(self.starts, moment_ms) - 1
        if place < 0:
            return 0.0
        start_ms, end_ms = self.starts[place], self.ends[place]
        part_ms = min(moment_ms, end_ms) - start_ms
        return sums[place] + (sums[place + 1] - sums[place]) * part_ms / (end_ms - start_ms)


UNSEEN = Device("")
