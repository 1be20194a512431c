"""What the records of a fleet say: a pure fold by number, the same for any order of reading and for records read twice.

A record that makes no sense is named in `problems` and changes nothing; no clock takes part but the time asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fleetcraft.core.errors import UsageError
from fleetcraft.core.states import JobState
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.records import Record
from fleetcraft.fleet.spec import FleetSpec
from fleetcraft.fleet.spec import from_json as spec_from_json
from fleetcraft.schedulers.api import JobRef

WITHDRAWN = "withdrawn"
# Purposes of a job, kept in its intent.
WORK, RENEWAL, HOLD, SMOKE = "work", "renewal", "devnode", "smoke"


class Phase(StrEnum):
    """How far a submission got."""

    OPEN = "open"  # written down; whether the scheduler has it is not known
    REJECTED = "rejected"
    SUBMITTED = "submitted"


@dataclass(slots=True)
class Run:
    """One stay on nodes. A job that was requeued has several."""

    start_utc: float
    end_utc: float | None
    nodes: int

    def node_seconds(self, now_utc: float) -> float:
        """Until its end, or until now."""
        return max(0.0, (now_utc if self.end_utc is None else self.end_utc) - self.start_utc) * self.nodes


@dataclass(slots=True)
class Job:
    """One submission and what became of it."""

    token: str
    phase: Phase = Phase.OPEN
    number: int = 0  # of its intent
    intent_utc: float | None = None
    spec_number: int | None = None
    shape: str = ""
    lane: int | None = None
    nodes: int = 0
    gpus_per_node: int = 0
    time_limit_s: float | None = None
    purpose: str = WORK
    why: str = ""
    follows: str | None = None  # the token of the job that it succeeds in its lane
    begin_utc: float | None = None
    decisions: list[Any] = field(default_factory=list)
    ref: JobRef | None = None
    extra_refs: list[JobRef] = field(default_factory=list)  # more jobs that carry the same token
    code: str = ""  # of a rejection
    retry: str = ""  # when the same may be asked again, as the scheduler's adapter read it
    text: str = ""
    withdrawn: bool = False  # given up for lost; a job that appears all the same runs nothing
    unresolved_utc: float | None = None
    state: JobState | None = None  # None: submitted and never seen yet
    raw_state: str = ""
    reason: str = ""
    cause: str = ""
    seen_utc: float | None = None
    absent_since_utc: float | None = None
    start_utc: float | None = None
    end_utc: float | None = None
    node_names: tuple[str, ...] = ()
    runs: list[Run] = field(default_factory=list)
    cancel_utc: float | None = None
    on_hold: bool = False  # by a pass that wanted to give it back, not by a person
    idle: Mapping[str, Any] | None = None  # the idle tail, measured once after the end

    @property
    def is_open(self) -> bool:
        """True while nobody knows whether the scheduler has it."""
        return self.phase is Phase.OPEN

    @property
    def is_live(self) -> bool:
        """True while it may hold or get nodes, as far as is known. An open intent counts: it may be there."""
        if self.phase is Phase.OPEN:
            return True
        return self.phase is Phase.SUBMITTED and not (self.state is not None and self.state.ended)

    @property
    def is_running(self) -> bool:
        """True while it holds nodes."""
        return self.phase is Phase.SUBMITTED and self.state in (JobState.RUNNING, JobState.ENDING)

    @property
    def is_waiting(self) -> bool:
        """True while the scheduler has it and it holds no nodes."""
        waits = (None, JobState.PENDING, JobState.HELD, JobState.BLOCKED)
        return self.phase is Phase.SUBMITTED and self.state in waits

    @property
    def ended_by_others(self) -> bool:
        """True when it was cancelled, and not by this fleet."""
        return self.state is JobState.CANCELLED and self.cancel_utc is None and not self.withdrawn

    @property
    def serves_work(self) -> bool:
        """True when it runs workers: held nodes and smoke checks do not count."""
        return self.purpose in (WORK, RENEWAL)

    def node_seconds(self, now_utc: float) -> float:
        """Node-seconds so far, over all its runs."""
        return sum(run.node_seconds(now_utc) for run in self.runs)

    def reserved_node_seconds(self, now_utc: float) -> float:
        """What it may still use up to its time limit."""
        if not self.is_live or self.withdrawn:
            return 0.0
        if self.time_limit_s is None:
            return 0.0
        running = self.runs[-1] if self.runs and self.runs[-1].end_utc is None else None
        if running is None:
            return self.time_limit_s * self.nodes
        return max(0.0, running.start_utc + self.time_limit_s - now_utc) * running.nodes

    def expected_end_utc(self, now_utc: float) -> float | None:
        """When its time limit is reached; for one that waits, if it started now or at its begin time."""
        if self.time_limit_s is None:
            return None
        if self.is_running and self.start_utc is not None:
            return self.start_utc + self.time_limit_s
        return max(now_utc, self.begin_utc or now_utc) + self.time_limit_s


@dataclass(slots=True)
class FleetState:
    """Everything that is known of a fleet, up to record `last`."""

    last: int = 0
    jobs: dict[str, Job] = field(default_factory=dict)  # by token, oldest first
    specs: dict[int, FleetSpec] = field(default_factory=dict)  # by record number
    shapes: dict[str, int] = field(default_factory=dict)  # the newest spec of each shape
    drained: bool = False
    drain_reason: str = ""
    drain_number: int = 0
    resumed_utc: float = 0.0
    notified: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def damage(self) -> str:
        """What of the records cannot be read, in words; empty when they are whole."""
        return "; ".join(self.problems)

    def spec(self, shape: str | None = None) -> FleetSpec | None:
        """The newest spec of a shape, or of the shape for work that was declared last."""
        if shape is not None:
            return self.specs.get(self.shapes.get(shape, 0))
        return max(self.work_shapes(), key=lambda item: item[0], default=(0, None))[1]

    def work_shapes(self) -> list[tuple[int, FleetSpec]]:
        """Number and newest spec of each shape whose jobs run workers, the one declared first first."""
        newest = sorted(self.shapes.values())
        return [(number, self.specs[number]) for number in newest if self.specs[number].serves_work]

    def spec_of(self, job: Job) -> FleetSpec | None:
        """The very spec that a job was submitted with."""
        return self.specs.get(job.spec_number) if job.spec_number is not None else None

    def open_intents(self) -> list[Job]:
        """Submissions of which nobody knows yet whether they arrived."""
        return [job for job in self.jobs.values() if job.is_open]

    def live(self) -> list[Job]:
        """Jobs that hold or may get nodes."""
        return [job for job in self.jobs.values() if job.is_live and not job.withdrawn]

    def workers_live(self) -> list[Job]:
        """Live jobs that serve the spool."""
        return [job for job in self.live() if job.serves_work]

    def by_ref(self, ref: str) -> Job | None:
        """The job with a scheduler's id, newest first: ids may be used again."""
        for job in reversed(self.jobs.values()):
            if job.ref is not None and ref in (job.ref.id, str(job.ref)):
                return job
        return None

    def lane(self, shape: str, lane: int) -> list[Job]:
        """The jobs of one lane, oldest first, rejected ones left out."""
        return [
            job for job in self.jobs.values()
            if job.shape == shape and job.lane == lane and job.phase is not Phase.REJECTED and not job.withdrawn
        ]  # fmt: skip

    def stands_by(self, job: Job) -> bool:
        """True for a successor that waits for a job that still lives: it takes that job's place, not more."""
        before = self.jobs.get(job.follows or "")
        return before is not None and before.is_live and not before.withdrawn and not job.is_running

    def live_nodes(self) -> int:
        """Nodes of all live jobs, assigned or wanted; a successor takes the place of its predecessor."""
        return sum(job.nodes for job in self.live() if not self.stands_by(job))

    def gpu_seconds(self, now_utc: float) -> float:
        """GPU-seconds spent so far."""
        return sum(job.node_seconds(now_utc) * job.gpus_per_node for job in self.jobs.values())

    def node_seconds(self, now_utc: float) -> float:
        """Node-seconds spent so far."""
        return sum(job.node_seconds(now_utc) for job in self.jobs.values())

    def reserved_gpu_seconds(self, now_utc: float) -> float:
        """GPU-seconds that live jobs may still use."""
        return sum(job.reserved_node_seconds(now_utc) * job.gpus_per_node for job in self.jobs.values())

    def reserved_node_seconds(self, now_utc: float) -> float:
        """Node-seconds that live jobs may still use."""
        return sum(job.reserved_node_seconds(now_utc) for job in self.jobs.values())


