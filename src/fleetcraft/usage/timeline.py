"""Time in few equal bins, for drawing: means of what was seen in each; a bin without a sample is not there.

A gap stays a gap: nothing is drawn from one side of it to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleetcraft.usage.api import Gpu, Window
from fleetcraft.usage.ledger_api import Class, Span

_STEPS_S = (
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    14_400,
    21_600,
    43_200,
    86_400,
)
_MJ_PER_KWH = 3.6e9
ACTIVITIES = {"active": "active", "reserved": "reserved, idle", "free": "free, idle", "unclear": "not told"}
Cell = tuple[int, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """All GPUs over one bin. None is not known, never 0."""

    start_ms: int
    gpus: int
    observed_ms: int
    util_pct: float | None
    memory_bytes: float | None
    power_w: float | None
    energy_kwh: float | None


def choose_length_ms(since_ms: int, until_ms: int, most: int = 500) -> int:
    """The shortest round length that needs at most so many bins."""
    for step_s in _STEPS_S:
        if (until_ms - since_ms) / (step_s * 1000) <= most:
            return round(step_s * 1000)
    days = -(-(until_ms - since_ms) // (most * 86_400_000))
    return days * 86_400_000


def bins(windows: Iterable[Window]) -> list[Bin]:
    """Windows of equal length, of many GPUs, as one line of means by time."""
    found: dict[int, list[Window]] = {}
    for window in windows:
        if window.observed_ms:
            found.setdefault(window.start_ms, []).append(window)
    return [_bin(start_ms, found[start_ms]) for start_ms in sorted(found)]


def _bin(start_ms: int, some: Sequence[Window]) -> Bin:
    power_sum, power_ms = sum(one.power_sum for one in some), sum(one.power_ms for one in some)
    return Bin(
        start_ms=start_ms,
        gpus=len({one.gpu for one in some}),
        observed_ms=sum(one.observed_ms for one in some),
        util_pct=_mean(sum(one.util_sum for one in some), sum(one.util_ms for one in some)),
        memory_bytes=_mean(sum(one.memory_sum for one in some), sum(one.memory_ms for one in some)),
        power_w=_mean(power_sum, power_ms),
        energy_kwh=power_sum / _MJ_PER_KWH if power_ms else None,
    )


def _mean(total: float, time_ms: int) -> float | None:
    return total / time_ms if time_ms else None


def activity_cells(windows: Sequence[Window]) -> list[Cell]:
    """One GPU's windows by what took most of each; neighbours of one kind are one cell."""
    cells: list[Cell] = []
    for window in windows:
        if not window.observed_ms:
            continue
        known = {"active": window.active_ms, "reserved": window.reserved_ms, "free": window.free_ms}
        unclear = window.observed_ms - sum(known.values())
        kind = max({**known, "unclear": unclear}.items(), key=lambda item: item[1])[0]
        _append(cells, (window.start_ms, window.start_ms + window.length_ms, kind))
    return cells


def class_cells(spans: Iterable[Span], length_ms: int) -> dict[Gpu, list[Cell]]:
    """The spans of a ledger, as bins by the class that took most of each."""
    sums: dict[Gpu, dict[int, dict[Class, int]]] = {}
    for span in spans:
        rows = sums.setdefault(span.gpu, {})
        at = span.start_ms
        while at < span.end_ms:
            start = at // length_ms * length_ms
            end = min(span.end_ms, start + length_ms)
            shares = rows.setdefault(start, {})
            shares[span.kind] = shares.get(span.kind, 0) + end - at
            at = end
    found: dict[Gpu, list[Cell]] = {}
    for gpu in sorted(sums):
        cells: list[Cell] = found.setdefault(gpu, [])
        for start, shares in sorted(sums[gpu].items()):
            kind = max(Class, key=lambda one: shares.get(one, 0))
            _append(cells, (start, start + length_ms, kind.value))
    return found


def _append(cells: list[Cell], cell: Cell) -> None:
    if cells and cells[-1][1] == cell[0] and cells[-1][2] == cell[2]:
        cells[-1] = (cells[-1][0], cell[1], cell[2])
    else:
        cells.append(cell)
