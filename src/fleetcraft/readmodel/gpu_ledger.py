"""The ledger of a spool, its fleets or a job: allocations, attempts, samples and the queue joined, line by line.

Nothing here decides a class; that is `usage.ledger`. Here it is decided which evidence belongs to which line.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleetcraft.core.errors import UsageError
from fleetcraft.fleet.names import FleetFolder
from fleetcraft.fleet.records import RecordLog, list_fleets
from fleetcraft.fleet.state import FleetState, fold
from fleetcraft.readmodel.gpu_allocations import Stay, lines_of, read_allocations
from fleetcraft.readmodel.gpu_attempts import Attempt, Journals, LifeFacts, ms, read_journals
from fleetcraft.readmodel.gpu_caveats import held_twice, outside, sources_of
from fleetcraft.readmodel.gpu_samples import Samples, times
from fleetcraft.readmodel.gpu_sources import root_of
from fleetcraft.readmodel.gpu_waiting import Queue, Shape, read_queue, read_requests
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool
from fleetcraft.usage.api import Gpu
from fleetcraft.usage.ledger import Evidence
from fleetcraft.usage.ledger_api import Class, Hold, Interval, Ledger, Line, Presence
from fleetcraft.usage.ledger_profile import clip, union
from fleetcraft.usage.ledger_sum import GROUPINGS, add_up
from fleetcraft.usage.series import Series
from fleetcraft.usage.sources import find, in_root

_WHOLE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a ledger is wanted of. Times are UTC milliseconds."""

    fleet: str | None = None
    job: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    now_ms: int
    by: str = "fleet"
    telemetry: tuple[str, ...] = ()  # files and folders instead of the spool's own

    def __post_init__(self) -> None:
        if self.by not in GROUPINGS:
            raise UsageError(f"--by {self.by!r} must be one of {', '.join(GROUPINGS)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledgers:
    """The ledger of GPUs, and that of slots without one. None where nothing of the kind was allocated."""

    gpu: Ledger | None
    slots: Ledger | None


@dataclass(slots=True)
class _Join:
    asked: Asked
    journals: Journals
    queue: Queue
    samples: Samples
    drains: list[tuple[int, frozenset[str] | None]]  # when, and which lives; None: all
    waits: dict[tuple[Shape, bool], list[Interval]] = field(default_factory=dict)
    used: list[Interval] = field(default_factory=list)

    def of_stay(self, stay: Stay, problems: list[str]) -> list[Evidence]:
        """Everything about the lines of one stay."""
        sampled: dict[str, list[Interval]] = {}
        if not stay.lives:
            sampled = self.samples.devices(stay.host, stay.span)
        found = []
        for place, counted in enumerate(lines_of(stay, problems)):
            line, lone = counted, sorted(sampled)[place] if place < len(sampled) and counted.is_gpu else ""
            if lone:
                # A node that is held without a worker: its sampler says which GPUs there are.
                line = replace(counted, gpu=Gpu(host=stay.host, uuid=lone, index=place), named=True)
            found.append(self._evidence(line, stay, sampled.get(lone, [])))
        return found

    def _evidence(self, line: Line, stay: Stay, seen: Sequence[Interval]) -> Evidence:
        presences = [self._presence(life) for life in stay.lives]
        presences += [Presence(start_ms=low, up_ms=low, end_ms=high) for low, high in seen]
        mine = [attempt for life in stay.lives for attempt in life.attempts]
        holds = [_hold(attempt, line, stay) for attempt in mine if _is_on(attempt, line)]
        for life in stay.lives:
            holds += _loads(life, line)
        kept = [
            (attempt.start_ms, _end(attempt, stay))
            for attempt in mine
            if attempt.request.exclusive and not (line.is_gpu and _is_on(attempt, line))
        ]
        return Evidence(
            line=line, presences=presences, holds=[hold for hold in holds if hold is not None], kept=kept,
            waiting=self._waiting(line, stay), profile=self.samples.profile(line.gpu.host, line.gpu.uuid),
        )  # fmt: skip

    def _presence(self, life: LifeFacts) -> Presence:
        told = [moment for moment, lives in self.drains if lives is None or life.life in lives]
        drained = [moment for moment in (life.drain_ms, *told) if moment is not None and moment < life.end_ms]
        return Presence(
            start_ms=life.start_ms, up_ms=life.up_ms, end_ms=life.end_ms, orderly=life.orderly,
            drain_ms=min((max(moment, life.start_ms) for moment in drained), default=None),
        )  # fmt: skip

    def _waiting(self, line: Line, stay: Stay) -> list[Interval]:
        cpus = max((life.cpus for life in stay.lives if life.cpus), default=1 << 20)
        sizes = [memory for memory in stay.devices.values() if memory is not None]
        shape = Shape(len(stay.devices), cpus, max(sizes, default=None))
        key = (shape, line.is_gpu)
        if key not in self.waits:
            self.waits[key] = self.queue.waited(shape, on_gpu=line.is_gpu)
        cut = [part for low, high in line.spans for part in clip(self.waits[key], low, high)]
        self.used += cut
        return cut


def _is_on(attempt: Attempt, line: Line) -> bool:
    return line.gpu.uuid in attempt.gpus if line.is_gpu else not attempt.gpus


def _end(attempt: Attempt, stay: Stay) -> int:
    if attempt.end_ms is not None:
        return attempt.end_ms
    return max([attempt.start_ms, *(life.end_ms for life in stay.lives if life.life == attempt.life)])


def _hold(attempt: Attempt, line: Line, stay: Stay) -> Hold | None:
    end_ms = attempt.end_ms if attempt.end_ms is not None else max(end for _, end in line.spans)
    if attempt.start_ms >= end_ms:
        return None
    kind, request = attempt.kind, attempt.request
    if kind is Class.OPEN and stay.fleet and not stay.is_open and not attempt.outcome:
        kind = Class.LOST  # nobody took it over yet, but the scheduler says that its job is over
    milli = round(request.gpus * _WHOLE) if 0 < request.gpus < 1 else _WHOLE
    return Hold(
        start_ms=attempt.start_ms, end_ms=end_ms, kind=kind, task=attempt.task, name=attempt.name,
        attempt=attempt.attempt, weight=milli if line.is_gpu else request.cpus, count=attempt.count,
    )  # fmt: skip


def _loads(life: LifeFacts, line: Line) -> list[Hold]:
    """Residents that loaded on this line: on the GPUs of the next attempt on their slot."""
    found = []
    for slot, (start_ms, end_ms) in life.loads:
        after = [one for one in life.attempts if one.slot == slot and one.start_ms >= end_ms]
        first = min(after, key=lambda one: one.start_ms, default=None)
        if first is not None and _is_on(first, line):
            weight = _WHOLE if line.is_gpu else first.request.cpus
            found.append(Hold(start_ms=start_ms, end_ms=end_ms, kind=Class.LOADING, weight=weight))
    return found


def open_ledgers(
    spool_root: str | None, *, fleet: str | None = None, job: str | None = None, since_ms: int | None = None,
    until_ms: int | None = None, by: str = "fleet", telemetry: Sequence[str] = (), problems: Sequence[str] = (),
) -> Ledgers:  # fmt: skip
    """The ledgers as of now, from what is on record. Without a spool, `telemetry` alone is read.

    Whoever wants jobs up to date asks first (`actions.gpu_ledger.ask_fleets`) and hands in what could not be asked as
    `problems`. Raises UsageError, OutOfReach.
    """
    if since_ms is not None and until_ms is not None and until_ms < since_ms:
        raise UsageError("--until lies before --since.", hint="A span such as 6h means that long ago.")
    asked = Asked(
        fleet=fleet, job=job, since_ms=since_ms, until_ms=until_ms, now_ms=time.time_ns() // 1_000_000, by=by,
        telemetry=tuple(telemetry),
    )  # fmt: skip
    if spool_root is None:
        if not telemetry:
            raise UsageError("A ledger needs a spool or telemetry.", hint="Name one with --spool or --telemetry.")
        return read_bare(asked)
    spool = Spool.open(spool_root, create=False)
    found = read_ledgers(spool, read_states(spool), asked)
    for ledger in (found.gpu, found.slots):
        if ledger is not None:
            ledger.problems = (*problems, *ledger.problems)
    return found


def read_states(spool: Spool) -> dict[str, FleetState]:
    """Every fleet as its records have it. Raises OutOfReach."""
    found = {}
    for name in list_fleets(spool.files, spool.layout.root):
        log = RecordLog(spool.files, spool.clock, FleetFolder(spool.layout.root, name))
        log.refresh()
        found[name] = fold(log.records)
    return found


@dataclass(slots=True, kw_only=True)
class Gathered:
    """The evidence about every line of what was asked for, before it is added up."""

    evidences: list[Evidence]
    journals: Journals
    samples: Samples
    period: Interval
    problems: list[str]
    sources: Sequence[str]
    waiting: Sequence[Interval]


def gather(spool: Spool, states: Mapping[str, FleetState], asked: Asked) -> Gathered:
    """Read and join everything that is known. Raises OSError, UsageError."""
    reader = SpoolFold(spool)
    reader.refresh()
    spool.refresh()
    journals = read_journals(spool, reader, asked.now_ms)
    allocations = read_allocations(states, journals.lives.values(), asked.now_ms, fleet=asked.fleet, job=asked.job)
    if not allocations.stays:
        raise UsageError(
            _nothing(asked), hint="`fleetcraft fleet list` and `fleetcraft worker list` show what there is."
        )
    low_ms, high_ms = period = _period(asked, [stay.span for stay in allocations.stays])
    allocations.stays = [stay for stay in allocations.stays if stay.span[0] < high_ms and stay.span[1] > low_ms]
    begin_ms = min((stay.span[0] for stay in allocations.stays), default=low_ms)
    sources = find(list(asked.telemetry)) if asked.telemetry else list(in_root(root_of(spool.layout.root)))
    hosts = {stay.host.partition(".")[0] for stay in allocations.stays}
    sources = [source for source in sources if source.host.partition(".")[0] in hosts]
    join = _Join(
        asked, journals, read_queue(spool, reader, journals), Samples.of(sources, begin_ms, high_ms, asked.now_ms),
        _drains(spool),
    )  # fmt: skip
    problems = list(allocations.problems)
    evidences = [evidence for stay in allocations.stays for evidence in join.of_stay(stay, problems)]
    problems += [f"{name}: {text}" for name, state in sorted(states.items()) for text in state.problems]
    said = sources_of(allocations, journals, evidences)
    return Gathered(
        evidences=evidences, journals=journals, samples=join.samples, period=period, sources=said,
        problems=problems + held_twice(evidences), waiting=union(clip(join.used, *period)),
    )  # fmt: skip


def read_ledgers(spool: Spool, states: Mapping[str, FleetState], asked: Asked) -> Ledgers:
    """Join everything that is known and add it up. Raises OSError, UsageError."""
    found = gather(spool, states, asked)
    period = found.period
    gpu = [evidence for evidence in found.evidences if evidence.line.is_gpu]
    slots = [evidence for evidence in found.evidences if not evidence.line.is_gpu]

    def total(some: list[Evidence], unit: str) -> Ledger | None:
        if not some or period[0] >= period[1]:
            return None
        more = found.samples.problems if unit == "GPU" else ()
        return add_up(
            some, by=asked.by, unit=unit, period=period, waiting=found.waiting, sources=found.sources,
            problems=[*dict.fromkeys([*found.problems, *more]), *outside(some)],
        )  # fmt: skip

    return Ledgers(gpu=total(gpu, "GPU"), slots=total(slots, "slot"))


def read_bare(asked: Asked) -> Ledgers:
    """A ledger from telemetry alone: what was sampled counts as allocated, and no receipt says what it was good for."""
    samples = Samples.of(find(list(asked.telemetry)), asked.since_ms, asked.until_ms, asked.now_ms)
    evidences = []
    for (host, uuid), some in sorted(samples.series.items()):
        groups: dict[tuple[str, str], list[Series]] = {}
        for one in some:
            groups.setdefault((one.context.fleet, one.context.job), []).append(one)
        for (fleet, job), mine in sorted(groups.items()):
            if asked.job not in (None, job) or asked.fleet not in (None, fleet):
                continue
            spans = tuple(union(times(mine)))
            seen = [Presence(start_ms=low, up_ms=low, end_ms=high) for low, high in spans]
            line = Line(gpu=mine[0].gpu, spans=spans, job=job, fleet=fleet)
            evidences.append(Evidence(line=line, presences=seen, profile=samples.profile(host, uuid)))
    said = [
        f"telemetry alone: {len(samples.series)} GPUs; what was sampled counts as allocated",
        "no receipts: an active GPU is unknown, since nothing tells what it worked for",
    ]
    if not evidences:
        return Ledgers(gpu=None, slots=None)
    period = _period(asked, [span for one in evidences for span in one.line.spans])
    found = add_up(evidences, by=asked.by, sources=said, period=period, problems=samples.problems)
    return Ledgers(gpu=found, slots=None)


def _period(asked: Asked, spans: Sequence[Interval]) -> Interval:
    """What was asked for, as far as anything was allocated then."""
    low_ms, high_ms = min(start for start, _ in spans), max(end for _, end in spans)
    low_ms = max(low_ms, asked.since_ms or 0)
    return low_ms, max(low_ms, high_ms if asked.until_ms is None else min(high_ms, asked.until_ms))


def _nothing(asked: Asked) -> str:
    if asked.job is not None:
        return f"No job {asked.job!r} of this spool had a node, and no worker was in it."
    if asked.fleet is not None:
        return f"The fleet {asked.fleet!r} had no node yet."
    return "Nothing was allocated: no fleet of this spool had a node, and no worker ran."


def _drains(spool: Spool) -> list[tuple[int, frozenset[str] | None]]:
    """When workers were asked to take nothing more; a stop that was taken back is none."""
    found: list[tuple[int, frozenset[str] | None]] = []
    stopped_ms: int | None = None
    for body in read_requests(spool):
        kind, moment_ms = body.get("kind"), ms(body.get("at_utc", 0))
        if kind == "stop":
            stopped_ms = moment_ms
        elif kind == "resume":
            stopped_ms = None
        elif kind == "drain":
            found.append((moment_ms, frozenset(map(str, body.get("lives", ())))))
    if stopped_ms is not None:
        found.append((stopped_ms, None))
    return found