def fold(records: Iterable[Record]) -> FleetState:
    """The state after all of `records`, whatever their order; a number counts once."""
    state = FleetState()
    by_number = {record.number: record for record in records}
    for number in sorted(by_number):
        record = by_number[number]
        apply = _APPLY.get(record.kind)
        state.last = number
        if apply is None:
            continue  # of a later version
        try:
            apply(state, record)
        except (KeyError, TypeError, ValueError, UsageError) as error:
            state.problems.append(f"record {number} ({record.kind}) makes no sense: {error!r}")
    return state


def _job(state: FleetState, token: str) -> Job:
    job = state.jobs.get(token)
    if job is None:
        # Its intent is damaged. What the other records say still stands.
        state.problems.append(f"the intent of {token} cannot be read; its size is not known")
        job = state.jobs[token] = Job(token)
    return job


def _spec(state: FleetState, record: Record) -> None:
    spec = spec_from_json(record.body["spec"])
    state.specs[record.number] = spec
    state.shapes[spec.shape] = record.number


def _intent(state: FleetState, record: Record) -> None:
    body = record.body
    job = Job(
        token=str(body["token"]), number=record.number, intent_utc=record.at_utc, spec_number=body.get("spec"),
        shape=str(body.get("shape", "")), lane=body.get("lane"), nodes=int(body["nodes"]),
        gpus_per_node=int(body.get("gpus_per_node", 0)), time_limit_s=body.get("time_limit_s"),
        purpose=str(body.get("purpose", WORK)), why=str(body.get("why", "")), follows=body.get("follows"),
        begin_utc=body.get("begin_utc"), decisions=list(body.get("decisions", ())),
    )  # fmt: skip
    state.jobs.setdefault(job.token, job)


