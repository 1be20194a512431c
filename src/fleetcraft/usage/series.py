"""The samples of one GPU of one file, in columns: the form in which millions of samples are read and added up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from fleetcraft.usage.api import Context, Gpu, Stretch
from fleetcraft.usage.holding import extras, held, is_ordered

Column = list[float | None]
# What sums and stretches use; other columns of a file are not read.
LEVELS = (
    "util_pct",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_w",
    "energy_mj",
    "sm_clock_mhz",
    "sm_active_pct",
    "tensor_pct",
    "own_pids",
    "own_memory_bytes",
)


@dataclass(slots=True, kw_only=True)
class Series:
    """Samples in time order. `held_ms` is empty until the hold rule was applied across the files of the GPU."""

    gpu: Gpu
    context: Context
    path: str
    interval_ms: int
    utc_ms: list[int]
    columns: dict[str, Column] = field(default_factory=dict)
    states: list[str] | None = None  # None: the device answered every time
    held_ms: list[int] = field(default_factory=list)
    baseline_bytes: float = 0.0  # what the device holds when nobody uses it
    span: tuple[int | None, int | None] | None = None  # which part counts; None: that which was asked for
    began_ms: int | None = None  # when its sampler began, which may be before the first sample here
    ended: bool = False  # its sampler said that it stopped
    extra: list[int] | None = None  # stamps of a second logger's samples, where files overlap; None: not looked for
    over: int = 0  # 1 where the first row is the rest of a sample from before the span

    def sort(self) -> None:
        """Bring stamps that step back into order."""
        if is_ordered(self.utc_ms):
            return
        order = sorted(range(len(self.utc_ms)), key=self.utc_ms.__getitem__)
        self.utc_ms = [self.utc_ms[at] for at in order]
        self.columns = {name: [column[at] for at in order] for name, column in self.columns.items()}
        if self.states is not None:
            self.states = [self.states[at] for at in order]

    def take(self, first: int, end: int) -> Series:
        """Samples `first` up to `end`, which is not in it."""
        return Series(
            gpu=self.gpu,
            context=self.context,
            path=self.path,
            interval_ms=self.interval_ms,
            utc_ms=self.utc_ms[first:end],
            columns={name: column[first:end] for name, column in self.columns.items()},
            states=None if self.states is None else self.states[first:end],
            held_ms=self.held_ms[first:end],
            baseline_bytes=self.baseline_bytes,
            span=self.span,
            began_ms=self.began_ms,
            ended=self.ended,
            extra=self.extra,
        )

    def near(self, since_ms: int | None, until_ms: int | None, reach_ms: int) -> Series:
        """Samples within [since - reach, until + reach), before the hold rule; the last one before it too."""
        self.sort()
        first = 0 if since_ms is None else bisect_left(self.utc_ms, since_ms - reach_ms)
        end = len(self.utc_ms) if until_ms is None else bisect_left(self.utc_ms, until_ms + reach_ms)
        if first == end == len(self.utc_ms):
            first = max(0, first - 1)  # it tells since when there is silence
        return self if first == 0 and end == len(self.utc_ms) else self.take(first, end)

    def extras(self) -> int:
        """How many of the samples here are a second logger's."""
        if self.extra is None:
            return extras(self.utc_ms[self.over :], self.interval_ms)
        return sum(self.utc_ms[0] <= stamp <= self.utc_ms[-1] for stamp in self.extra)

    def clip(self, since_ms: int | None, until_ms: int | None) -> Series:
        """What lies in [since, until); a sample that reaches over an edge is cut there."""
        utc_ms = self.utc_ms
        if not utc_ms or (
            (since_ms is None or since_ms <= utc_ms[0])
            and (until_ms is None or until_ms >= utc_ms[-1] + self.held_ms[-1])
        ):
            return self
        first = 0 if since_ms is None else bisect_left(utc_ms, since_ms)
        end = len(utc_ms) if until_ms is None else bisect_left(utc_ms, until_ms)
        if since_ms is not None and first and utc_ms[first - 1] + self.held_ms[first - 1] > since_ms:
            first -= 1
        part = self.take(
            first, max(first, end) if since_ms is None or until_ms is None or since_ms < until_ms else first
        )
        if part.utc_ms and since_ms is not None and part.utc_ms[0] < since_ms:
            part.over = 1
            part.held_ms[0] -= since_ms - part.utc_ms[0]
            _pro_rata(part, 0, since_ms)
            part.utc_ms[0] = since_ms
        if part.utc_ms and until_ms is not None:
            part.held_ms[-1] = min(part.held_ms[-1], until_ms - part.utc_ms[-1])
        return part

    def stretches(self) -> Iterator[Stretch]:
        """One after the other, those without any time left out."""
        names = list(self.columns)
        states = self.states or ["ok"] * len(self.utc_ms)
        for stamp, hold, state, *values in zip(self.utc_ms, self.held_ms, states, *self.columns.values(), strict=True):
            if hold > 0:
                yield Stretch(
                    gpu=self.gpu,
                    start_ms=stamp,
                    end_ms=stamp + hold,
                    state=state,
                    **dict(zip(names, values, strict=True)),
                )


def _pro_rata(part: Series, at: int, stamp: int) -> None:
    """Let a counter that is read in the middle of a sample stand where it would have stood then."""
    counter = part.columns.get("energy_mj")
    if counter is None or at + 1 >= len(counter):
        return
    here, there = counter[at], counter[at + 1]
    if here is not None and there is not None and there >= here:
        share = (stamp - part.utc_ms[at]) / max(1, part.utc_ms[at + 1] - part.utc_ms[at])
        counter[at] = here + (there - here) * min(1.0, share)


def hold_all(parts: list[Series]) -> list[Series]:
    """Apply the hold rule across the files of one GPU; returns the parts in order of time.

    Files that overlap were written by two loggers: their samples share the time between them.
    """
    for part in parts:
        part.sort()
    parts = sorted((part for part in parts if part.utc_ms), key=lambda part: part.utc_ms[0])
    overlap = any(after.utc_ms[0] < before.utc_ms[-1] for before, after in pairwise(parts))
    if not overlap:
        for at, part in enumerate(parts):
            part.held_ms = held(part.utc_ms, part.interval_ms, parts[at + 1].utc_ms[0] if at + 1 < len(parts) else None)
        return parts
    everything = sorted((stamp, at, place) for at, part in enumerate(parts) for place, stamp in enumerate(part.utc_ms))
    holds = held([stamp for stamp, _, _ in everything], max(part.interval_ms for part in parts))
    for part in parts:
        part.held_ms = [0] * len(part.utc_ms)
        part.extra = []
    tick_ms: int | None = None
    for (stamp, at, place), hold in zip(everything, holds, strict=True):
        parts[at].held_ms[place] = hold
        if tick_ms is not None and stamp - tick_ms < parts[at].interval_ms // 2:
            parts[at].extra.append(stamp)  # type: ignore[union-attr]  # just made
        else:
            tick_ms = stamp
    return parts
