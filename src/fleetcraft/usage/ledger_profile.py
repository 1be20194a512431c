"""What the samples of one GPU say about any stretch of it: sums by prefix, so that a question costs two searches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fleetcraft.usage.api import Stretch
from fleetcraft.usage.holding import ACTIVE_PCT, RESERVED_BYTES
from fleetcraft.usage.ledger_api import Interval

_GOOD = "ok"


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Sorted and disjoint; neighbours that touch are joined."""
    joined: list[Interval] = []
    for start, end in sorted(pair for pair in intervals if pair[0] < pair[1]):
        if joined and start <= joined[-1][1]:
            if end > joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def clip(intervals: Iterable[Interval], start_ms: int, end_ms: int) -> list[Interval]:
    """The parts within [start, end)."""
    cut = ((max(start, start_ms), min(end, end_ms)) for start, end in intervals)
    return [pair for pair in cut if pair[0] < pair[1]]


@dataclass(slots=True)
class Cover:
    """Disjoint sorted intervals, asked at moments that only grow."""

    intervals: Sequence[Interval]
    _at: int = 0

    def holds(self, moment_ms: int) -> bool:
        """True where one of them holds the moment."""
        while self._at < len(self.intervals) and self.intervals[self._at][1] <= moment_ms:
            self._at += 1
        return self._at < len(self.intervals) and self.intervals[self._at][0] <= moment_ms


@dataclass(slots=True)
class Profile:
    """The samples of one GPU in order of time, without overlap."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    good: list[bool] = field(default_factory=list)
    active: list[bool | None] = field(default_factory=list)
    reserved: list[bool | None] = field(default_factory=list)
    memory: list[float | None] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    _sums: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, stretches: Iterable[Stretch], baseline_bytes: float = 0.0) -> Profile:
        """Take the stretches of one GPU."""
        profile = cls()
        power: list[float | None] = []
        counter: list[float | None] = []
        last_mj: float | None = None
        for one in sorted(stretches, key=lambda stretch: (stretch.start_ms, stretch.end_ms)):
            start_ms = max(one.start_ms, profile.ends[-1]) if profile.ends else one.start_ms
            if one.end_ms <= start_ms:
                continue
            if counter and last_mj is not None and one.energy_mj is not None and profile.ends[-1] == start_ms:
                # Of the stretch before: the counter at its begin and now. A smaller one was reset between.
                grown = one.energy_mj - last_mj
                counter[-1] = grown / (profile.ends[-1] - profile.starts[-1]) if grown >= 0 else None
            good = one.state == _GOOD
            profile.starts.append(start_ms)
            profile.ends.append(one.end_ms)
            profile.good.append(good)
            profile.states.append(one.state)
            profile.active.append(None if one.util_pct is None or not good else one.util_pct >= ACTIVE_PCT)
            used = one.memory_used_bytes
            profile.reserved.append(None if used is None else used - baseline_bytes >= RESERVED_BYTES)
            profile.memory.append(used)
            power.append(one.power_w)
            counter.append(None)
            last_mj = one.energy_mj
        profile._add("observed", [float(good) for good in profile.good])
        profile._add("active", [float(bool(active)) for active in profile.active])
        profile._add("power", [value or 0.0 for value in power])
        profile._add("power_known", [float(value is not None) for value in power])
        profile._add("counter", [value or 0.0 for value in counter])
        profile._add("counter_known", [float(value is not None) for value in counter])
        return profile

    def _add(self, name: str, rates: Sequence[float]) -> None:
        total, sums = 0.0, [0.0]
        for rate, start_ms, end_ms in zip(rates, self.starts, self.ends, strict=True):
            total += rate * (end_ms - start_ms)
            sums.append(total)
        self._sums[name] = sums

    def integral(self, name: str, start_ms: int, end_ms: int) -> float:
        """The rate of that name over [start, end): milliseconds, or watts x ms for power and mJ for the counter."""
        return self._upto(name, end_ms) - self._upto(name, start_ms) if start_ms < end_ms else 0.0

    def _upto(self, name: str, moment_ms: int) -> float:
        place = bisect_right(self.starts, moment_ms) - 1
        if place < 0:
            return 0.0
        sums = self._sums[name]
        start_ms, end_ms = self.starts[place], self.ends[place]
        part_ms = min(moment_ms, end_ms) - start_ms
        return sums[place] + (sums[place + 1] - sums[place]) * part_ms / (end_ms - start_ms)

    def peak_bytes(self, start_ms: int, end_ms: int) -> float | None:
        """The most memory that a sample taken in [start, end) saw."""
        first, last = bisect_left(self.starts, start_ms), bisect_left(self.starts, end_ms)
        return max((value for value in self.memory[first:last] if value is not None), default=None)

    def taken(self, start_ms: int, end_ms: int) -> Iterator[tuple[int, int, bool | None]]:
        """(begin, end, active) of the samples taken in [start, end), cut at its end."""
        for place in range(bisect_left(self.starts, start_ms), bisect_left(self.starts, end_ms)):
            yield self.starts[place], min(self.ends[place], end_ms), self.active[place]

    def pick(self, flags: Sequence[bool | None], held: Sequence[Interval], settle_ms: int) -> list[Interval]:
        """Where a flag is set, by samples taken outside of `held` and not just after it."""
        told_by_holds = Cover(union((start, end + settle_ms) for start, end in held))
        return union(
            (start_ms, end_ms)
            for start_ms, end_ms, flag in zip(self.starts, self.ends, flags, strict=True)
            if not told_by_holds.holds(start_ms) and flag
        )
