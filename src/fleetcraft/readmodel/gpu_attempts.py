"""Every attempt in the journals of a spool with its time, slot, GPUs and end; and what each life tells of itself.

A slot runs one thing at a time, so attempts of one slot never overlap here whatever their stamps say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.errors import SpoolDamaged
from fleetcraft.core.names import TaskId
from fleetcraft.core.resources import Request
from fleetcraft.core.states import LossCause, Outcome, WorkerState
from fleetcraft.readmodel.lives import view_life
from fleetcraft.readmodel.records import scan
from fleetcraft.spool.host import Identity
from fleetcraft.spool.ledger import Batch
from fleetcraft.spool.life import read_identity
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool
from fleetcraft.usage.ledger_api import Class, Interval

_NEEDLES = (b'"t":"started"', b'"t":"receipt"', b'"t":"lost"', b'"t":"note"')
# Values, times of single calls and proofs of outputs are the largest part of a journal, and say nothing here.
_KEPT = (
    "t", "b", "i", "k", "g", "a", "s", "at", "end", "o", "final", "cause", "retry_in_s", "gpus", "life", "what",
    "capacity", "load_s", "progress",
)  # fmt: skip
_FATES = (Class.USEFUL, Class.OPEN, Class.FAILED, Class.DISCARDED)


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt, or several calls that one record speaks of."""

    life: str
    batch: int
    index: int
    gen: int
    attempt: int
    count: int = 1
    slot: int = -1
    gpus: tuple[str, ...] = ()
    start_ms: int = 0
    end_ms: int | None = None  # None: no record ends it
    outcome: str = ""
    cause: str = ""
    is_final: bool = False
    retry_ms: int = 0  # how long it had to wait before the next one
    kind: Class = Class.OPEN
    request: Request = field(default_factory=Request)
    name: str = ""
    flops: float | None = None  # that it reported itself, up to its end or the last heartbeat

    @property
    def task(self) -> str:
        """Its id, as people write it."""
        return f"{self.batch}.{self.index}" if self.count == 1 else f"{self.batch}.{self.index}+{self.count - 1}"


@dataclass(slots=True, kw_only=True)
class LifeFacts:
    """One worker life: where, when, with what."""

    life: str
    host: str = ""
    job: str = ""
    start_ms: int = 0
    up_ms: int | None = None
    end_ms: int = 0  # the last that was heard of it
    orderly: bool = False
    alive: bool = False
    gone: bool = False  # it is known to have ended; one that is only silent is neither
    drain_ms: int | None = None
    cpus: int | None = None
    devices: tuple[tuple[str, int | None], ...] = ()  # UUID and memory
    attempts: list[Attempt] = field(default_factory=list)
    loads: list[tuple[int, Interval]] = field(default_factory=list)  # slot, when a resident loaded on it
    reported: dict[tuple[str, int], float] = field(default_factory=dict)  # FLOPs by task and attempt in the heartbeat


@dataclass(slots=True)
class Journals:
    """Everything that the journals of a spool tell about time."""

    lives: dict[str, LifeFacts] = field(default_factory=dict)
    starts: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)  # ms, batch, index, count, gen, no.

    @property
    def attempts(self) -> Iterable[Attempt]:
        """Of all lives."""
        return (attempt for life in self.lives.values() for attempt in life.attempts)


def read_journals(spool: Spool, reader: SpoolFold, now_ms: int) -> Journals:
    """Read every journal once; `reader` must be fresh. Raises OSError."""
    found = Journals()
    by_life: dict[str, dict[int, dict[str, Any]]] = {}
    for life, record in scan(spool, _NEEDLES):
        # A record may be read from a folder, a segment and an adopted copy; its number tells that it is one.
        kept = {name: record[name] for name in _KEPT if name in record}
        by_life.setdefault(life, {})[int(record.get("n", 0))] = kept
    lost: dict[str, list[dict[str, Any]]] = {}
    for records in by_life.values():
        for record in records.values():
            if record.get("t") == "lost":
                lost.setdefault(str(record.get("life", "")), []).append(record)
    for life, records in by_life.items():
        facts = _life(spool, reader, life, now_ms)
        if facts is None:
            continue
        found.lives[life] = facts
        _Replay(facts, found.starts).run([records[number] for number in sorted(records)], lost.get(life, []))
    for life in reader.lives:
        # One that wrote nothing yet holds its GPUs all the same.
        if life not in found.lives and (facts := _life(spool, reader, life, now_ms)) is not None:
            found.lives[life] = facts
    _settle(spool, reader, found)
    return found


