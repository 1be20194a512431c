"""Lines of a segment as columns: one series for each GPU, and the statements between the samples.

Only the columns that sums need become numbers. A line that is no row is counted, and never ends the reading.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from typing import Any

from fleetcraft.telemetry.segment_read import LARGEST
from fleetcraft.telemetry.segment_read import number as number_of
from fleetcraft.usage.api import Context, Gpu
from fleetcraft.usage.series import LEVELS, Column, Series

MAGIC = "#fleetcraft.telemetry.segment/"
_CLOCK_STEP_MS = 1000
_LONGEST_S = 86_400.0  # of logs that were taken in; a sampler's is a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a sampler said between its samples: since when a driver hangs, that devices changed, and the like."""

    host: str
    kind: str
    utc_ms: int | None
    body: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Segment:
    """What the lines that were read say."""

    host: str
    context: Context
    devices: list[Mapping[str, Any]]
    head: Mapping[str, Any]
    series: list[Series] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    malformed: int = 0
    clock_stepped_ms: int = 0

    def numbered(self) -> dict[str, Mapping[str, Any]]:
        """The devices by the number that rows have."""
        return {str(device.get("n", at)): device for at, device in enumerate(self.devices)}

    def learn(self, statement: Mapping[str, Any]) -> None:
        """Take in devices that came later; a number is never given to another one, so those that left stay known."""
        told = statement.get("devices")
        if isinstance(told, list):
            later = [one for one in map(device_of, told) if one is not None]
            numbers = [one.get("n") for one in later]
            self.devices = [*(one for one in self.devices if one.get("n") not in numbers), *later]

    @property
    def ended(self) -> bool:
        """True where the sampler said that it stopped."""
        return any(one.kind == "end" for one in self.statements)

    @property
    def began_ms(self) -> int | None:
        """When the sampler began."""
        value = self.head.get("started_utc_ms")
        return value if isinstance(value, int) else None


def stamp_of(line: bytes) -> int | None:
    """The UTC stamp of a row; None for a statement or a damaged line."""
    if line[:1] == b"#":
        return None
    cells = line.split(b",", 2)
    if len(cells) < 3 or not cells[1].isdigit():
        return None
    return int(cells[1])


def read_segment(head: bytes, body: bytes, path: str, host: str) -> Segment:
    """The segment whose first two lines are `head`. Raises ValueError where they are no head of ours."""
    first, _, second = head.decode("utf-8", "replace").partition("\n")
    if not first.startswith(MAGIC):
        raise ValueError("its first line is not that of a telemetry segment")
    told = json.loads(first.partition(" ")[2])
    names = second.strip().split(",")
    if not {"utc_ms", "mono_ms", "gpu", "state"} <= set(names):
        raise ValueError("its second line does not name the columns of a telemetry segment")
    segment = begin_segment(told, host)
    text = body.decode("utf-8", "replace")
    if text.startswith("#") or "\n#" in text:
        text = _statements(text, segment)
    flat = _cells(text, len(names), segment)
    if flat:
        _series(flat, names, segment, path)
    return segment


def begin_segment(head: Any, host: str) -> Segment:
    """What a first line says. Raises ValueError where it is no head: a damaged file is not a wrong call."""
    if not isinstance(head, dict):
        raise ValueError("its first line says nothing")  # noqa: TRY004
    told = head.get("devices") or []
    if not isinstance(told, list):
        raise ValueError("its first line lists no devices")  # noqa: TRY004
    named = head.get("host")
    return Segment(
        host=named if isinstance(named, str) and named else host,
        context=context_of(head),
        devices=[one for one in map(device_of, told) if one is not None],
        head=head,
    )


def device_of(told: Any) -> Mapping[str, Any] | None:
    """A device as a head or a statement lists it, without what cannot be; None for what is none."""
    if not isinstance(told, dict):
        return None
    return {name: value for name, value in told.items() if name not in _SIZES or _is_size(value)}


# Of a device, what is reckoned with.
_SIZES = frozenset({"memory_bytes", "baseline_bytes", "multiprocessors", "max_sm_clock_mhz"})


