"""A set of whole numbers kept as sorted, disjoint, half-open ranges: a million finished tasks in a few bytes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class RangeSet:
    """Adding and removing ranges keeps the set canonical: sorted, disjoint, never adjacent."""

    __slots__ = ("_starts", "_stops")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in ranges:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> None:
        """Add every number of [start, stop)."""
        if stop <= start:
            return
        starts, stops = self._starts, self._stops
        if stops and start == stops[-1]:  # work goes forward: the common case costs no search
            stops[-1] = stop
            return
        # All ranges that touch or overlap the new one melt into it.
        low = bisect_left(stops, start)
        high = bisect_right(starts, stop)
        if low < high:
            start = min(start, starts[low])
            stop = max(stop, stops[high - 1])
        starts[low:high] = [start]
        stops[low:high] = [stop]

    def remove(self, start: int, stop: int) -> None:
        """Remove every number of [start, stop)."""
        if stop <= start:
            return
        starts, stops = self._starts, self._stops
        if starts and start == starts[0] and stop < stops[0]:
            starts[0] = stop
            return
        low = bisect_right(stops, start)
        high = bisect_left(starts, stop)
        if low >= high:
            return
        left, right = starts[low], stops[high - 1]
        kept = [(left, start)] if left < start else []
        if stop < right:
            kept.append((stop, right))
        starts[low:high] = [first for first, _ in kept]
        stops[low:high] = [last for _, last in kept]

    def __contains__(self, number: int) -> bool:
        position = bisect_right(self._starts, number) - 1
        return position >= 0 and number < self._stops[position]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)

    def __len__(self) -> int:
        return sum(self._stops) - sum(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and self._starts == other._starts and self._stops == other._stops

    __hash__ = None  # type: ignore[assignment]  # mutable: two equal sets may differ a moment later

    def __repr__(self) -> str:
        return f"RangeSet({list(self)!r})"

    def within(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The parts of the set inside [start, stop)."""
        position = bisect_right(self._stops, start)
        while position < len(self._starts) and self._starts[position] < stop:
            yield max(start, self._starts[position]), min(stop, self._stops[position])
            position += 1

    def missing(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The parts of [start, stop) that are not in the set."""
        for low, high in self.within(start, stop):
            if start < low:
                yield start, low
            start = high
        if start < stop:
            yield start, stop

    def numbers(self) -> Iterator[int]:
        """Every number, one by one."""
        for start, stop in self:
            yield from range(start, stop)
