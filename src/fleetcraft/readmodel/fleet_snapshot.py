"""What a user holds and waits for at a site, in nodes and in GPUs, with reasons, limits and coverage.

A question that failed is shown as one: then the records of the fleets stand in, with their age.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.states import JobState
from fleetcraft.fleet.guards.limits import findings
from fleetcraft.fleet.state import FleetState, Job
from fleetcraft.fleet.tail import job_ids
from fleetcraft.readmodel.fleet_gpus import (
    HOLDING,
    Beat,
    Coverage,
    Measured,
    NodeView,
    count_states,
    cover,
    read_nodes,
    told_by,
    with_telemetry,
)
from fleetcraft.readmodel.lives import view_life
from fleetcraft.schedulers.api import JobRequest, JobView, Limits, Observation, PartitionLimits
from fleetcraft.spool.reading import SpoolFold

_WAITING = (JobState.PENDING, JobState.HELD, JobState.BLOCKED)


@dataclass(slots=True)
class Use:
    """Jobs, nodes and GPUs. `gpus` counts what is known; `jobs_of_unknown_gpus` the jobs that do not tell."""

    jobs: int = 0
    nodes: int = 0
    gpus: int = 0
    jobs_of_unknown_gpus: int = 0
    jobs_of_unknown_nodes: int = 0

    def add(self, job: JobView, gpus: int | None) -> None:
        """Count one job."""
        nodes = job.node_count or len(job.nodes)
        self.jobs += 1
        self.nodes += nodes
        self.jobs_of_unknown_nodes += not nodes
        self.gpus += gpus or 0
        self.jobs_of_unknown_gpus += gpus is None

    def as_json(self) -> dict[str, Any]:
        """For the JSON document."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class PartitionUse:
    """One partition of the site, as far as this user's jobs are concerned."""

    partition: str
    assigned: Use = field(default_factory=Use)
    pending: Use = field(default_factory=Use)


@dataclass(slots=True)
class Waiting:
    """Jobs that wait for one reason."""

    reason: str
    partition: str
    use: Use = field(default_factory=Use)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLeft:
    """One limit and what is left of it."""

    limit: str
    where: str
    value: float
    used: float
    left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotView:
    """Everything, dated."""

    at_utc: float
    answered: bool
    known_utc: float | None  # when the scheduler last told what is shown
    partitions: tuple[PartitionUse, ...]
    waiting: tuple[Waiting, ...]
    limits: tuple[LimitLeft, ...]
    limits_answered: bool
    nodes: tuple[NodeView, ...]
    gpu_states: Mapping[str, int]
    coverage: Coverage
    cluster: tuple[PartitionLimits, ...]
    problems: tuple[str, ...]

    @property
    def age_s(self) -> float | None:
        """How old the newest answer of the scheduler is."""
        return None if self.known_utc is None else round(max(0.0, self.at_utc - self.known_utc), 1)

    def as_json(self, *, nodes: bool = True) -> dict[str, Any]:
        """The JSON document, without its schema."""
        return {
            "at_utc": round(self.at_utc, 3),
            "answered": self.answered,
            "age_s": self.age_s,
            "partitions": [
                {"partition": use.partition, "assigned": use.assigned.as_json(), "pending": use.pending.as_json()}
                for use in self.partitions
            ],
            "waiting": [
                {"reason": one.reason, "partition": one.partition, **one.use.as_json()} for one in self.waiting
            ],
            "limits_answered": self.limits_answered,
            "limits": [{name: getattr(limit, name) for name in limit.__slots__} for limit in self.limits],
            "coverage": self.coverage.as_json(),
            "gpu_states": dict(self.gpu_states),
            "gpu_states_from": told_by(self.nodes),
            "nodes": [node.as_json() for node in self.nodes] if nodes else None,
            "cluster": [
                {
                    "partition": part.name,
                    "state": part.state,
                    "nodes": part.nodes,
                    "idle_nodes": part.idle_nodes,
                    "gpus_per_node": part.gpus_per_node,
                    "gpu_types": list(part.gpu_types),
                    "time_limit_s": part.time_limit_s,
                }
                for part in self.cluster
            ],
            "problems": list(self.problems),
        }


