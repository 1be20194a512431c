"""How many nodes the backlog needs beyond what is running or waiting already: pure, and always with its reason.

Everything is counted in node-seconds. One task takes a share of a node for its measured mean time; a lane without
measurements is planned with an assumed time, and the plan says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.quantities import format_duration
from fleetcraft.core.resources import Request
from fleetcraft.fleet.backlog import Backlog, LaneWork
from fleetcraft.fleet.spec import FleetSpec
from fleetcraft.fleet.state import RENEWAL, WORK, FleetState, Job
from fleetcraft.schedulers.api import Limits

SUBMIT, CANCEL, NOTHING = "submit", "cancel", "nothing"
# A waiting job is given back only when the rest could do twice the work, or growing and shrinking would alternate.
_SURPLUS = 2.0
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What one node of a shape can take. None: not known."""

    gpus: int
    cpus: int | None

    def slots(self, request: Request) -> int:
        """How many such tasks run there at once; 0: such a task never fits."""
        if request.gpus > self.gpus:
            return 0
        if self.cpus is not None and request.cpus > self.cpus:
            return 0
        if request.exclusive:
            return 1
        slots: list[int] = []
        if request.gpus:
            # A fraction of a GPU shares one; a whole number takes whole ones.
            each = math.floor(1 / request.gpus + 1e-9) if request.gpus < 1 else 0
            slots.append(self.gpus * each if each else self.gpus // int(request.gpus))
        if request.cpus and self.cpus is not None:
            slots.append(self.cpus // request.cpus)
        return max(1, min(slots)) if slots else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One decision of one pass."""

    action: str
    reason: str
    shape: str = ""
    nodes: int = 0
    time_limit_s: float | None = None
    token: str = ""  # of the job to give back
    assumed: tuple[str, ...] = ()  # lanes planned without a measured time
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For reports and records."""
        return {
            "action": self.action, "reason": self.reason, "shape": self.shape, "nodes": self.nodes,
            "time_limit_s": self.time_limit_s, "token": self.token, "assumed": list(self.assumed),
            "numbers": dict(self.numbers),
        }  # fmt: skip


@dataclass(slots=True)
class Need:
    """The work that nodes of one shape could do."""

    node_s: float = 0.0
    tasks: int = 0
    most_nodes: int = 0  # more could not be busy at once
    lanes: set[str] = field(default_factory=set)
    assumed: list[str] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)


def node_of(spec: FleetSpec, limits: Limits | None) -> Node:
    """The node of a shape, from the spec, else from the partition as the scheduler describes it."""
    cpus = spec.worker.cpus or spec.cpus_per_node
    if cpus is None and limits is not None:
        name = spec.site.partition.scheduler_name
        found = [one for one in limits.partitions if one.name == name or (name is None and one.is_default)]
        cpus = found[0].cpus_per_node if found else None
    return Node(gpus=spec.gpus_per_node, cpus=cpus)


def need_of(backlog: Backlog, node: Node, spec: FleetSpec) -> Need:
    """What of the backlog such nodes can take, in node-seconds."""
    need = Need()
    busy = 0.0
    for name, lane in sorted(backlog.lanes.items()):
        if not lane.unfinished:
            continue
        slots = node.slots(lane.request)
        if not slots:
            need.misfits.append(name)
            continue
        if not _fits_in_time(lane, spec):
            need.misfits.append(name)
            continue
        if lane.mean_s is None:
            need.assumed.append(name)
        mean_s = spec.task_s if lane.mean_s is None else lane.mean_s
        need.lanes.add(name)
        need.tasks += lane.unfinished
        need.node_s += lane.unfinished * mean_s / slots
        busy += lane.unfinished / slots
    need.most_nodes = math.ceil(busy)
    return need


def _fits_in_time(lane: LaneWork, spec: FleetSpec) -> bool:
    left_s = spec.time_limit_s - spec.drain_before_s() - spec.margin_s()
    return lane.request.needs_s is None or lane.request.needs_s <= left_s


def usable_s(spec: FleetSpec) -> float:
    """How long a node of a fresh job takes work: its time limit less the drain at its end."""
    usable = max(1.0, spec.time_limit_s - spec.drain_before_s() - spec.margin_s())
    return usable if spec.finish_within_s is None else min(usable, spec.finish_within_s)


def headroom_s(jobs: Sequence[Job], spec: FleetSpec, now_utc: float) -> float:
    """Node-seconds that running and waiting jobs can still give to work."""
    total = 0.0
    reserve_s = spec.drain_before_s() + spec.margin_s()
    for job in jobs:
        left_s = job.reserved_node_seconds(now_utc) - reserve_s * job.nodes
        if spec.finish_within_s is not None:
            # Only what it gives in time counts; one that begins later gives less.
            later_s = max(0.0, (job.begin_utc or now_utc) - now_utc)
            left_s = min(left_s, max(0.0, spec.finish_within_s - later_s) * job.nodes)
        total += max(0.0, left_s)
    return total


def decide(state: FleetState, backlog: Backlog, limits: Limits | None, now_utc: float) -> Plan:
    """At most one new job, or one waiting job given back, or a reason for neither."""
    if state.problems:
        return Plan(action=NOTHING, reason=f"nothing is decided on damaged records: {state.damage}")
    if not state.work_shapes():
        return Plan(action=NOTHING, reason="nothing was declared for this fleet")
    if state.drained:
        why = f": {state.drain_reason}" if state.drain_reason else ""
        return Plan(action=NOTHING, reason=f"the fleet drains{why}")
    if state.open_intents():
        tokens = ", ".join(job.token for job in state.open_intents())
        return Plan(action=NOTHING, reason=f"a submission has no answer yet ({tokens})")
    if backlog.stopped:
        why = f": {backlog.stop_reason}" if backlog.stop_reason else ""
        return Plan(action=NOTHING, reason=f"the spool is stopped{why}")
    plans = [_for_shape(state, spec, backlog, limits, now_utc) for _, spec in state.work_shapes()]
    for action in (SUBMIT, CANCEL):
        for plan in plans:
            if plan.action == action:
                return plan
    if len(plans) == 1:
        return plans[0]
    return Plan(action=NOTHING, reason="; ".join(f"{plan.shape}: {plan.reason}" for plan in plans))


def _for_shape(state: FleetState, spec: FleetSpec, backlog: Backlog, limits: Limits | None, now_utc: float) -> Plan:
    live = state.workers_live()
    mine = [job for job in live if job.shape == spec.shape]
    need = need_of(backlog, node_of(spec, limits), spec)
    have_s = headroom_s([job for job in live if _helps(state, job, need, backlog, limits)], spec, now_utc)
    nodes_live = sum(job.nodes for job in mine if not state.stands_by(job))
    numbers = {
        "tasks": need.tasks, "need_node_s": round(need.node_s), "headroom_node_s": round(have_s),
        "live_nodes": nodes_live, "most_nodes": spec.most_nodes, "misfits": need.misfits,
    }  # fmt: skip
    facts: dict[str, Any] = {"shape": spec.shape, "assumed": tuple(need.assumed), "numbers": numbers}
    if need.node_s > have_s or nodes_live < spec.min_nodes:
        return _grow(state, spec, need, have_s, nodes_live, now_utc, facts)
    surplus = _surplus(mine, spec, need, have_s, nodes_live, now_utc)
    if surplus is not None:
        return Plan(
            action=CANCEL, token=surplus.token, nodes=surplus.nodes, **facts,
            reason=f"{surplus.token} still waits, and {_work(need)} needs no more than what is there already",
        )  # fmt: skip
    return Plan(action=NOTHING, reason=_enough(need, backlog, have_s, nodes_live), **facts)


def _helps(state: FleetState, job: Job, need: Need, backlog: Backlog, limits: Limits | None) -> bool:
    """True when the nodes of a job, of whatever shape, can take everything that this need is made of."""
    own = state.spec_of(job)
    return own is None or need.lanes <= need_of(backlog, node_of(own, limits), own).lanes


def _work(need: Need) -> str:
    if not need.tasks:
        return "no task waits, which"
    return f"the backlog of {need.tasks} task{'s' * (need.tasks != 1)} ({format_duration(need.node_s)} of a node)"


def _enough(need: Need, backlog: Backlog, have_s: float, nodes_live: int) -> str:
    if need.tasks:
        nodes = f"{nodes_live} live node{'s' * (nodes_live != 1)}"
        return f"{nodes} can take {_work(need)}: {format_duration(have_s)} of a node are left there"
    if need.misfits:
        return f"what waits fits no node of this shape: lane {', '.join(need.misfits)}"
    if backlog.held:
        tasks = f"{backlog.held} task{' waits' if backlog.held == 1 else 's wait'}"
        return f"{tasks} for other tasks, and nothing can be started"
    return "nothing waits"


def _grow(
    state: FleetState, spec: FleetSpec, need: Need, have_s: float, nodes_live: int, now_utc: float,
    facts: Mapping[str, Any],
) -> Plan:  # fmt: skip
    room = spec.most_nodes - nodes_live
    if room <= 0:
        return Plan(
            action=NOTHING,
            reason=f"{nodes_live} node{' is' if nodes_live == 1 else 's are'} asked for or running, "
            f"and {spec.most_nodes} is the most",
            **facts,
        )
    missing_s = max(0.0, need.node_s - have_s)
    nodes = math.ceil(missing_s / usable_s(spec))
    # Sooner is better than fuller: as many nodes as could be busy, as long as one job may have them.
    nodes = max(nodes, min(need.most_nodes - nodes_live, spec.nodes), spec.min_nodes - nodes_live, 1)
    nodes = min(nodes, spec.nodes, room)
    nodes, capped = within_budget(state, spec, nodes, now_utc)
    if nodes < 1:
        return Plan(action=NOTHING, reason=capped, **facts)
    why = f"{_work(need)} is more than live jobs can still take ({format_duration(have_s)})"
    if nodes_live < spec.min_nodes and not need.tasks:
        why = f"at least {spec.min_nodes} nodes are kept up, and {nodes_live} are there"
    assumed = f"; {format_duration(spec.task_s)} per task is assumed, nothing was measured yet" if need.assumed else ""
    return Plan(
        action=SUBMIT, nodes=nodes, time_limit_s=spec.time_limit_s,
        reason=why + assumed + (f"; {capped}" if capped else ""), **facts,
    )  # fmt: skip


def within_budget(state: FleetState, spec: FleetSpec, nodes: int, now_utc: float) -> tuple[int, str]:
    """How many of `nodes` the caps of the fleet allow to their time limit, and in words what they took away."""
    caps = (
        (
            "GPU-hour", spec.gpu_hour_cap, state.gpu_seconds(now_utc) + state.reserved_gpu_seconds(now_utc),
            spec.time_limit_s * spec.gpus_per_node,
        ),
        (
            "node-hour", spec.node_hour_cap, state.node_seconds(now_utc) + state.reserved_node_seconds(now_utc),
            spec.time_limit_s,
        ),
    )  # fmt: skip
    said = ""
    for what, cap_h, taken_s, each_s in caps:
        if cap_h is None or each_s <= 0:
            continue
        allowed = max(0, math.floor((cap_h * _HOUR_S - taken_s) / each_s + 1e-9))
        if allowed < nodes:
            said = (
                f"the {what} cap of {cap_h:g} leaves {max(0.0, cap_h - taken_s / _HOUR_S):.2f} "
                f"(spent and reserved: {taken_s / _HOUR_S:.2f}); a node costs {each_s / _HOUR_S:.2f}"
            )
            nodes = allowed
    return nodes, said


def cap_stop(state: FleetState, backlog: Backlog | None, now_utc: float) -> str:
    """Why the whole fleet must stop: a cap is used up, or leaves too little for what still waits. Else empty.

    A job that was taken back and ran anew, or ran over its time, can use more than was set aside for it.
    """
    for _, spec in state.work_shapes():
        for what, cap_h, spent_s in (
            ("GPU-hour", spec.gpu_hour_cap, state.gpu_seconds(now_utc)),
            ("node-hour", spec.node_hour_cap, state.node_seconds(now_utc)),
        ):
            if cap_h is not None and spent_s >= cap_h * _HOUR_S:
                return f"the {what} cap of {cap_h:g} is used up ({spent_s / _HOUR_S:.2f} spent)"
    if state.live() or backlog is None or not backlog.unfinished:
        return ""
    left = [within_budget(state, spec, 1, now_utc) for _, spec in state.work_shapes()]
    return left[0][1] if left and not any(nodes for nodes, _ in left) else ""


def _surplus(
    mine: Sequence[Job], spec: FleetSpec, need: Need, have_s: float, nodes_live: int, now_utc: float
) -> Job | None:
    """A waiting job that nobody needs: the youngest first, never one of a lane that is kept up while there is work."""
    for job in sorted(mine, key=lambda job: -job.number):
        if not job.is_waiting or job.cancel_utc is not None or job.purpose not in (WORK, RENEWAL):
            continue
        if spec.lanes and job.lane is not None and need.tasks:
            continue
        if spec.min_nodes and nodes_live - job.nodes < spec.min_nodes:
            continue
        left_s = have_s - headroom_s([job], spec, now_utc)
        if need.node_s == 0 or left_s >= _SURPLUS * need.node_s:
            return job
    return None