def _submitted(state: FleetState, record: Record) -> None:
    job = _job(state, record.body["token"])
    ref = _ref(record.body["ref"])
    if job.ref is not None and job.ref != ref:
        if ref not in job.extra_refs:
            job.extra_refs.append(ref)
        return
    job.ref, job.phase = ref, Phase.SUBMITTED
    job.text = str(record.body.get("text", ""))


def _rejected(state: FleetState, record: Record) -> None:
    job = _job(state, record.body["token"])
    job.code, job.text = str(record.body.get("code", "")), str(record.body.get("text", ""))
    job.retry = str(record.body.get("retry", ""))
    job.withdrawn = job.withdrawn or job.code == WITHDRAWN
    if job.phase is Phase.OPEN:
        job.phase = Phase.REJECTED


def _unresolved(state: FleetState, record: Record) -> None:
    job = _job(state, record.body["token"])
    job.unresolved_utc = job.unresolved_utc or record.at_utc
    job.text = str(record.body.get("text", ""))


def _seen(state: FleetState, record: Record) -> None:
    body = record.body
    job = _job(state, body["token"])
    if body.get("ref") is not None and job.ref is not None and _ref(body["ref"]) != job.ref:
        return  # of another job that carries the same token
    if job.ref is None and body.get("ref") is not None:
        job.ref, job.phase = _ref(body["ref"]), Phase.SUBMITTED
    new = JobState(body["state"])
    job.state, job.raw_state = new, str(body.get("raw_state", ""))
    job.reason, job.cause = str(body.get("reason", "")), str(body.get("cause", ""))
    job.seen_utc = record.at_utc
    job.absent_since_utc = (job.absent_since_utc or record.at_utc) if body.get("absent") else None
    if body.get("nodes"):
        job.node_names = tuple(map(str, body["nodes"]))
    start_utc = body.get("start_utc")
    job.start_utc = start_utc if start_utc is not None else job.start_utc
    job.end_utc = body.get("end_utc") if new.ended else None
    _account(job, new, start_utc, record.at_utc)