def _is_size(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < LARGEST


def context_of(head: Mapping[str, Any]) -> Context:
    """Under which job and fleet a segment was written. Raises ValueError for an interval that cannot be."""
    interval = head.get("interval_s") or 10.0
    if not isinstance(interval, (int, float)) or not 0 < interval <= _LONGEST_S:
        raise ValueError(f"its interval is {interval!r} s")
    return Context(
        job=str(head.get("job") or ""),
        fleet=str(head.get("fleet") or ""),
        spool=str(head.get("spool") or ""),
        life=str(head.get("life") or ""),
        boot=str(head.get("boot_id") or ""),
        interval_s=float(interval),
        simulated=bool(head.get("simulated")),
    )


def _statements(text: str, segment: Segment) -> str:
    """Take the statements out; what is left is rows."""
    rows = []
    for line in text.split("\n"):
        if not line.startswith("#"):
            rows.append(line)
            continue
        start = line.find("{")
        try:
            body = json.loads(line[start:]) if start >= 0 else None
        except ValueError:
            body = None
        if not isinstance(body, dict):
            segment.malformed += 1
            continue
        kind, stamp = str(body.pop("t", "")), body.pop("utc_ms", None)
        stamp = stamp if isinstance(stamp, int) else None
        segment.statements.append(Statement(host=segment.host, kind=kind, utc_ms=stamp, body=body))
        segment.learn(body)
    return "\n".join(rows)


def _cells(text: str, width: int, segment: Segment) -> list[str]:
    """All cells of all rows, one after the other; rows of another width are counted and left out."""
    text = text.strip("\n")
    if not text:
        return []
    count = text.count("\n") + 1
    flat = text.replace("\n", ",").split(",")
    # Rows of a wrong width could make up for one another, so the first cells must be numbers too.
    if len(flat) == count * width and "" not in flat[1::width] and all(map(str.isdigit, flat[1::width])):
        return flat
    rows = [line.split(",") for line in text.split("\n")]
    good = [row for row in rows if len(row) == width and row[1].isdigit() and row[2].isdigit()]
    segment.malformed += sum(1 for row in rows if row != [""]) - len(good)
    return [cell for row in good for cell in row]


def _series(flat: list[str], names: Sequence[str], segment: Segment, path: str) -> None:
    width, place = len(names), {name: at for at, name in enumerate(names)}
    stamps = _stamps(flat, place, width, segment)
    gpus, states = flat[place["gpu"] :: width], flat[place["state"] :: width]
    wanted = [name for name in LEVELS if name in place]
    raw = {name: flat[place[name] :: width] for name in wanted}
    raw = {name: cells for name, cells in raw.items() if any(cells)}
    devices = segment.numbered()
    for number, pick in _pickers(gpus).items():
        device = devices.get(number, {})
        columns = {name: _numbers(pick(cells)) for name, cells in raw.items()}
        gpu = gpu_of(segment.host, device, number)
        segment.series.append(series_of(segment, device, gpu, path, pick(stamps), columns, pick(states)))


def series_of(
    segment: Segment, device: Mapping[str, Any], gpu: Gpu, path: str, utc_ms: list[int], columns: dict[str, Column],
    states: list[str],
) -> Series:  # fmt: skip
    """The samples of one device of a segment."""
    columns = {name: column for name, column in columns.items() if column.count(None) < len(column)}
    if "memory_total_bytes" not in columns and device.get("memory_bytes"):
        columns["memory_total_bytes"] = [float(device["memory_bytes"])] * len(utc_ms)
    return Series(
        gpu=gpu,
        context=_with_device(segment.context, device),
        path=path,
        interval_ms=round(segment.context.interval_s * 1000),
        utc_ms=utc_ms,
        columns=columns,
        states=states if states.count("ok") < len(states) else None,
        baseline_bytes=_baseline(device),
        began_ms=segment.began_ms,
        ended=segment.ended,
    )


def _pickers(gpus: list[str]) -> dict[str, Callable[[list[Any]], list[Any]]]:
    """For each device, what takes its rows out of a column. Mostly the devices come in the same order always."""
    numbers = sorted(set(gpus))
    count = len(numbers)
    if gpus == (gpus[:count] * (len(gpus) // count + 1))[: len(gpus)]:
        return {number: partial(_every, at=gpus.index(number), count=count) for number in numbers}
    return {number: partial(_where, mine=[gpu == number for gpu in gpus]) for number in numbers}


def _every(cells: list[Any], at: int, count: int) -> list[Any]:
    return cells[at::count]


def _where(cells: list[Any], mine: list[bool]) -> list[Any]:
    return list(compress(cells, mine))


def _stamps(flat: list[str], place: Mapping[str, int], width: int, segment: Segment) -> list[int]:
    """When the samples were taken. Where the wall clock was set, distances are those of the clock that never steps."""
    stamps = list(map(int, flat[place["utc_ms"] :: width]))
    at = place.get("mono_ms")
    if at is None or len(stamps) < 2:
        return stamps
    steady = flat[at::width]
    if not steady[0] or not steady[-1]:
        return stamps
    step = (stamps[-1] - stamps[0]) - (int(steady[-1]) - int(steady[0]))
    if abs(step) <= _CLOCK_STEP_MS:
        return stamps
    segment.clock_stepped_ms = step
    offset = stamps[-1] - int(steady[-1])  # the clock that was set last is the one to believe
    return [int(mono) + offset if mono else stamp for mono, stamp in zip(steady, stamps, strict=True)]


def _numbers(cells: Sequence[str]) -> Column:
    try:
        column: Column = list(map(float, cells))
    except ValueError:
        return [number_of(cell) for cell in cells]
    # One sum finds a NaN, an infinity, or what no GPU could tell.
    is_plain = abs(sum(column)) < LARGEST  # type: ignore[arg-type]  # all are numbers
    return column if is_plain else [number_of(cell) for cell in cells]


def gpu_of(host: str, device: Mapping[str, Any], number: str) -> Gpu:
    """The identity of a device of a segment."""
    index = device.get("index")
    return Gpu(
        host=host,
        uuid=str(device.get("uuid") or f"gpu{number}"),
        index=index if isinstance(index, int) else int(number) if number.isdigit() else 0,
    )


def _with_device(context: Context, device: Mapping[str, Any]) -> Context:
    return replace(
        context,
        device_name=str(device.get("name") or ""),
        multiprocessors=device.get("multiprocessors"),
        max_sm_clock_mhz=device.get("max_sm_clock_mhz"),
    )


def _baseline(device: Mapping[str, Any]) -> float:
    """What the device held when nobody used it, where the sampler wrote that down."""
    value = device.get("baseline_bytes")
    return float(value) if isinstance(value, (int, float)) else 0.0