def take_snapshot(
    mine: Observation,
    limits: Limits | None,
    states: Mapping[str, FleetState],
    reader: SpoolFold,
    now_utc: float,
    *,
    request: JobRequest | None = None,
    cluster: bool = False,
    measured: Mapping[str, Measured] | None = None,
) -> SnapshotView:
    """Join what the scheduler says with what the fleets' records and the workers say.

    `request` chooses whose limits are shown: its partition, account and QOS. `reader` must be fresh.
    `measured` is what telemetry says of GPUs, by UUID.
    """
    ours = {str(job.ref): job for state in states.values() for job in state.jobs.values() if job.ref is not None}
    jobs = list(mine.jobs.values()) if mine.answered else [_remembered(job) for job in ours.values() if job.is_live]
    jobs = [job for job in jobs if not job.state.ended]
    per_node = {str(job.ref): _gpus_per_node(job, ours, limits) for job in jobs}
    nodes = read_nodes(jobs, _beats(reader, now_utc), per_node, {ref: job_ids(job) for ref, job in ours.items()})
    nodes = with_telemetry(nodes, measured or {})
    problems = list(mine.problems)
    if not mine.answered:
        problems.insert(0, "the scheduler did not tell which jobs there are")
    if limits is not None:
        problems += limits.problems
        if not limits.answered:
            problems.append("the scheduler did not tell its limits")
    return SnapshotView(
        at_utc=now_utc,
        answered=mine.answered,
        known_utc=mine.at_utc if mine.answered else _last_answer_utc(ours.values()),
        partitions=tuple(_partitions(jobs, per_node)),
        waiting=tuple(_waiting(jobs, per_node)),
        limits=tuple(_left(limits, jobs, request)) if limits is not None and limits.answered else (),
        limits_answered=limits is not None and limits.answered,
        nodes=tuple(nodes),
        gpu_states=count_states(nodes),
        coverage=cover(nodes),
        cluster=limits.partitions if cluster and limits is not None else (),
        problems=tuple(dict.fromkeys(problems)),
    )


def _remembered(job: Job) -> JobView:
    """What the records say of a job, in the scheduler's form."""
    assert job.ref is not None  # noqa: S101  the caller chose those that have one
    return JobView(
        ref=job.ref, state=job.state or JobState.UNKNOWN, raw_state=job.raw_state, token=job.token, reason=job.reason,
        reason_text=job.cause, start_utc=job.start_utc, nodes=job.node_names, node_count=job.nodes,
        gpus=job.nodes * job.gpus_per_node, time_limit_s=job.time_limit_s, source="memory", stale=True,
    )  # fmt: skip


def _last_answer_utc(jobs: Iterable[Job]) -> float | None:
    return max((job.seen_utc for job in jobs if job.seen_utc is not None), default=None)


def _gpus_per_node(job: JobView, ours: Mapping[str, Job], limits: Limits | None) -> int | None:
    """What a node of the job has for it: the job's own word, our record, else what its partition has."""
    count = job.node_count or len(job.nodes)
    if job.gpus and count:
        return -(-job.gpus // count)
    known = ours.get(str(job.ref))
    if known is not None:
        return known.gpus_per_node
    for part in limits.partitions if limits is not None else ():
        if part.name == job.partition and part.gpus_per_node == 0:
            return 0
    return job.gpus  # 0 where the scheduler says so, None where it does not say


def _gpus(job: JobView, per_node: Mapping[str, int | None]) -> int | None:
    if job.gpus:
        return job.gpus
    each = per_node.get(str(job.ref))
    return None if each is None else each * (job.node_count or len(job.nodes))


def _partitions(jobs: Sequence[JobView], per_node: Mapping[str, int | None]) -> list[PartitionUse]:
    found: dict[str, PartitionUse] = {}
    for job in jobs:
        use = found.setdefault(job.partition, PartitionUse(job.partition))
        (use.assigned if job.state in HOLDING else use.pending).add(job, _gpus(job, per_node))
    return [found[name] for name in sorted(found)]


def _waiting(jobs: Sequence[JobView], per_node: Mapping[str, int | None]) -> list[Waiting]:
    found: dict[tuple[str, str], Waiting] = {}
    for job in jobs:
        if job.state in HOLDING:
            continue
        default = "the scheduler gives no reason" if job.state in _WAITING else f"its state is {job.raw_state or '?'}"
        reason = job.reason_text or job.reason or default
        found.setdefault((job.partition, reason), Waiting(reason, job.partition)).use.add(job, _gpus(job, per_node))
    return sorted(found.values(), key=lambda one: (-one.use.nodes, one.partition, one.reason))


def _left(limits: Limits, jobs: Sequence[JobView], request: JobRequest | None) -> Iterable[LimitLeft]:
    wanted = request or JobRequest(token="", name="", script="")
    for found in findings(wanted, limits, jobs):
        yield LimitLeft(limit=found.limit, where=found.where, value=found.value, used=found.used, left=found.left)


def _beats(reader: SpoolFold, now_utc: float) -> list[Beat]:
    found = []
    for reading in reader.lives.values():
        if reading.identity is None or reading.identity.kind != "worker":
            continue
        beat = reading.heartbeat or {}
        capacity, running = beat.get("capacity"), beat.get("running")
        gpus = capacity.get("gpus") if isinstance(capacity, Mapping) else None
        found.append(
            Beat(
                worker=view_life(reading, reader, now_utc),
                gpus=tuple(gpu for gpu in gpus if isinstance(gpu, Mapping)) if isinstance(gpus, list) else (),
                running=len(running) if isinstance(running, list) else 0,
            )
        )
    return found