def _life(spool: Spool, reader: SpoolFold, life: str, now_ms: int) -> LifeFacts | None:
    reading = reader.lives.get(life)
    identity: Identity | None = reading.identity if reading is not None else None
    identity = identity or read_identity(spool.files, spool.layout.life(life))
    if identity is None or identity.kind != "worker" or reading is None:
        return None
    facts = LifeFacts(life=life, host=identity.host, job=identity.job_id or "", start_ms=ms(identity.created_utc))
    beat = reading.heartbeat or {}
    state = view_life(reading, reader, now_ms / 1000).state
    facts.alive = state in (WorkerState.STARTING, WorkerState.UP, WorkerState.DRAINING, WorkerState.STORAGE_FULL)
    facts.gone = state in (WorkerState.STOPPED, WorkerState.LOST)
    facts.orderly = facts.alive or state is WorkerState.STOPPED
    heard = beat.get("at_utc")
    facts.end_ms = ms(heard) if isinstance(heard, (int, float)) else facts.start_ms
    if facts.alive:
        facts.end_ms = max(facts.end_ms, now_ms)
    _take_capacity(facts, beat.get("capacity"))
    for entry in beat.get("running") or ():
        if isinstance(entry, Mapping) and (flops := flops_of(entry)) is not None and isinstance(entry.get("a"), int):
            facts.reported[str(entry.get("task")), entry["a"]] = flops
    return facts


def flops_of(record: Mapping[str, Any]) -> float | None:
    """The FLOPs that a task reported, from a receipt or a heartbeat's entry; None where it reported none."""
    progress = record.get("progress")
    flops = progress.get("flops") if isinstance(progress, Mapping) else None
    if isinstance(flops, bool) or not isinstance(flops, (int, float)) or not 0 <= flops < float("inf"):
        return None
    return float(flops)


def _take_capacity(facts: LifeFacts, capacity: Any) -> None:
    if not isinstance(capacity, Mapping):
        return
    cpus, gpus = capacity.get("cpus"), capacity.get("gpus")
    facts.cpus = cpus if isinstance(cpus, int) else facts.cpus
    if isinstance(gpus, list):
        listed = [gpu for gpu in gpus if isinstance(gpu, Mapping) and isinstance(gpu.get("uuid"), str)]
        facts.devices = tuple((str(gpu["uuid"]), _int(gpu.get("memory_bytes"))) for gpu in listed)


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def ms(seconds: Any) -> int:
    """Whole milliseconds of a time in seconds."""
    return round(float(seconds) * 1000)


@dataclass(slots=True)
class _Replay:
    """One journal in its order: what starts on a slot ends there, or is left open."""

    facts: LifeFacts
    starts: list[tuple[int, int, int, int, int, int]]
    open: dict[int, Attempt] = field(default_factory=dict)  # by slot
    busy_ms: dict[int, int] = field(default_factory=dict)  # by slot: when its last attempt ended

    def run(self, records: Iterable[Mapping[str, Any]], lost: Iterable[Mapping[str, Any]]) -> None:
        """Fill the life's attempts."""
        facts = self.facts
        for record in records:
            kind = record.get("t")
            if kind == "started":
                self._started(record)
            elif kind == "receipt":
                self._receipt(record)
            elif kind == "note":
                self._note(record)
        causes = {(one.get("b"), one.get("g"), one.get("a")): str(one.get("cause", "")) for one in lost}
        if not facts.alive:
            # It wrote that an attempt began, whatever its heartbeat had said before.
            told = [*facts.attempts, *self.open.values()]
            facts.end_ms = max([facts.end_ms, *(one.end_ms or one.start_ms for one in told)])
        for left in self.open.values():
            cause = causes.get((left.batch, left.gen, left.attempt))
            if cause is not None or facts.gone:
                left.outcome, left.cause = Outcome.LOST.value, cause or ""
            if left.outcome or not facts.alive:
                left.end_ms = max(left.start_ms, facts.end_ms)
            left.flops = facts.reported.get((left.task, left.attempt))
            facts.attempts.append(left)

    def _begin(self, record: Mapping[str, Any]) -> Attempt:
        slot = int(record.get("s", -1))
        start_ms = ms(record.get("at", 0))
        return Attempt(
            life=self.facts.life, batch=int(record["b"]), index=int(record["i"]), gen=int(record["g"]),
            attempt=int(record["a"]), count=int(record.get("k", 1)), slot=slot,
            gpus=tuple(map(str, record.get("gpus", ()))), start_ms=max(start_ms, self.busy_ms.get(slot, start_ms)),
        )  # fmt: skip

    def _started(self, record: Mapping[str, Any]) -> None:
        begun = self._begin(record)
        if begun.slot >= 0:
            self.open[begun.slot] = begun
        self.starts.append(
            (ms(record.get("at", 0)), begun.batch, begun.index, begun.count, begun.gen, begun.attempt)
        )  # fmt: skip

    def _receipt(self, record: Mapping[str, Any]) -> None:
        done = self._begin(record)
        end_ms = ms(record.get("end", record.get("at", 0)))
        done.end_ms = max(done.start_ms, end_ms)
        done.outcome, done.cause = str(record.get("o", "")), str(record.get("cause", ""))
        done.is_final = bool(record.get("final"))
        done.flops = flops_of(record)
        done.retry_ms = ms(record.get("retry_in_s", 0) or 0)
        opened = self.open.get(done.slot)
        if opened is not None and (opened.batch, opened.gen, opened.attempt) == (done.batch, done.gen, done.attempt):
            left = opened.index + opened.count - (done.index + done.count)
            if left > 0:
                # The rest of a stretch of calls: the resident goes on with it now.
                opened.index, opened.count, opened.start_ms = done.index + done.count, left, done.end_ms
            else:
                del self.open[done.slot]
            done.gpus = done.gpus or opened.gpus
        self.busy_ms[done.slot] = done.end_ms
        self.facts.attempts.append(done)

    def _note(self, record: Mapping[str, Any]) -> None:
        facts, what, at = self.facts, record.get("what"), record.get("at")
        if what == "up":
            facts.up_ms = ms(at) if at is not None else facts.start_ms
            _take_capacity(facts, record.get("capacity"))
        elif what == "drain" and at is not None:
            facts.drain_ms = facts.drain_ms or ms(at)
        elif what == "loaded" and at is not None:
            slot, end_ms = int(record.get("s", -1)), ms(at)
            start_ms = max(end_ms - ms(record.get("load_s", 0)), self.busy_ms.get(slot, 0))
            if start_ms < end_ms:
                facts.loads.append((slot, (start_ms, end_ms)))
                self.busy_ms[slot] = end_ms


