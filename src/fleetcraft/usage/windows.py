"""Samples added up: a whole series into one window, or into windows of five minutes that start on the clock.

Every sum is over the time in which that value was known, so that an absent value never counts as 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import compress
from operator import mul
from typing import Any

from fleetcraft.usage.api import Gpu, Window
from fleetcraft.usage.holding import ACTIVE_PCT, CAP, RESERVED_BYTES, WINDOW_MS
from fleetcraft.usage.series import Column, Series

_KEYS = ("gpu", "start_ms", "length_ms")
_LARGEST = ("memory_max_bytes", "memory_total_bytes", "own_memory_max_bytes", "last_ms")
_SUMS = tuple(field.name for field in fields(Window) if field.name not in (*_KEYS, *_LARGEST, "first_ms", "counter_mj"))


def add_up(series: Series, start_ms: int | None = None, length_ms: int | None = None) -> Window:
    """All samples of a series in one window, the counter of its energy included."""
    utc_ms = series.utc_ms
    window = Window(
        gpu=series.gpu,
        start_ms=utc_ms[0] if start_ms is None else start_ms,
        length_ms=(utc_ms[-1] + series.held_ms[-1] - utc_ms[0]) if length_ms is None else length_ms,
        samples=len(utc_ms) - series.over,
        first_ms=utc_ms[0],
        last_ms=utc_ms[-1] + series.held_ms[-1],
    )
    holds, columns = series.held_ms, series.columns
    if series.states is not None and any(state != "ok" for state in series.states):
        good = [state == "ok" for state in series.states]
        window.bad_ms = sum(holds) - sum(compress(holds, good))
        holds = list(compress(holds, good))
        columns = {name: list(compress(column, good)) for name, column in columns.items()}
    window.observed_ms = sum(holds)
    _levels(window, holds, columns)
    _activity(window, holds, columns, series.baseline_bytes)
    if "energy_mj" in series.columns:
        _counter(window, series)
    return window


def _known(column: Column, holds: list[int]) -> tuple[list[Any], list[int]]:
    """The values that are there, and how long each counts."""
    if None not in column:
        return column, holds
    there = [value is not None for value in column]
    return list(compress(column, there)), list(compress(holds, there))


def _levels(window: Window, holds: list[int], columns: dict[str, Column]) -> None:
    for name, total in (
        ("util_pct", "util"),
        ("memory_used_bytes", "memory"),
        ("power_w", "power"),
        ("sm_active_pct", "sm_active"),
        ("tensor_pct", "tensor"),
        ("sm_clock_mhz", "clock"),
    ):
        if name in columns:
            values, times = _known(columns[name], holds)
            setattr(window, f"{total}_sum", float(sum(map(mul, values, times))))
            setattr(window, f"{total}_ms", window.observed_ms if times is holds else sum(times))
            if total == "memory" and values:
                window.memory_max_bytes = max(values)
    if "own_memory_bytes" in columns:
        values, _ = _known(columns["own_memory_bytes"], holds)
        window.own_memory_max_bytes = max(values, default=None)
    if "own_pids" in columns:
        window.own_ms = sum(hold for hold, number in zip(holds, columns["own_pids"], strict=True) if number)
    _memory_fraction(window, holds, columns)


def _memory_fraction(window: Window, holds: list[int], columns: dict[str, Column]) -> None:
    """A device has one size, so its fraction follows from the sum; only a log that says several needs every row."""
    totals = columns.get("memory_total_bytes")
    used = columns.get("memory_used_bytes")
    if totals is None or used is None:
        return
    sizes = set(totals) - {None, 0.0}
    if not sizes:
        return
    window.memory_total_bytes = max(size for size in sizes if size is not None)
    if len(sizes) == 1:
        window.memory_fraction_sum = window.memory_sum / window.memory_total_bytes
        return
    shares = [
        (mine / size, hold) for mine, size, hold in zip(used, totals, holds, strict=True) if size and mine is not None
    ]
    window.memory_fraction_sum = sum(share * hold for share, hold in shares)


def _activity(window: Window, holds: list[int], columns: dict[str, Column], baseline_bytes: float) -> None:
    util, memory = columns.get("util_pct"), columns.get("memory_used_bytes")
    if util is None:
        return
    values, times = _known(util, holds)
    window.active_ms = sum(compress(times, map(ACTIVE_PCT.__le__, values)))
    if memory is None:
        return
    edge = baseline_bytes + RESERVED_BYTES
    if times is holds and None not in memory:
        # Not active and small; what is left of the time that is known is reserved.
        inactive = [share < ACTIVE_PCT for share in values]
        some: list[Any] = list(compress(memory, inactive))
        window.free_ms = sum(compress(compress(holds, inactive), [used < edge for used in some]))
        window.reserved_ms = window.util_ms - window.active_ms - window.free_ms
        return
    for share, used, hold in zip(util, memory, holds, strict=True):
        if share is not None and used is not None and share < ACTIVE_PCT:
            if used < edge:
                window.free_ms += hold
            else:
                window.reserved_ms += hold


def _counter(window: Window, series: Series) -> None:
    """What the energy counter grew by between samples that follow one another without a gap.

    A step back begins a new epoch: how much was used over it is not known, and never negative.
    """
    counter, utc_ms = series.columns["energy_mj"], series.utc_ms
    cap_ms = series.interval_ms * CAP
    grown, time_ms, resets = 0.0, 0, 0
    before: float | None = None
    stamp_before = 0
    for stamp, value in zip(utc_ms, counter, strict=True):
        if value is None:
            continue
        if before is not None and value < before:
            resets += 1
        elif before is not None and stamp - stamp_before <= cap_ms:
            grown += value - before
            time_ms += stamp - stamp_before
        before, stamp_before = value, stamp
    window.counter_resets = resets
    if time_ms or before is not None:
        window.counter_mj, window.counter_ms = grown, time_ms


def cut(series: Series, length_ms: int = WINDOW_MS, *, split: bool = True) -> list[Window]:
    """The series in windows that start at multiples of `length_ms`.

    A sample that reaches over an edge gives each window its part; with `split` False it belongs to the one it
    starts in, as when stamps are rounded down.
    """
    windows: list[Window] = []
    utc_ms = series.utc_ms
    first, start_ms = 0, utc_ms[0] // length_ms * length_ms if utc_ms else 0
    reaches_ms = 0  # how far the sample before `first` reaches
    while first < len(utc_ms) or reaches_ms > start_ms:
        if reaches_ms <= start_ms < utc_ms[min(first, len(utc_ms) - 1)]:
            start_ms = utc_ms[first] // length_ms * length_ms
        end_ms = start_ms + length_ms
        end = bisect_left(utc_ms, end_ms, first)
        over = split and reaches_ms > start_ms
        part = series.take(first - 1 if over else first, end)
        if over:
            part.utc_ms[0], part.held_ms[0] = start_ms, reaches_ms - start_ms
        if split:
            reaches_ms = part.utc_ms[-1] + part.held_ms[-1]
            part.held_ms[-1] -= max(0, reaches_ms - end_ms)
        part.columns.pop("energy_mj", None)
        window = add_up(part, start_ms, length_ms)
        window.samples = end - first
        windows.append(window)
        first, start_ms = end, end_ms
    if "energy_mj" in series.columns:
        _spread_counter(series, windows, length_ms)
    return windows


def _spread_counter(series: Series, windows: list[Window], length_ms: int) -> None:
    """What the counter grew by, to the windows in which it did; over an edge by the time on each side."""
    places = {window.start_ms: window for window in windows}
    cap_ms = series.interval_ms * CAP
    before: float | None = None
    stamp_before = 0
    for stamp, value in zip(series.utc_ms, series.columns["energy_mj"], strict=True):
        if value is None:
            continue
        window = places[stamp // length_ms * length_ms]
        window.counter_mj = window.counter_mj or 0.0
        if before is not None and value < before:
            window.counter_resets += 1
        elif before is not None and 0 < stamp - stamp_before <= cap_ms:
            at = stamp_before
            while at < stamp:
                edge = min(stamp, (at // length_ms + 1) * length_ms)
                here = places.get(at // length_ms * length_ms)
                if here is not None:
                    part_mj = (value - before) * (edge - at) / (stamp - stamp_before)
                    here.counter_mj = (here.counter_mj or 0.0) + part_mj
                    here.counter_ms += edge - at
                at = edge
        before, stamp_before = value, stamp


def merge(into: Window, other: Window) -> None:
    """Add the sums of another window of the same GPU, or of the same group of GPUs."""
    for name in _SUMS:
        setattr(into, name, getattr(into, name) + getattr(other, name))
    for name in _LARGEST:
        mine, theirs = getattr(into, name), getattr(other, name)
        if theirs is not None and (mine is None or theirs > mine):
            setattr(into, name, theirs)
    if other.first_ms and (not into.first_ms or other.first_ms < into.first_ms):
        into.first_ms = other.first_ms
    if other.counter_mj is not None:
        into.counter_mj = (into.counter_mj or 0.0) + other.counter_mj


def total(windows: Iterable[Window], gpu: Gpu) -> Window:
    """The sum of windows; empty where there are none."""
    into = Window(gpu=gpu, start_ms=0, length_ms=0)
    for window in windows:
        merge(into, window)
    return into


def by_gpu(windows: Sequence[Window]) -> dict[Gpu, list[Window]]:
    """The windows of each GPU in order of time."""
    found: dict[Gpu, list[Window]] = {}
    for window in windows:
        found.setdefault(window.gpu, []).append(window)
    return found
