"""One pass over a fleet: look up what is open, look at the jobs, read the backlog, and do at most one thing about it.

A pass needs no memory of its own and any number of them may run at once: what is decided stands in the records, and a
pass that was overtaken decides anew. Nothing is written when nothing changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.errors import OutOfReach
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.backlog import Backlog, read_backlog
from fleetcraft.fleet.drain import drain, follow_drain, still_waiting
from fleetcraft.fleet.handle import MEND, Fleet
from fleetcraft.fleet.look import look
from fleetcraft.fleet.notify import Post, Runner, Standing, notify, standing
from fleetcraft.fleet.plan import CANCEL, NOTHING, SUBMIT, Plan, cap_stop, decide
from fleetcraft.fleet.records import Overtaken
from fleetcraft.fleet.renew import Renewals, bad_nodes, plan_renewals
from fleetcraft.fleet.resolve import resolve
from fleetcraft.fleet.state import WORK, FleetState, Job
from fleetcraft.fleet.submit import Submitted, Wish, draft, submit
from fleetcraft.fleet.supply import obstacle
from fleetcraft.fleet.tail import measure_ended
from fleetcraft.schedulers.api import Limits, Observation
from fleetcraft.store.files import explain


@dataclass(slots=True)
class PassReport:
    """What one pass saw and did."""

    action: str = NOTHING
    reason: str = ""
    plan: Plan | None = None
    submitted: Submitted | None = None
    cancelled: str = ""  # token
    renewals: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)  # open intents, and why nothing is decided about them
    changed: list[str] = field(default_factory=list)  # tokens whose state changed
    backlog: Backlog | None = None
    standing: Standing | None = None
    notified: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    queries: int = 0
    damaged: bool = False  # records cannot be read, so nothing was submitted
    answered: bool = True  # by the scheduler, when it was asked how the jobs stand

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "action": self.action, "reason": self.reason, "plan": self.plan.as_json() if self.plan else None,
            "submitted": self._submitted_json(),
            "cancelled": self.cancelled or None, "renewals": self.renewals, "waiting": self.waiting,
            "changed": self.changed, "backlog": self.backlog.as_json() if self.backlog else None,
            "standing": self.standing.word if self.standing else None,
            "notified": self.notified, "problems": self.problems, "answered": self.answered,
        }  # fmt: skip

    def _submitted_json(self) -> dict[str, Any] | None:
        if self.submitted is None:
            return None
        return {**self.submitted.draft.as_json(), "job": str(self.submitted.ref) if self.submitted.ref else None}


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOptions:
    """What a pass may do."""

    grow: bool = True  # by the backlog
    renew: bool = True  # lanes
    shrink: bool = True
    dry: bool = False  # decide, and do nothing


def ensure_pass(
    fleet: Fleet, options: PassOptions = PassOptions(), *, runner: Runner | None = None, post: Post | None = None,
    limits: Callable[[], Limits | None] | None = None, mine: Callable[[], Observation | None] | None = None,
) -> PassReport:  # fmt: skip
    """Do one pass. Raises UsageError for a fleet that was never made, OutOfReach when the storage did not answer."""
    fleet.must_exist()
    report = PassReport()
    state = fleet.state()
    if not options.dry:
        resolved = resolve(fleet, state)
        report.waiting, report.problems = resolved.waiting, resolved.problems
        state = fleet.state()
        seen = look(fleet, state)
        report.changed, report.queries, report.answered = seen.changed, seen.queries, seen.answered
        report.problems += seen.problems
        _release_forgotten(fleet, fleet.state())
        if state.drained:
            report.problems += follow_drain(fleet, fleet.state()).problems
        state = fleet.state()
    report.backlog = _read_backlog(fleet, report)
    state = _stop_at_cap(fleet, state, options, report)
    if report.answered:
        _decide(fleet, state, options, report, limits() if limits else None, mine() if mine else None)
    else:
        # Every further question would wait as long for as little.
        report.reason = "the scheduler did not answer, so nothing is decided"
    if not options.dry:
        _after(fleet, report, runner, post)
    return report


def _decide(
    fleet: Fleet, state: FleetState, options: PassOptions, report: PassReport,
    limits: Limits | None, mine: Observation | None,
) -> None:  # fmt: skip
    for _ in range(fleet.policy.attempts):
        try:
            _act(fleet, state, options, report, limits, mine)
            return
        except Overtaken:
            state = fleet.state()
    report.reason = "other passes were faster every time; the next pass goes on"


def _read_backlog(fleet: Fleet, report: PassReport) -> Backlog | None:
    """None when the spool did not answer: then nothing is concluded from it."""
    try:
        return read_backlog(fleet.spool)
    except (OSError, OutOfReach) as error:
        report.problems.append(f"the backlog cannot be read: {error}")
        return None


def _stop_at_cap(fleet: Fleet, state: FleetState, options: PassOptions, report: PassReport) -> FleetState:
    """A fleet whose cap leaves nothing is drained, which is told to whoever is notified, once."""
    why = "" if state.drained or not report.answered else cap_stop(state, report.backlog, fleet.now())
    if why and not options.dry:
        report.problems += drain(fleet, why).problems
        state = fleet.state()
    if why:
        report.problems.append(f"the fleet {'would be' if options.dry else 'is'} drained: {why}")
    return state


def _act(
    fleet: Fleet, state: FleetState, options: PassOptions, report: PassReport,
    limits: Limits | None, mine: Observation | None,
) -> None:  # fmt: skip
    now_utc, backlog = fleet.now(), report.backlog
    report.problems += [problem for problem in state.problems if problem not in report.problems]
    if state.problems:
        report.damaged = True
        report.action, report.reason = NOTHING, f"nothing is submitted on damaged records: {state.damage}. {MEND}"
        return
    if backlog is None:
        report.reason = "the backlog cannot be read, so nothing is decided"
        return
    if options.renew and not state.open_intents():
        renewals = plan_renewals(state, backlog, now_utc, bad_nodes(fleet, state, backlog, now_utc))
        report.renewals = renewals.reasons
        if _renew(fleet, state, renewals, options, report, limits, mine):
            return
    report.cancelled = ""
    plan = report.plan = decide(state, backlog, limits, now_utc)
    report.action, report.reason = NOTHING, plan.reason
    if plan.action == SUBMIT and options.grow:
        _grow(fleet, state, plan, options, report, limits, mine)
    elif plan.action == CANCEL and options.shrink:
        _shrink(fleet, state, plan, options, report)


def _renew(
    fleet: Fleet, state: FleetState, renewals: Renewals, options: PassOptions, report: PassReport,
    limits: Limits | None, mine: Observation | None,
) -> bool:  # fmt: skip
    """Submit the first successor that nothing stands against; True when a submission was tried."""
    for wish in renewals.wishes:
        key = f"{wish.spec.shape}/{wish.lane}"
        why_not = obstacle(state, wish.spec, fleet.policy, fleet.now())
        if why_not:
            renewals.reasons[key] = why_not
            continue
        report.action, report.reason = SUBMIT, wish.why
        _submit(fleet, state, wish, options, report, limits, mine)
        return True
    return False


def _grow(
    fleet: Fleet, state: FleetState, plan: Plan, options: PassOptions, report: PassReport,
    limits: Limits | None, mine: Observation | None,
) -> None:  # fmt: skip
    spec = state.spec(plan.shape)
    if spec is None:
        return
    why_not = obstacle(state, spec, fleet.policy, fleet.now())
    if why_not:
        report.reason = f"{plan.reason}; but {why_not}"
        return
    bad = bad_nodes(fleet, state, report.backlog, fleet.now())
    lane = _free_lane(state, spec.shape, spec.lanes)
    wish = Wish(spec=spec.with_nodes(plan.nodes), why=plan.reason, purpose=WORK, lane=lane, exclude=tuple(bad))
    report.action = SUBMIT
    _submit(fleet, state, wish, options, report, limits, mine)


def _free_lane(state: FleetState, shape: str, lanes: int) -> int | None:
    """A lane without a live job, so that what grows is also renewed."""
    for lane in range(lanes):
        if not any(job.is_live for job in state.lane(shape, lane)):
            return lane
    return None


def _submit(
    fleet: Fleet, state: FleetState, wish: Wish, options: PassOptions, report: PassReport,
    limits: Limits | None, mine: Observation | None,
) -> None:  # fmt: skip
    drafted = draft(fleet, state, wish, limits=limits, mine=mine)
    if options.dry:
        report.submitted = Submitted(draft=drafted)
        return
    number = next(
        (number for number, spec in state.specs.items() if spec.with_nodes(wish.spec.nodes) == wish.spec), None
    )
    report.submitted = submit(fleet, drafted, spec_number=number)
    report.reason = f"{wish.why}: {report.submitted.words}"
    report.problems += report.submitted.problems
    if report.submitted.submission is None:
        report.action = NOTHING


def _shrink(fleet: Fleet, state: FleetState, plan: Plan, options: PassOptions, report: PassReport) -> None:
    """Give a waiting job back, unless it started meanwhile."""
    job = state.jobs[plan.token]
    report.action, report.cancelled = CANCEL, plan.token
    if options.dry or job.ref is None:
        return
    # Held it cannot start between the look and the cancel. The record lets a later pass release what this one held.
    fleet.log.decide(kinds.HOLD, tokens=[plan.token], why=plan.reason)
    fleet.scheduler.hold([job.ref])
    if plan.token not in still_waiting(fleet, [job]).waiting:
        _release(fleet, job)
        report.action, report.cancelled = NOTHING, ""
        report.reason = f"{plan.token} is not needed, but it may have started; its workers leave when they are idle"
        return
    try:
        fleet.log.decide(kinds.CANCEL, tokens=[plan.token], why=plan.reason)
    except Overtaken:
        _release(fleet, job)
        raise
    report.problems += fleet.cancel_refs([job.ref, *job.extra_refs], only_waiting=True)


def _release(fleet: Fleet, job: Job) -> None:
    """Let a job go that a pass of ours held; its record is only written when the scheduler took the wish."""
    if job.ref is not None and all(change.asked for change in fleet.scheduler.release([job.ref])):
        fleet.log.state_fact(kinds.RELEASE, tokens=[job.token])


def _release_forgotten(fleet: Fleet, state: FleetState) -> None:
    """A pass that died, or got no answer, after it held a job must not keep it for ever."""
    for job in state.live():
        if job.on_hold and job.cancel_utc is None and job.ref is not None:
            if job.is_running:
                fleet.log.state_fact(kinds.RELEASE, tokens=[job.token])
            else:
                _release(fleet, job)


def _after(fleet: Fleet, report: PassReport, runner: Runner | None, post: Post | None) -> None:
    state = fleet.state()
    try:
        measure_ended(fleet, state)
    except OSError as error:
        report.problems.append(str(explain(error, "The idle tail could not be measured")))
    state = fleet.state()
    unfinished = None if report.backlog is None else report.backlog.unfinished
    report.standing = standing(state, fleet, unfinished=unfinished)
    report.notified = notify(fleet, state, report.standing, runner, post)


def ensure_loop(
    one_pass: Callable[[], PassReport], interval_s: float, *, wait: Callable[[float], None] = time.sleep,
    on_report: Callable[[PassReport], None] = lambda _report: None, passes: int | None = None,
) -> Sequence[PassReport]:  # fmt: skip
    """Pass after pass with a pause between, until `wait` raises, or so many passes were made. Returns the last one.

    A pass that the storage did not let through is reported like any other; the next one tries again.
    """
    done = 0
    last: list[PassReport] = []
    while passes is None or done < passes:
        try:
            report = one_pass()
        except OutOfReach as error:
            report = PassReport(reason="the storage did not answer", problems=[str(error)])
        last = [report]
        on_report(report)
        done += 1
        if passes is None or done < passes:
            wait(interval_s)
    return last
