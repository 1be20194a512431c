"""Every node and GPU that running jobs hold, and what is known of each from workers' heartbeats and telemetry.

No node is left out because nobody answered for it: it is listed with the reason. Where telemetry tells what a GPU
does, that counts; else it works when a running task holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from fleetcraft.core.states import JobState, WorkerState
from fleetcraft.readmodel.lives import WorkerView
from fleetcraft.schedulers.api import JobView

HOLDING = (JobState.RUNNING, JobState.ENDING)


class GpuState(StrEnum):
    """What a GPU does, as far as is known now."""

    WORKING = "working"  # a running task holds it
    RESERVED = "reserved"  # held for a task or by one that waits for its next call; nothing runs on it
    FREE = "free"  # a worker is there and has nothing for it
    UNKNOWN = "unknown"  # no worker told about it
    UNREACHABLE = "unreachable"  # the worker that held it is silent or lost


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """One GPU."""

    index: int  # on its node, in the order in which the worker lists them
    uuid: str | None
    name: str | None
    memory_bytes: int | None
    state: GpuState
    reason: str = ""
    measured: bool = False  # by telemetry; else from its worker's heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What telemetry says of a GPU that it can judge."""

    state: GpuState
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node of one running job."""

    node: str
    job: str
    partition: str
    worker: str | None
    reports: bool  # a worker there was heard lately
    reason: str
    expected_gpus: int | None
    gpus: tuple[GpuView, ...]

    def as_json(self) -> dict[str, Any]:
        """For the JSON document."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        plain["gpus"] = [{name: getattr(gpu, name) for name in gpu.__slots__} for gpu in self.gpus]
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of what is held was heard of."""

    nodes: int
    reporting_nodes: int
    gpus: int | None  # None: nobody knows how many there are
    reporting_gpus: int

    @property
    def percent(self) -> float | None:
        """Of the GPUs where there are any, else of the nodes; None when there is nothing."""
        whole, part = (self.gpus, self.reporting_gpus) if self.gpus else (self.nodes, self.reporting_nodes)
        return round(100 * part / whole, 1) if whole else None

    def as_json(self) -> dict[str, Any]:
        """For the JSON document."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "percent": self.percent}


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One worker with the GPUs that its heartbeat lists."""

    worker: WorkerView
    gpus: tuple[Mapping[str, Any], ...]
    running: int


def read_nodes(
    jobs: Iterable[JobView], beats: Sequence[Beat], per_node: Mapping[str, int | None], aliases: Mapping[str, set[str]]
) -> list[NodeView]:
    """Every node of the jobs that hold some.

    `per_node`: GPUs of one node, by job. `aliases`: what the workers of a job call it, where that is not its id.
    """
    found: list[NodeView] = []
    for job in jobs:
        if job.state not in HOLDING:
            continue
        ids = {str(job.ref), job.ref.id} | aliases.get(str(job.ref), set())
        mine = [beat for beat in beats if beat.worker.job_id in ids]
        found += _nodes_of(job, mine, per_node.get(str(job.ref)))
    return found


def _nodes_of(job: JobView, beats: Sequence[Beat], expected: int | None) -> list[NodeView]:
    names = list(job.nodes)
    # A scheduler that does not tell the names still tells how many there are.
    names += [f"node {number + 1} of {job.ref}" for number in range(len(names), job.node_count or 0)]
    left = list(beats)
    placed: list[tuple[str, list[Beat]]] = []
    for name in names:
        here = [beat for beat in left if beat.worker.host is not None and _same(beat.worker.host, name)]
        left = [beat for beat in left if beat not in here]
        placed.append((name, here))
    if len(left) == 1 and len(names) == 1 and not placed[0][1]:
        # One node and one worker: they belong together whatever the host calls itself.
        placed, left = [(names[0], left)], []
    nodes = [_node(name, job, here, expected) for name, here in placed]
    # A worker of this job on a host that the scheduler does not name is shown, not dropped.
    return nodes + [_node(beat.worker.host or beat.worker.life, job, [beat], expected) for beat in left]


def _same(host: str, node: str) -> bool:
    return host == node or host.partition(".")[0] == node.partition(".")[0]


def _node(name: str, job: JobView, beats: Sequence[Beat], expected: int | None) -> NodeView:
    # After a requeue several lives of one job may have been on the same node; the one that runs counts.
    best = max(beats, key=lambda beat: (beat.worker.is_running, beat.worker.since_utc or 0.0), default=None)
    reports, reason = _hears(best)
    gpus = tuple(_gpus(best, expected, reports=reports, reason=reason))
    return NodeView(
        node=name, job=str(job.ref), partition=job.partition, worker=best.worker.life if best else None,
        reports=reports, reason=reason, expected_gpus=expected, gpus=gpus,
    )  # fmt: skip


def _hears(beat: Beat | None) -> tuple[bool, str]:
    if beat is None:
        return False, "no worker of this spool told about it"
    state = beat.worker.state
    if state in (WorkerState.LOST, WorkerState.STALE):
        return False, beat.worker.reason or f"its worker is {state.value}"
    if state is WorkerState.STOPPED:
        return False, "its worker has left; the job ends"
    if state is WorkerState.STARTING:
        return False, beat.worker.reason or "its worker is starting"
    return True, beat.worker.reason


def _gpus(beat: Beat | None, expected: int | None, *, reports: bool, reason: str) -> Iterable[GpuView]:
    known = beat.gpus if beat is not None else ()
    for index, gpu in enumerate(known):
        yield GpuView(
            index=index, uuid=_text(gpu.get("uuid")), name=_text(gpu.get("name")),
            memory_bytes=gpu["memory_bytes"] if isinstance(gpu.get("memory_bytes"), int) else None,
            state=_state(gpu, beat, reports=reports), reason="" if reports else reason,
        )  # fmt: skip
    told = reason if not reports else "its worker does not list it"
    for index in range(len(known), expected or 0):
        yield GpuView(
            index=index, uuid=None, name=None, memory_bytes=None, state=_silent(beat, reports=reports), reason=told
        )


def _state(gpu: Mapping[str, Any], beat: Beat | None, *, reports: bool) -> GpuState:
    if beat is None or not reports:
        return _silent(beat, reports=reports)
    used = gpu.get("used")
    if not isinstance(used, (int, float)):
        return GpuState.UNKNOWN
    if used > 0:
        return GpuState.WORKING if beat.running else GpuState.RESERVED
    return GpuState.RESERVED if gpu.get("reserved_bytes") else GpuState.FREE


def _silent(beat: Beat | None, *, reports: bool) -> GpuState:
    gone = beat is not None and beat.worker.state in (WorkerState.LOST, WorkerState.STALE)
    return GpuState.UNREACHABLE if gone and not reports else GpuState.UNKNOWN


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def cover(nodes: Sequence[NodeView]) -> Coverage:
    """How many of the nodes and GPUs are heard of. A GPU that nobody expected counts as one more."""
    known = all(node.expected_gpus is not None or node.reports for node in nodes)
    expected = sum(max(node.expected_gpus or 0, len(node.gpus)) for node in nodes)
    return Coverage(
        nodes=len(nodes),
        reporting_nodes=sum(node.reports for node in nodes),
        gpus=expected if known else None,
        reporting_gpus=sum(
            gpu.state in (GpuState.WORKING, GpuState.RESERVED, GpuState.FREE) for node in nodes for gpu in node.gpus
        ),
    )


def count_states(nodes: Sequence[NodeView]) -> dict[str, int]:
    """How many GPUs are in each state."""
    states = [gpu.state for node in nodes for gpu in node.gpus]
    return {state.value: states.count(state) for state in GpuState}


def with_telemetry(nodes: Sequence[NodeView], measured: Mapping[str, Measured]) -> list[NodeView]:
    """The nodes with what telemetry says of their GPUs, by UUID; heartbeats stay where it says nothing."""
    return [
        replace(node, gpus=tuple(_with(gpu, measured.get(gpu.uuid) if gpu.uuid else None) for gpu in node.gpus))
        for node in nodes
    ]


def _with(gpu: GpuView, told: Measured | None) -> GpuView:
    return gpu if told is None else replace(gpu, state=told.state, reason=told.reason, measured=True)


def told_by(nodes: Sequence[NodeView]) -> str:
    """Where the states of the GPUs are from, in words."""
    ways = {gpu.measured for node in nodes for gpu in node.gpus}
    if ways == {True, False}:
        return "telemetry and worker heartbeats"
    return "telemetry" if ways == {True} else "worker heartbeats"
