"""The values of the ledger: classes of GPU time in their order, rows, wastes, and what each task used.

All times are whole milliseconds, so that the classes add up to the allocation exactly and in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fleetcraft.usage.api import Gpu


class Class(StrEnum):
    """What became of a stretch of an allocated GPU. The order is that of bars and legends."""

    USEFUL = "useful"  # an attempt that ended done and counts
    OPEN = "open"  # an attempt that runs; what it was good for is not known yet
    LOADING = "loading"  # an attempt that ended done, before its GPU was first active; a resident that loads
    STARTING = "starting"  # no worker was up yet
    FAILED = "failed"
    LOST = "lost"  # an attempt that ended by no fault of its task
    DISCARDED = "discarded"  # cancelled, or a second result of one task
    HELD = "held_timed"  # kept empty beside a task that has the node to itself
    RESERVED = "reserved_idle"  # memory is held and nothing is computed
    FREE_WAITING = "free_waiting"  # nothing held it while compatible work waited
    FREE = "free_idle"  # nothing held it, and no compatible work was known
    TAIL = "drained_tail"  # the worker took nothing more, or had left; the job held on
    UNKNOWN = "unknown"


TEXT: Mapping[Class, str] = {
    Class.USEFUL: "useful",
    Class.OPEN: "running, outcome open",
    Class.LOADING: "loading",
    Class.STARTING: "starting",
    Class.FAILED: "failed attempt",
    Class.LOST: "lost attempt",
    Class.DISCARDED: "cancelled or duplicate",
    Class.HELD: "held for a timed task",
    Class.RESERVED: "reserved, idle",
    Class.FREE_WAITING: "free, work waiting",
    Class.FREE: "free, no work waiting",
    Class.TAIL: "drained tail",
    Class.UNKNOWN: "unknown",
}
# What nobody would call a waste: work that counts, and work that may yet.
NO_WASTE = frozenset({Class.USEFUL, Class.OPEN})

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One GPU, or the slots of one worker, in one allocation: what is to be accounted for."""

    gpu: Gpu
    spans: tuple[Interval, ...]  # when it was allocated
    job: str = ""
    fleet: str = ""
    units: int = 1  # slots; a GPU is one, and those who share it share its time
    is_gpu: bool = True
    is_open: bool = False  # the allocation goes on
    named: bool = True  # false: the scheduler counts it and no worker told which one it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """One worker life, or a sampler alone, beside a line."""

    start_ms: int
    up_ms: int | None  # None: it never came up
    end_ms: int  # of the last that was heard of it
    orderly: bool = True  # it said itself that it ends, or it lives
    drain_ms: int | None = None  # since when it took nothing more


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One attempt, or the loading of a resident, on a line."""

    start_ms: int
    end_ms: int
    kind: Class  # USEFUL, OPEN, FAILED, LOST, DISCARDED; LOADING for a resident that loads
    task: str = ""
    name: str = ""
    attempt: int = 0
    weight: int = 1000  # thousandths of a GPU, or slots
    count: int = 1  # calls in one record

    @property
    def key(self) -> tuple[str, int, int, int, str, int]:
        """A total order that no reading order changes."""
        return (self.task, self.attempt, self.start_ms, self.end_ms, self.kind.value, self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a timeline. Where tasks share, it is of the one with the larger part."""

    gpu: Gpu
    start_ms: int
    end_ms: int
    kind: Class
    job: str = ""
    task: str = ""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "host": self.gpu.host, "gpu": self.gpu.uuid, "index": self.gpu.index, "start_ms": self.start_ms,
            "end_ms": self.end_ms, "class": self.kind.value, "job": self.job, "task": self.task,
        }  # fmt: skip


@dataclass(slots=True, kw_only=True)
class LedgerRow:
    """Unit-milliseconds by class, of one job, host, GPU or task, or of all."""

    key: str
    label: str = ""
    amounts: dict[Class, int] = field(default_factory=dict)
    observed_ms: int = 0  # of it, covered by samples
    active_ms: int = 0  # of that, with the GPU active
    lines: int = 0

    @property
    def total(self) -> int:
        """All classes together."""
        return sum(self.amounts.values())

    @property
    def coverage(self) -> float | None:
        """The share that samples cover; None of nothing."""
        return self.observed_ms / self.total if self.total else None

    def add(self, kind: Class, amount: int) -> None:
        """Add to one class."""
        if amount:
            self.amounts[kind] = self.amounts.get(kind, 0) + amount

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "key": self.key, "label": self.label, "total_ms": self.total, "lines": self.lines,
            "classes_ms": {kind.value: self.amounts.get(kind, 0) for kind in Class},
            "observed_ms": self.observed_ms, "active_ms": self.active_ms,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """One of the largest losses, with what reduces it."""

    kind: Class
    ms: int
    share: float
    text: str
    remedy: str

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "class": self.kind.value, "ms": self.ms, "share": round(self.share, 6), "text": self.text,
            "remedy": self.remedy,
        }  # fmt: skip


