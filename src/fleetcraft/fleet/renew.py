"""Lanes: sequences of jobs of exactly one shape, each with one successor queued, for as long as there is work.

A successor is recognised by its record, so any number of passes queue one. Nodes that proved bad are left out of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fleetcraft.core.states import JobState, LossCause
from fleetcraft.fleet.backlog import Backlog, tail_records
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.plan import need_of, node_of, within_budget
from fleetcraft.fleet.spec import FleetSpec
from fleetcraft.fleet.state import RENEWAL, FleetState, Job
from fleetcraft.fleet.submit import Wish
from fleetcraft.spool.life import read_identity

# For so long a node that proved bad is left out.
BAD_FOR_S = 86_400.0
_NODE_WORDS = ("NODE_FAIL", "BOOT_FAIL")


@dataclass(slots=True)
class Renewals:
    """What the lanes need now, at most one wish each, and why the others need nothing."""

    wishes: list[Wish] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)  # shape and lane to words


def plan_renewals(
    state: FleetState, backlog: Backlog | None, now_utc: float, bad_nodes: Iterable[str] = ()
) -> Renewals:
    """The successors that are missing. Pure. Without a backlog the lanes are kept up whatever waits."""
    result = Renewals()
    for _, spec in state.work_shapes():
        shape = spec.shape
        for lane in range(spec.lanes):
            wish, reason = _for_lane(state, spec, shape, lane, backlog, now_utc, tuple(sorted(set(bad_nodes))))
            key = f"{shape}/{lane}"
            if wish is not None:
                result.wishes.append(wish)
            result.reasons[key] = reason
    return result


def _for_lane(
    state: FleetState, spec: FleetSpec, shape: str, lane: int, backlog: Backlog | None, now_utc: float,
    bad: tuple[str, ...],
) -> tuple[Wish | None, str]:  # fmt: skip
    if state.drained:
        return None, "the fleet drains"
    if backlog is not None and not spec.min_nodes:
        if backlog.stopped:
            return None, "the spool is stopped"
        if not need_of(backlog, node_of(spec, None), spec).tasks:
            return None, "no task waits that it could take"
    jobs = state.lane(shape, lane)
    live = [job for job in jobs if job.is_live]
    waiting = [job for job in live if not job.is_running]
    if waiting:
        return None, f"{waiting[-1].token} waits already"
    before = live[-1] if live else (jobs[-1] if jobs else None)
    own = state.spec_of(before) if before is not None else None
    exact = (own or spec).with_nodes(before.nodes) if before is not None and before.nodes else spec
    allowed, capped = within_budget(state, exact, exact.nodes, now_utc)
    if allowed < exact.nodes:
        return None, f"a successor needs exactly {exact.nodes} node{'s' * (exact.nodes != 1)}: {capped}"
    if not live:
        why = f"lane {lane} is empty" if before is None else _why_again(before, lane)
        return Wish(spec=exact, why=why, purpose=RENEWAL, lane=lane, exclude=bad,
                    follows=before.token if before else None), why  # fmt: skip
    return _successor(exact, live[-1], lane, now_utc, bad)


def _successor(
    exact: FleetSpec, before: Job, lane: int, now_utc: float, bad: tuple[str, ...]
) -> tuple[Wish | None, str]:
    end_utc = before.expected_end_utc(now_utc)
    if exact.renew_before_s is not None and end_utc is not None and end_utc - now_utc > exact.renew_before_s:
        return None, f"{before.token} runs for another {(end_utc - now_utc) / 60:.0f} min"
    why = f"the successor of {before.token} in lane {lane}"
    if exact.renew_by == "begin" and end_utc is not None:
        return Wish(
            spec=exact, why=why, purpose=RENEWAL, lane=lane, follows=before.token, begin_utc=end_utc, exclude=bad
        ), why
    after = (before.ref,) if before.ref is not None else ()
    return Wish(spec=exact, why=why, purpose=RENEWAL, lane=lane, follows=before.token, after=after, exclude=bad), why


def _why_again(before: Job, lane: int) -> str:
    words = {
        JobState.LOST: "was taken away (preempted, or its node failed)",
        JobState.TIMEOUT: "reached its time limit",
        JobState.CANCELLED: "was cancelled",
        JobState.FAILED: "failed",
    }
    what = words.get(before.state, "ended") if before.state is not None else "ended"
    return f"{before.token} of lane {lane} {what}, and there is work"


def bad_nodes(fleet: Fleet, state: FleetState, backlog: Backlog | None, now_utc: float) -> list[str]:
    """Nodes that proved bad lately: black holes by the journals of their workers, and nodes that failed again.

    Only names that the scheduler itself gave for our jobs are used: it refuses a request with a name it does not know.
    Never more than a quarter of the nodes: a bad hour of the whole site must not leave the fleet without any.
    Raises OSError.
    """
    known = {name.partition(".")[0]: name for job in state.jobs.values() for name in job.node_names}
    bad = {
        known[short]: None
        for view in (backlog.lives if backlog is not None else ())
        if (short := (view.host or "").partition(".")[0]) in known and _is_black_hole(fleet, view.life, now_utc)
    }
    for name in _failed_nodes(state.jobs.values(), now_utc):
        bad.setdefault(name)
    spec = state.spec()
    total = max(len(known), (spec.site.partition.nodes or 0) if spec is not None else 0)
    return sorted(list(bad)[: max(total // 4, int(total > 1))])


def _failed_nodes(jobs: Iterable[Job], now_utc: float) -> list[str]:
    """Nodes that failed twice under jobs of ours, the latest first.

    Once is chance, and the scheduler takes a dead node out by itself. Of a job on several nodes nobody says which one
    failed, so nothing is concluded from it.
    """
    failed = sorted(
        (-(job.seen_utc or 0.0), job.node_names[0])
        for job in jobs
        if job.raw_state in _NODE_WORDS and len(job.node_names) == 1 and now_utc - (job.seen_utc or 0.0) < BAD_FOR_S
    )
    names = [name for _, name in failed]
    return list(dict.fromkeys(name for name in names if names.count(name) > 1))


def _is_black_hole(fleet: Fleet, life: str, now_utc: float) -> bool:
    identity = read_identity(fleet.spool.files, fleet.spool.layout.life(life))
    if identity is None or now_utc - identity.created_utc > BAD_FOR_S:
        return False
    return any(
        record.get("t") == "note" and record.get("what") == "drain" and record.get("cause") == LossCause.BLACK_HOLE
        for record in tail_records(fleet.spool, life)
    )
