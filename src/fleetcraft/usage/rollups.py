"""Roll-ups read in columns: the sums of whole windows within a span, one window for each GPU, and where they end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import compress
from math import isfinite

from fleetcraft.usage.api import Gpu, Window
from fleetcraft.usage.holding import ACTIVE_PCT, RESERVED_BYTES, WINDOW_MS

MAGIC = "#fleetcraft.telemetry.rollup/1"
_LARGEST = frozenset({"memory_max_bytes", "memory_total_bytes", "own_memory_max_bytes", "last_ms"})
_WHOLE = frozenset({"observed_ms", "samples", "counter_resets", "extra_samples"})


@dataclass(slots=True, kw_only=True)
class Rollup:
    """The cells of a roll-up, by column."""

    columns: Mapping[str, list[str]]
    starts: list[int]
    until_ms: int  # the windows end here
    offset: int  # the segment is read on from here

    def windows(self, gpus: Mapping[str, Gpu], since_ms: int | None, until_ms: int | None) -> Iterator[Window]:
        """Every window that lies whole in [since, until)."""
        for at in self._places(since_ms, until_ms):
            window = Window(gpu=_gpu(gpus, self.columns["gpu"][at]), start_ms=self.starts[at], length_ms=WINDOW_MS)
            for name, cells in self.columns.items():
                if name in _SUMS and cells[at]:
                    setattr(window, name, _value(name, float(cells[at])))
            yield window

    def totals(self, gpus: Mapping[str, Gpu], since_ms: int | None, until_ms: int | None) -> list[Window]:
        """The same windows, added up for each GPU."""
        places = self._places(since_ms, until_ms)
        if not places:
            return []
        inside = None if len(places) == len(self.starts) else places
        picked = {
            name: cells if inside is None else [cells[at] for at in inside]
            for name, cells in self.columns.items()
            if name in _SUMS or name == "gpu"
        }
        numbers = picked.pop("gpu")
        totals = []
        for number in sorted(set(numbers)):
            mine = None if numbers.count(number) == len(numbers) else [other == number for other in numbers]
            window = Window(gpu=_gpu(gpus, number), start_ms=0, length_ms=0)
            for name, cells in picked.items():
                _add(window, name, cells if mine is None else list(compress(cells, mine)))
            totals.append(window)
        return totals

    def _places(self, since_ms: int | None, until_ms: int | None) -> list[int]:
        return [
            at
            for at, start in enumerate(self.starts)
            if (since_ms is None or start >= since_ms) and (until_ms is None or start + WINDOW_MS <= until_ms)
        ]


_SUMS = frozenset(field.name for field in fields(Window)) - {"gpu", "start_ms", "length_ms", "expected_ms"}


def _gpu(gpus: Mapping[str, Gpu], number: str) -> Gpu:
    found = gpus.get(number)
    if found is None:
        raise ValueError(f"it speaks of a device {number} that its segment does not name")
    return found


def _add(window: Window, name: str, cells: list[str]) -> None:
    if cells.count("0") == len(cells):
        if name in _LARGEST:
            setattr(window, name, 0)
        return  # what a device does not tell is 0 in every window
    known = cells if "" not in cells else list(filter(None, cells))
    if not known:
        return
    values = map(float, known)
    if name in _LARGEST:
        setattr(window, name, _value(name, max(values)))
    elif name == "first_ms":
        window.first_ms = min(filter(None, map(int, values)), default=0)
    else:
        setattr(window, name, _value(name, sum(values)))


def _value(name: str, value: float) -> float | int:
    if not isfinite(value):
        raise ValueError(f"{name} is no number")
    return int(value) if name.endswith("_ms") or name in _WHOLE else value


def parse(data: bytes, segment_name: str) -> Rollup | None:
    """The windows of a roll-up; None where it is none of ours, damaged, or of other thresholds than these."""
    head, _, rest = data[: data.rfind(b"\n") + 1].decode("ascii", "replace").partition("\n")
    names, _, text = rest.partition("\n")
    if not head.startswith(MAGIC + " "):
        return None
    try:
        told = json.loads(head.partition(" ")[2])
    except ValueError:
        return None
    expected = (segment_name, WINDOW_MS, ACTIVE_PCT, RESERVED_BYTES)
    keys = ("segment", "window_ms", "active_pct", "reserved_bytes")
    if not isinstance(told, dict) or tuple(map(told.get, keys)) != expected:
        return None
    listed = names.split(",")
    width, text = len(listed), text.strip("\n")
    flat = text.replace("\n", ",").split(",") if text else []
    if len(flat) != width * (text.count("\n") + 1 if text else 0) or not {"gpu", "start_ms", *_SUMS} <= set(listed):
        return None
    columns = {name: flat[at::width] for at, name in enumerate(listed)}
    try:
        starts, offset = list(map(int, columns["start_ms"])), max(map(int, columns["offset"]), default=0)
    except (ValueError, KeyError):
        return None
    return Rollup(columns=columns, starts=starts, until_ms=max(starts) + WINDOW_MS, offset=offset) if starts else None
