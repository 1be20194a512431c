"""What a figure shows, before anything is drawn: lines over time, bars of shares, cells of a timeline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetcraft.usage.ledger_api import TEXT, Class
from fleetcraft.usage.timeline import ACTIVITIES

GIB = 1 << 30
HOUR_MS = 3_600_000
HOURS_FROM_MS = 36_000_000
# Hues that people with any colour vision tell apart; the second of each pair is hatched.
STYLES: Mapping[str, tuple[str, bool]] = {
    "useful": ("#009e73", False), "open": ("#009e73", True),
    "loading": ("#56b4e9", False), "starting": ("#56b4e9", True),
    "failed": ("#d55e00", False), "lost": ("#d55e00", True),
    "discarded": ("#cc79a7", False), "held_timed": ("#cc79a7", True),
    "reserved_idle": ("#e69f00", False), "free_waiting": ("#e69f00", True),
    "free_idle": ("#b4bac1", False), "drained_tail": ("#b4bac1", True), "unknown": ("#5b6570", True),
    "active": ("#009e73", False), "reserved": ("#e69f00", False), "free": ("#b4bac1", False),
    "unclear": ("#5b6570", True),
}  # fmt: skip
WORDS: Mapping[str, str] = {**{kind.value: TEXT[kind] for kind in Class}, **ACTIVITIES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """One quantity over time; each run is drawn for itself, so that a gap stays open."""

    name: str
    title: str
    unit: str
    runs: tuple[tuple[tuple[int, float], ...], ...]
    length_ms: int
    top: float
    since_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Shares of a whole, one bar for each line."""

    name: str
    title: str
    unit: str
    short: str
    parts: tuple[tuple[str, float], ...]  # kind, amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A row for each GPU, in cells by kind."""

    name: str
    title: str
    rows: tuple[tuple[str, tuple[tuple[int, int, str], ...]], ...]
    since_ms: int
    until_ms: int


Figure = Lines | Bars | Timeline
_QUANTITIES = (
    ("utilization", "Utilization", "%", "util_pct", 1.0),
    ("memory", "Memory in use per GPU", "GiB", "memory_bytes", 1.0 / GIB),
    ("power", "Power per GPU", "W", "power_w", 1.0),
    ("energy", "Energy per bin, all GPUs", "kWh", "energy_kwh", 1.0),
    ("gpus", "GPUs seen", "", "gpus", 1.0),
)


def in_hours(document: Mapping[str, Any]) -> bool:
    """Whether amounts of time are told in hours, or, where they are small, in seconds."""
    amounts = [sum(document["activity_ms"].values()), *(ledger["allocated_ms"] for ledger in document["ledgers"])]
    return bool(max(amounts) >= HOURS_FROM_MS)


def figures_of(document: Mapping[str, Any]) -> list[Figure]:
    """Every figure of a report, in the order of the page."""
    word, short, size_ms = ("hours", "h", HOUR_MS) if in_hours(document) else ("seconds", "s", 1000)
    found: list[Figure] = []
    since_ms, until_ms = document["since_ms"], document["until_ms"]
    if document["timelines"]:
        rows = tuple((one["label"], tuple(map(tuple, one["cells"]))) for one in document["timelines"])
        found.append(Timeline(name="timeline", title="Timeline", rows=rows, since_ms=since_ms, until_ms=until_ms))
    for ledger in document["ledgers"]:
        parts = [(kind, amount / size_ms) for kind, amount in ledger["classes_ms"].items() if amount]
        if not parts:
            continue
        unit = f"{ledger['unit']}-{word}"
        found.append(
            Bars(
                name=f"ledger-{ledger['unit'].lower()}",
                title=f"{ledger['unit']} ledger",
                unit=unit,
                short=short,
                parts=tuple(parts),
            )
        )
    if any(document["activity_ms"].values()):
        parts = [(kind, amount / size_ms) for kind, amount in document["activity_ms"].items() if amount]
        found.append(
            Bars(name="activity", title="What samples saw", unit=f"GPU-{word}", short=short, parts=tuple(parts))
        )
    for name, title, given, key, factor in _QUANTITIES:
        unit = given
        runs = _runs(document["bins"], key, factor, document["length_ms"])
        if runs:
            most = max(value for run in runs for _, value in run)
            if unit == "kWh" and most < 0.1:
                unit, most = "Wh", most * 1000
                runs = tuple(tuple((at, value * 1000) for at, value in run) for run in runs)
            found.append(
                Lines(
                    name=name, title=title, unit=unit, runs=runs, length_ms=document["length_ms"],
                    top=100.0 if unit == "%" else _round_up(most), since_ms=since_ms, until_ms=until_ms,
                )
            )  # fmt: skip
    return found


def _runs(
    bins: Sequence[Mapping[str, Any]], key: str, factor: float, length_ms: int
) -> tuple[tuple[tuple[int, float], ...], ...]:
    runs: list[list[tuple[int, float]]] = []
    for one in bins:
        if one[key] is None:
            continue
        if not runs or runs[-1][-1][0] + length_ms != one["start_ms"]:
            runs.append([])
        runs[-1].append((one["start_ms"], one[key] * factor))
    return tuple(map(tuple, runs))


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5, 10 times a power of ten."""
    if value <= 0:
        return 1.0
    size = 1.0
    while size * 10 < value:
        size *= 10
    while size > value:
        size /= 10
    return next(size * step for step in (1, 2, 2.5, 4, 5, 8, 10) if size * step >= value * 0.9999)


def ticks(since_ms: int, until_ms: int, most: int = 8) -> list[tuple[int, str]]:
    """Round moments within a span, with their labels in UTC."""
    span_ms = max(1, until_ms - since_ms)
    steps_s = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
    step_ms = next((one * 1000 for one in steps_s if span_ms / (one * 1000) <= most), 0)
    if not step_ms:
        step_ms = -(-span_ms // (most * 86_400_000)) * 86_400_000
    form = "%m-%d" if step_ms >= 86_400_000 else "%m-%d %H:%M" if span_ms > 86_400_000 else "%H:%M"
    form = "%H:%M:%S" if step_ms < 60_000 else form
    first = -(-since_ms // step_ms) * step_ms
    return [(at, time.strftime(form, time.gmtime(at / 1000))) for at in range(first, until_ms + 1, step_ms)]
