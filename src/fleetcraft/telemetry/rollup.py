"""Five-minute sums beside a segment, so that a month is read without reading every sample.

The sums are those of `usage.api.Window`, by the same rules: a sample holds until the next one of its device, at most
one and a half intervals, else one; what reaches over an edge is shared; an absent value is in no sum. A roll-up
that is missing or does not fit its segment is made anew, so it may be removed at any time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.store.files import Files, publish_file
from fleetcraft.telemetry.segment import ENDING, Header, number_text
from fleetcraft.telemetry.segment_read import Reader, number

MAGIC = "#fleetcraft.telemetry.rollup/1"
WINDOW_MS = 300_000
ACTIVE_PCT = 5.0
RESERVED_BYTES = 500 << 20
CAP = 1.5
_ENDING = ".rollup.csv"

# Names and order of `usage.api.Window` without its device; a test holds the two together.
SUMS = (
    "start_ms", "length_ms", "observed_ms", "samples", "util_sum", "util_ms", "active_ms", "memory_sum", "memory_ms",
    "memory_fraction_sum", "memory_max_bytes", "memory_total_bytes", "power_sum", "power_ms", "counter_mj",
    "counter_ms", "counter_resets", "sm_active_sum", "sm_active_ms", "tensor_sum", "tensor_ms", "clock_sum",
    "clock_ms", "own_ms", "own_memory_max_bytes", "first_ms", "last_ms", "bad_ms", "reserved_ms", "free_ms",
    "extra_samples", "extra_ms",
)  # fmt: skip
COLUMN_LINE = ",".join(("offset", "gpu", *SUMS))
_ABSENT = frozenset({"memory_max_bytes", "memory_total_bytes", "counter_mj", "own_memory_max_bytes"})
_LEVELS = (
    ("util_pct", "util"),
    ("memory_used_bytes", "memory"),
    ("power_w", "power"),
    ("sm_active_pct", "sm_active"),
    ("tensor_pct", "tensor"),
    ("sm_clock_mhz", "clock"),
)
USED = (*(name for name, _ in _LEVELS), "memory_total_bytes", "energy_mj", "own_pids", "own_memory_bytes")

Number = Any  # float or int; None where the value was absent


@dataclass(slots=True)
class Rolled:
    """One window of one device, and the offset from which its segment is read on."""

    offset: int
    n: int
    sums: dict[str, Number]

    def line(self) -> str:
        """As a line of the roll-up, without its newline."""
        cells = ["" if value is None else number_text(value, 3) for value in map(self.sums.get, SUMS)]
        return f"{self.offset},{self.n},{','.join(cells)}"


@dataclass(slots=True, kw_only=True)
class Rollup:
    """What a roll-up holds."""

    header: Mapping[str, Any]
    windows: list[Rolled] = field(default_factory=list)
    offset: int = 0  # read the segment on from here
    until_ms: int | None = None  # the windows end here; None where there are none


@dataclass(slots=True)
class _Device:
    """The newest sample of a device, which counts when the next one is known."""

    baseline: float = 0.0
    utc_ms: int = -1
    state: str = "ok"
    values: Mapping[str, float | None] = field(default_factory=dict)
    counter: float | None = None
    counter_ms: int = 0
    tick_ms: int | None = None
    held_until_ms: int = 0  # by a hold that was given before the next sample was known
    open: dict[int, dict[str, Number]] = field(default_factory=dict)


class Roller:
    """Adds samples up as they come; `take` gives the windows that have ended."""

    def __init__(self, interval_ms: int, baselines: Mapping[int, float] | None = None) -> None:
        self._interval_ms = max(1, interval_ms)
        self._cap_ms = int(self._interval_ms * CAP)
        self._baselines = baselines or {}
        self._devices: dict[int, _Device] = {}
        self._ticks: list[tuple[int, int]] = []  # (time, offset) of the last ticks
        self._ended: list[Rolled] = []
        # The clock was set back so far that windows would lose time, or the rows of a tick have different times: such a
        # segment has no roll-up and is read in detail.
        self.stepped = False
        self._edge_ms: int | None = None  # windows that start before it have been given

    def add(self, n: int, utc_ms: int, state: str, values: Mapping[str, float | None], offset: int) -> None:
        """The next sample of a device, which stands at `offset`; times of a device never go back."""
        device = self._devices.get(n)
        if device is None:
            device = self._devices[n] = _Device(baseline=self._baselines.get(n) or 0.0)
        # The rows of its ticks have different times, so a window was given too early: time would count twice.
        self.stepped = self.stepped or utc_ms < device.held_until_ms
        if device.utc_ms >= 0:
            self.stepped = self.stepped or utc_ms < device.utc_ms - self._interval_ms
            utc_ms = max(utc_ms, device.utc_ms)  # after a clock was set back, time is not counted twice
            delta = utc_ms - device.utc_ms
            self._hold(device, delta if delta <= self._cap_ms else self._interval_ms)
            device.utc_ms = -1  # held: the closing below must not do it again
        if not self._ticks or self._ticks[-1][0] < utc_ms:
            if self._ticks:
                self._close_before(self._ticks[-1][0] // WINDOW_MS * WINDOW_MS)
            self._ticks.append((utc_ms, offset))
        device.utc_ms, device.state, device.values = utc_ms, state, values
        self._begin(device, utc_ms, values)

    def _begin(self, device: _Device, utc_ms: int, values: Mapping[str, float | None]) -> None:
        window = self._window(device, utc_ms // WINDOW_MS * WINDOW_MS)
        window["samples"] = (window["samples"] or 0) + 1
        half_ms = self._interval_ms // 2
        if device.tick_ms is not None and utc_ms - device.tick_ms < half_ms:
            window["extra_samples"] = (window["extra_samples"] or 0) + 1
            window["extra_ms"] = (window["extra_ms"] or 0) + self._interval_ms
        else:
            device.tick_ms = utc_ms
        counter = values.get("energy_mj")
        if counter is not None:
            self._count(device, utc_ms, counter, window)

    def _count(self, device: _Device, utc_ms: int, counter: float, window: dict[str, Number]) -> None:
        """A step back of the counter begins a new epoch; over a gap nothing is known to this sum."""
        before, since = device.counter, device.counter_ms
        device.counter, device.counter_ms = counter, utc_ms
        window["counter_mj"] = window["counter_mj"] or 0.0
        if before is None:
            return
        if counter < before:
            window["counter_resets"] = (window["counter_resets"] or 0) + 1
            return
        if not 0 < utc_ms - since <= self._cap_ms:
            return
        at = since
        while at < utc_ms:
            edge = min(utc_ms, (at // WINDOW_MS + 1) * WINDOW_MS)
            here = device.open.get(at // WINDOW_MS * WINDOW_MS)
            if here is not None:
                here["counter_mj"] = (here["counter_mj"] or 0.0) + (counter - before) * (edge - at) / (utc_ms - since)
                here["counter_ms"] = (here["counter_ms"] or 0) + edge - at
            at = edge

    def _window(self, device: _Device, start_ms: int) -> dict[str, Number]:
        window = device.open.get(start_ms)
        if window is None:
            window = dict.fromkeys(SUMS, 0)
            window.update(dict.fromkeys(_ABSENT), start_ms=start_ms, length_ms=WINDOW_MS)
            device.open[start_ms] = window
        return window

    def _hold(self, device: _Device, hold_ms: int) -> None:
        """Give each window its part of the newest sample."""
        at, end = device.utc_ms, device.utc_ms + hold_ms
        while True:
            start = at // WINDOW_MS * WINDOW_MS
            edge = min(end, start + WINDOW_MS)
            _add(self._window(device, start), device, at, edge - at)
            at = edge
            if at >= end:
                return

    def _close_before(self, edge_ms: int) -> None:
        """Give the windows that ended before the edge.

        Called when a tick is over that lies behind it: only then has every device said how long its last sample
        before the edge holds.
        """
        if self._edge_ms is not None and edge_ms <= self._edge_ms:
            return
        self._edge_ms = edge_ms
        before = [offset for utc_ms, offset in self._ticks if utc_ms < edge_ms]
        if not before:
            return
        for device in self._devices.values():
            if 0 <= device.utc_ms < edge_ms:
                # It was left out of a tick, so whatever comes later comes after a gap.
                self._hold(device, self._interval_ms)
                device.held_until_ms = device.utc_ms + self._interval_ms
                device.utc_ms = -1
        offset = max(before)
        self._give(edge_ms, offset)
        self._ticks = [tick for tick in self._ticks if tick[1] >= offset]

    def _give(self, edge_ms: int, offset: int) -> None:
        ended = [
            Rolled(offset, n, device.open.pop(start))
            for n, device in self._devices.items()
            for start in [start for start in device.open if start < edge_ms]
        ]
        ended.sort(key=lambda one: (one.sums["start_ms"] or 0, one.n))
        self._ended += ended

    def take(self) -> list[Rolled]:
        """The windows that ended since the last call, in order."""
        ended, self._ended = self._ended, []
        return ended

    def close(self, offset: int) -> list[Rolled]:
        """No more samples: the newest ones hold one interval, and the open windows are all there is to them."""
        for device in self._devices.values():
            if device.utc_ms >= 0:
                self._hold(device, self._interval_ms)
                device.utc_ms = -1
        latest = max((start for device in self._devices.values() for start in device.open), default=0)
        self._give(latest + WINDOW_MS, offset)
        return self.take()


def _add(window: dict[str, Any], device: _Device, at: int, hold_ms: int) -> None:
    """Add a part of a sample to a window."""
    if not window["first_ms"]:
        window["first_ms"] = at
    window["last_ms"] = max(window["last_ms"], at + hold_ms)
    if device.state != "ok":
        window["bad_ms"] += hold_ms
        return
    values = device.values
    window["observed_ms"] += hold_ms
    for name, total in _LEVELS:
        value = values.get(name)
        if value is not None:
            window[f"{total}_sum"] += value * hold_ms
            window[f"{total}_ms"] += hold_ms
    util, used, size = values.get("util_pct"), values.get("memory_used_bytes"), values.get("memory_total_bytes")
    _largest(window, "memory_max_bytes", used)
    _largest(window, "memory_total_bytes", size or None)
    _largest(window, "own_memory_max_bytes", values.get("own_memory_bytes"))
    if used is not None and size:
        window["memory_fraction_sum"] += used / size * hold_ms
    if values.get("own_pids"):
        window["own_ms"] += hold_ms
    if util is None:
        return
    if util >= ACTIVE_PCT:
        window["active_ms"] += hold_ms
    elif used is not None:
        window["reserved_ms" if used >= device.baseline + RESERVED_BYTES else "free_ms"] += hold_ms


def _largest(window: dict[str, Any], name: str, value: float | None) -> None:
    if value is not None and (window[name] is None or value > window[name]):
        window[name] = value


def rollup_path(segment_path: str) -> str:
    """Where the roll-up of a segment lies."""
    return segment_path.removesuffix(ENDING) + _ENDING


def head_lines(segment_name: str, header: Header) -> list[str]:
    """The first two lines of a roll-up."""
    told = {
        "segment": segment_name, "host": header.host, "window_ms": WINDOW_MS,
        "interval_ms": round(header.interval_s * 1000), "active_pct": ACTIVE_PCT, "reserved_bytes": RESERVED_BYTES,
        "version": header.version,
    }  # fmt: skip
    return [f"{MAGIC} {json.dumps(told, separators=(',', ':'))}", COLUMN_LINE]


def load(path: str, segment_name: str | None = None, segment_size: int | None = None) -> Rollup | None:
    """A roll-up; None where it is missing, is none of ours, or does not fit the segment of that name and size."""
    try:
        with open(path, "rb") as source:
            data = source.read()
    except OSError:
        return None
    lines = data[: data.rfind(b"\n") + 1].decode("ascii", "replace").split("\n")[:-1]
    if len(lines) < 2 or not lines[0].startswith(MAGIC + " ") or not lines[1].startswith("offset,gpu,"):
        return None
    try:
        told = json.loads(lines[0].partition(" ")[2])
    except ValueError:
        return None
    expected = (WINDOW_MS, ACTIVE_PCT, RESERVED_BYTES)
    if not isinstance(told, dict) or (
        tuple(map(told.get, ("window_ms", "active_pct", "reserved_bytes"))) != expected
        or (segment_name is not None and told.get("segment") != segment_name)
    ):
        return None
    rollup = Rollup(header=told)
    names = lines[1].split(",")[2:]
    for line in lines[2:]:
        rolled = _parse(line, names)
        if rolled is None:
            return None  # damage: what is left may lack a window
        rollup.windows.append(rolled)
        rollup.offset = max(rollup.offset, rolled.offset)
        end = int((rolled.sums.get("start_ms") or 0) + WINDOW_MS)
        rollup.until_ms = end if rollup.until_ms is None else max(rollup.until_ms, end)
    return None if segment_size is not None and rollup.offset > segment_size else rollup


def _parse(line: str, names: list[str]) -> Rolled | None:
    cells = line.split(",")
    if len(cells) != len(names) + 2 or not (cells[0].isdigit() and cells[1].isdigit()):
        return None
    sums: dict[str, Number] = {}
    for name, cell in zip(names, cells[2:], strict=True):
        value = number(cell)
        if value is None and cell:
            return None
        sums[name] = int(value) if value is not None and (name.endswith("_ms") or name in _COUNTS) else value
    return Rolled(int(cells[0]), int(cells[1]), sums)


_COUNTS = frozenset({"samples", "counter_resets", "extra_samples"})


def build(segment_path: str, *, whole: bool = True) -> list[Rolled]:
    """The windows of a segment, from its samples; `whole` says that nobody writes it any more.

    Nothing where its clock was set back by more than an interval.
    """
    reader = Reader(segment_path)
    roller: Roller | None = None
    windows: list[Rolled] = []
    while True:
        at = reader.offset
        piece = reader.read(at + _AT_ONCE if reader.header else None)
        if reader.header is None:
            return []
        if roller is None:
            roller = Roller(round(reader.header.interval_s * 1000), baselines(reader.header))
        place = {name: at for at, name in enumerate(reader.columns)}
        wanted = [(name, place[name]) for name in USED if name in place]
        for offset, row in zip(piece.offsets, piece.rows, strict=True):
            roller.add(int(row[4]), int(row[1]), row[5], {name: number(row[at]) for name, at in wanted}, offset)
        windows += roller.take()
        if piece.end == at or piece.end <= piece.start:
            break
    if roller.stepped:
        return []
    return windows + (roller.close(reader.offset) if whole else [])


_AT_ONCE = 1 << 20


def baselines(header: Header) -> dict[int, float]:
    """What each device held when nobody used it, where that is known."""
    return {slot.n: float(slot.baseline_bytes) for slot in header.slots if slot.baseline_bytes is not None}


def refresh(segment_path: str, files: Files | None = None, *, whole: bool = True) -> Rollup:
    """The roll-up of a segment, made anew and published where it is missing or stale. Raises OSError."""
    files = files or Files()
    path, name = rollup_path(segment_path), os.path.basename(segment_path)
    found = load(path, name, files.size(segment_path))
    if found is not None:
        return found
    windows = build(segment_path, whole=whole)
    reader = Reader(segment_path)
    reader.read(0)
    if reader.header is None or not windows:
        return Rollup(header={})
    text = "\n".join([*head_lines(name, reader.header), *lines_of(windows)]) + "\n"
    publish_file(files, path, text.encode("ascii"), durable=False)
    return load(path, name) or Rollup(header={})


def lines_of(windows: Iterable[Rolled]) -> list[str]:
    """Windows as lines."""
    return [one.line() for one in windows]