def _settle(spool: Spool, reader: SpoolFold, found: Journals) -> None:
    """Decide what each attempt was good for, and fill in what its batch says."""
    fold = reader.fold
    later: dict[tuple[int, int, int], int] = {}
    for one in found.attempts:
        if one.outcome == Outcome.SUCCEEDED and one.attempt > 1:
            key = (one.batch, one.index, one.gen)
            later[key] = max(later.get(key, 0), one.attempt)
    chains: dict[tuple[int, int, int], list[Attempt]] = {}
    batches = _Batches(spool)
    for one in found.attempts:
        batches.fill(one)
        key = (one.batch, one.index, one.gen)
        one.kind = _kind(one)
        superseded = later.get(key, 0) > one.attempt or fold.generation(one.batch, one.index) > one.gen
        if one.kind is Class.USEFUL and one.count == 1 and superseded:
            one.kind = Class.DISCARDED
        if one.count == 1:
            chains.setdefault(key, []).append(one)
    for chain in chains.values():
        _follow(sorted(chain, key=lambda one: (one.attempt, one.life)))


def _follow(chain: list[Attempt]) -> None:
    """An attempt that saved its state is a part of those that go on from it, and shares their fate."""
    fate = Class.OPEN
    for one in reversed(chain):
        if one.outcome == Outcome.LOST and one.cause == LossCause.CHECKPOINTED:
            one.kind = fate
        elif one.kind in _FATES:
            fate = one.kind


def _kind(one: Attempt) -> Class:
    if not one.outcome:
        return Class.OPEN
    if one.outcome == Outcome.SUCCEEDED:
        return Class.USEFUL
    if one.outcome in (Outcome.LOST, Outcome.ABANDONED):
        return Class.LOST
    return Class.DISCARDED if one.outcome in (Outcome.CANCELLED, Outcome.DUPLICATE) else Class.FAILED


_BLOCK = 1024


@dataclass(slots=True)
class _Batches:
    """Request and name of tasks; names are read in blocks, since every open of a file is a question to a server."""

    spool: Spool
    names: dict[tuple[int, int], list[str]] = field(default_factory=dict)

    def fill(self, one: Attempt) -> None:
        """Write into an attempt what its batch says; a batch that is not there any more says nothing."""
        located = self.spool.locate(TaskId(one.batch, one.index))
        if located is None:
            return
        batch, position = located
        one.request = batch.request
        block, place = divmod(position, _BLOCK)
        names = self.names.get((batch.number, block))
        if names is None:
            names = self.names[batch.number, block] = _names(batch, block)
        one.name = names[place] if one.count == 1 else f"{names[place]} and {one.count - 1} more"


def _names(batch: Batch, block: int) -> list[str]:
    """The names of one block; a damaged ledger leaves them away, since seconds count without names too."""
    start, stop = block * _BLOCK, min((block + 1) * _BLOCK, batch.count)
    try:
        return [str(json.loads(line).get("name", "")) for line in batch.lines(start, stop)]
    except (SpoolDamaged, ValueError):
        return [""] * (stop - start)