def _account(job: Job, new: JobState, start_utc: float | None, at_utc: float) -> None:
    """Keep the stays on nodes: the sum of them is what the job cost."""
    nodes = len(job.node_names) or job.nodes
    current = job.runs[-1] if job.runs else None
    if new in (JobState.RUNNING, JobState.ENDING):
        begun = start_utc if start_utc is not None else at_utc
        if current is None or current.end_utc is not None or (start_utc is not None and current.start_utc != begun):
            if current is not None and current.end_utc is None:
                current.end_utc = max(current.start_utc, begun)
            job.runs.append(Run(begun, None, nodes))
        else:
            current.nodes = nodes
    elif new is not JobState.UNKNOWN:
        end_utc = job.end_utc if new.ended and job.end_utc is not None else at_utc
        if current is not None and current.end_utc is None:
            current.end_utc = max(current.start_utc, end_utc)
        elif new.ended and start_utc is not None and (current is None or start_utc > current.start_utc):
            # It began and ended between two looks.
            job.runs.append(Run(start_utc, max(start_utc, end_utc), nodes))


def _cancel(state: FleetState, record: Record) -> None:
    for token in record.body["tokens"]:
        job = state.jobs.get(token)
        if job is not None and job.cancel_utc is None:
            job.cancel_utc = record.at_utc


def _hold(state: FleetState, record: Record) -> None:
    for token in record.body["tokens"]:
        if token in state.jobs:
            state.jobs[token].on_hold = record.kind == kinds.HOLD


def _drain(state: FleetState, record: Record) -> None:
    state.drained, state.drain_number = True, record.number
    state.drain_reason = str(record.body.get("why", ""))


def _resume(state: FleetState, record: Record) -> None:
    state.drained, state.drain_reason, state.resumed_utc = False, "", record.at_utc


def _note(state: FleetState, record: Record) -> None:
    state.notes.append(record)


def _notified(state: FleetState, record: Record) -> None:
    state.notified.setdefault(str(record.body["key"]), record.body)


def _idle(state: FleetState, record: Record) -> None:
    _job(state, record.body["token"]).idle = record.body


def _ref(value: Mapping[str, Any]) -> JobRef:
    return JobRef(id=str(value["id"]), cluster=value.get("cluster"))


def ref_json(ref: JobRef) -> dict[str, Any]:
    """The form of a reference in a record."""
    return {"id": ref.id} if ref.cluster is None else {"id": ref.id, "cluster": ref.cluster}


_APPLY = {
    kinds.SPEC: _spec,
    kinds.INTENT: _intent,
    kinds.SUBMITTED: _submitted,
    kinds.REJECTED: _rejected,
    kinds.UNRESOLVED: _unresolved,
    kinds.SEEN: _seen,
    kinds.CANCEL: _cancel,
    kinds.HOLD: _hold,
    kinds.RELEASE: _hold,
    kinds.DRAIN: _drain,
    kinds.RESUME: _resume,
    kinds.NOTE: _note,
    kinds.NOTIFIED: _notified,
    kinds.IDLE: _idle,
}