@dataclass(slots=True, kw_only=True)
class TaskUse:
    """What one task used over all its attempts. Device values are shared fairly among those who shared the device."""

    task: str
    name: str = ""
    attempts: int = 0
    amounts: dict[Class, int] = field(default_factory=dict)
    wall_ms: int = 0  # of its attempts, whatever they shared
    observed_ms: int = 0  # of its share
    active_ms: int = 0
    memory_peak_bytes: float | None = None  # of the device, while it held it
    joules_held: float | None = None  # power, held from sample to sample
    joules_counter: float | None = None  # from the device's energy counter, of `counter_ms`
    counter_ms: int = 0  # of its share, for which the counter tells
    shared: bool = False  # with others: the memory peak is of all of them
    gpus: tuple[str, ...] = ()

    @property
    def held_ms(self) -> int:
        """Its share of the devices' time."""
        return sum(self.amounts.values())

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "task": self.task, "name": self.name, "attempts": self.attempts, "held_ms": self.held_ms,
            "classes_ms": {kind.value: amount for kind, amount in sorted(self.amounts.items())},
            "wall_ms": self.wall_ms, "observed_ms": self.observed_ms,
            "active_ms": self.active_ms if self.observed_ms else None,
            "memory_peak_bytes": self.memory_peak_bytes, "joules_held": _rounded(self.joules_held),
            "joules_counter": _rounded(self.joules_counter), "counter_ms": self.counter_ms, "shared": self.shared,
            "gpus": list(self.gpus),
        }  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The whole account. `unit` is GPU or slot."""

    unit: str
    by: str
    allocated_ms: int
    rows: tuple[LedgerRow, ...]
    total: LedgerRow
    wastes: tuple[Waste, ...] = ()
    tasks: tuple[TaskUse, ...] = ()
    spans: tuple[Span, ...] = ()
    since_ms: int = 0
    until_ms: int = 0
    unknown: dict[str, int] = field(default_factory=dict)  # why, and how much
    waiting: tuple[Interval, ...] = ()  # when compatible work waited somewhere
    sources: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    definition: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def adds_up(self) -> bool:
        """True when classes and rows are the allocation, to the millisecond."""
        return self.total.total == self.allocated_ms == sum(row.total for row in self.rows)

    def check_line(self) -> str:
        """The sum of the classes beside the allocation, in words."""
        unit, total = f"{self.unit}-seconds", f"{self.total.total / 1000:,.3f}"
        if self.adds_up:
            return f"classes add up to {total} {unit} = allocation"
        return f"classes add up to {total} {unit}, but {self.allocated_ms / 1000:,.3f} were allocated"

    def as_json(self, *, spans: bool = True) -> dict[str, Any]:
        """For programs."""
        return {
            "unit": self.unit, "by": self.by, "since_ms": self.since_ms, "until_ms": self.until_ms,
            "allocated_ms": self.allocated_ms, "adds_up": self.adds_up, "check": self.check_line(),
            "total": self.total.as_json(), "rows": [row.as_json() for row in self.rows],
            "wastes": [waste.as_json() for waste in self.wastes], "tasks": [task.as_json() for task in self.tasks],
            "unknown_ms": dict(sorted(self.unknown.items())), "waiting_ms": [list(pair) for pair in self.waiting],
            "spans": [span.as_json() for span in self.spans] if spans else [],
            "sources": list(self.sources), "problems": list(self.problems), "definition": dict(self.definition),
        }  # fmt: skip


def share(amount: int, weights: Iterable[int]) -> list[int]:
    """Whole parts of `amount` by weight that add up to it; what division leaves goes to the largest remainders."""
    listed = list(weights)
    whole = sum(listed)
    if whole <= 0:
        listed, whole = [1] * len(listed), len(listed)
    parts = [amount * weight // whole for weight in listed]
    left = amount - sum(parts)
    if left:
        order = sorted(range(len(listed)), key=lambda place: (-(amount * listed[place] % whole), place))
        for place in order[:left]:
            parts[place] += 1
    return parts
