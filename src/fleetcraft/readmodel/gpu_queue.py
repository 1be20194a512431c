"""Why nothing runs on a GPU, from the queue: what waits, what of it this GPU could run, and what keeps it from there.

The answer is a cause for programs and a sentence for people. Without a worker that serves it there is no queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.names import CLAIM, DRAFT, HELD
from fleetcraft.core.quantities import format_bytes
from fleetcraft.core.resources import Request
from fleetcraft.core.states import TaskState, WorkerState
from fleetcraft.readmodel.lives import WorkerView
from fleetcraft.readmodel.picture import Picture
from fleetcraft.spool.permits import list_permits
from fleetcraft.usage.classify import Cause

Why = tuple[Cause, str]


@dataclass(slots=True)
class LaneNow:
    """What one lane has."""

    lane: str
    request: Request
    waiting: int = 0
    held: int = 0
    claimed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A worker as its heartbeat has it."""

    worker: WorkerView
    beat: Mapping[str, Any]

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        """The GPUs that it lists."""
        capacity = self.beat.get("capacity")
        listed = capacity.get("gpus") if isinstance(capacity, Mapping) else None
        return [gpu for gpu in listed if isinstance(gpu, Mapping)] if isinstance(listed, list) else []

    @property
    def free_cpus(self) -> int | None:
        """CPUs that no slot has now."""
        capacity = self.beat.get("capacity")
        if not isinstance(capacity, Mapping):
            return None
        cpus, used = capacity.get("cpus"), capacity.get("used_cpus")
        return cpus - used if isinstance(cpus, int) and isinstance(used, int) else None

    @property
    def running(self) -> list[Mapping[str, Any]]:
        """What it runs."""
        listed = self.beat.get("running")
        return [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []

    def on_gpu(self, uuid: str) -> list[str]:
        """The tasks that run on one of its GPUs, by id."""
        return [str(one.get("task")) for one in self.running if uuid in (one.get("gpus") or ())]

    def gpu(self, uuid: str) -> Mapping[str, Any] | None:
        """One of its GPUs."""
        return next((gpu for gpu in self.gpus if gpu.get("uuid") == uuid), None)


@dataclass(slots=True, kw_only=True)
class QueueNow:
    """The queue in numbers, and its answers."""

    stopped: bool = False
    stop_reason: str = ""
    lanes: dict[str, LaneNow] = field(default_factory=dict)
    blocked: int = 0
    short: frozenset[str] = frozenset()  # named resources of which no permit is left
    served: Sequence[Served] = ()
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def gpu_waiting(self) -> int:
        """Tasks that need a GPU and are free to be claimed."""
        return sum(lane.waiting for lane in self.lanes.values() if lane.request.gpus)

    def as_json(self) -> dict[str, Any]:
        """For the JSON document."""
        return {
            "stopped": self.stopped,
            "waiting": sum(lane.waiting for lane in self.lanes.values()),
            "waiting_for_gpus": self.gpu_waiting,
            "held": sum(lane.held for lane in self.lanes.values()),
            "blocked": self.blocked,
            "resources_used_up": sorted(self.short),
        }

    def why(self, served: Served | None, uuid: str) -> Why:
        """What a GPU without activity waits for, if anything."""
        if served is None:
            return Cause.NO_WORKER, "no worker of this spool serves it"
        state = served.worker.state
        if state in (WorkerState.LOST, WorkerState.STALE):
            return Cause.NO_WORKER, f"its worker is {state.value}: {served.worker.reason}"
        tasks = served.on_gpu(uuid)
        if tasks:
            return Cause.TASK, f"task {', '.join(tasks[:3])} holds it and does something else just now"
        if state is WorkerState.DRAINING:
            return Cause.DRAINING, f"its worker drains{f' ({served.worker.reason})' if served.worker.reason else ''}"
        if state is WorkerState.STORAGE_FULL:
            return Cause.STORAGE_FULL, "its worker waits for space on the storage"
        if state is WorkerState.STOPPED:
            return Cause.NO_WORKER, "its worker has left"
        gpu = served.gpu(uuid)
        used = gpu.get("used") if gpu is not None else None
        if isinstance(used, (int, float)) and used > 0:
            if served.beat.get("residents"):
                return Cause.RESIDENT, "what is loaded on it waits for its next call"
            return Cause.CLAIMED, "a slot holds it for a task"
        return self._of_queue(served, gpu)

    def _of_queue(self, served: Served, gpu: Mapping[str, Any] | None) -> Why:
        if self.stopped:
            why = f" ({self.stop_reason})" if self.stop_reason else ""
            return Cause.STOPPED, f"the spool was stopped by request{why}"
        best: Why | None = None
        for lane in self.lanes.values():
            if not lane.request.gpus or not lane.waiting:
                continue
            found = self._of_lane(lane, served, gpu)
            if best is None or _ORDER.index(found[0]) < _ORDER.index(best[0]):
                best = found
        if best is not None:
            return best
        unstarted = served.beat.get("unstarted")
        if isinstance(unstarted, int) and unstarted > 0:
            return (
                Cause.BACKOFF,
                f"its worker holds {_tasks(unstarted)} that it has not started: a later attempt, or about to begin",
            )
        held = sum(lane.held for lane in self.lanes.values() if lane.request.gpus)
        if held and self.blocked < held:
            return Cause.UPSTREAM, f"{_tasks(held)} for GPUs held until other tasks succeed"
        if held:
            return Cause.BLOCKED, f"{_tasks(held)} held for good: what they wait for did not succeed"
        others = sum(lane.waiting for lane in self.lanes.values())
        note = f"; {_tasks(others)} waiting without need of one" if others else ""
        return Cause.NOTHING_QUEUED, f"nothing is queued that needs a GPU{note}"

    def _of_lane(self, lane: LaneNow, served: Served, gpu: Mapping[str, Any] | None) -> Why:
        lack = _lacks(lane.request, served, gpu)
        wait = f"lane {lane.lane}: {_tasks(lane.waiting)} waiting"
        if lack:
            if any(not _lacks(lane.request, other, None) for other in self.served if other.worker.is_running):
                return Cause.NEEDS_UNMET, f"{wait} for {lack}"
            return Cause.LANE_WITHOUT_WORKERS, f"{wait} that no worker could run: {lack}"
        short = [
            name for name, asked in lane.request.uses
            if name in self.short or (name in self.limits and asked > self.limits[name])
        ]  # fmt: skip
        if short:
            return Cause.PERMITS, f"{wait} for {', '.join(short)}, which is used up"
        busy = _busy(lane.request, served)
        if busy:
            return Cause.NODE_BUSY, f"{wait} for {busy}"
        return Cause.WORK_WAITS, f"{wait} that it could run"


# What a person should hear first where several lanes wait.
_ORDER = (
    Cause.WORK_WAITS, Cause.NODE_BUSY, Cause.PERMITS, Cause.NEEDS_UNMET, Cause.LANE_WITHOUT_WORKERS,
)  # fmt: skip


def _tasks(number: int) -> str:
    return f"{number:,} {'task' if number == 1 else 'tasks'}"


def _lacks(request: Request, served: Served, gpu: Mapping[str, Any] | None) -> str:
    """What the request asks for and this worker, or this GPU of it, could never give."""
    gpus = [gpu] if gpu is not None and request.gpus <= 1 else served.gpus
    if request.gpus > len(served.gpus):
        return f"{request.gpus:g} GPUs each, and its worker has {len(served.gpus)}"
    if served.worker.cpus is not None and request.cpus > served.worker.cpus:
        return f"{request.cpus} CPUs each, and its worker has {served.worker.cpus}"
    if request.vram_bytes is not None:
        sizes = [one.get("memory_bytes") for one in gpus]
        roomy = sum(1 for size in sizes if not isinstance(size, int) or size >= request.vram_bytes)
        if roomy < max(1, int(request.gpus)):
            return f"{format_bytes(request.vram_bytes)} of GPU memory"
    return ""


def _busy(request: Request, served: Served) -> str:
    """What the request needs and the worker has given out just now."""
    if request.exclusive and served.running:
        return "the other tasks of this node to end"
    free = sum(1 for gpu in served.gpus if not gpu.get("used"))
    if request.gpus > max(1, free):
        return f"{request.gpus:g} GPUs at once, and {free} are free here"
    if served.free_cpus is not None and request.cpus > served.free_cpus:
        return f"{request.cpus} CPUs, and {served.free_cpus} are free here"
    return ""


def read_queue(picture: Picture, served: Sequence[Served]) -> QueueNow:
    """The queue of a picture."""
    requests = picture.reader.requests
    queue = QueueNow(
        stopped=requests.stopped, stop_reason=requests.stop_reason, served=served, limits=dict(requests.limits),
        blocked=picture.counts()[TaskState.BLOCKED],
    )  # fmt: skip
    for token in picture.tokens:
        batch = picture.spool.batch(token.batch)
        if batch is None or picture.spool.is_folded(token.batch):
            continue
        lane = queue.lanes.setdefault(token.lane, LaneNow(token.lane, batch.request))
        if not token.form:
            lane.waiting += token.count
        elif token.form == HELD:
            lane.held += token.count
        elif token.form in (CLAIM, DRAFT):
            lane.claimed += token.count
    permits = list_permits(picture.spool)
    free = {name for name, _, owner in permits if not owner}
    queue.short = frozenset({name for name, _, _ in permits} - free)
    return queue
