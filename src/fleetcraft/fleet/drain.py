"""Ending a fleet in order: nothing new is claimed, work goes back, and only then are jobs cancelled.

Draining and cancelling are separate verbs: a drain leaves running tasks alone, a cancel asks them to save their state
and ends the jobs when that is done or its time is up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.errors import OutOfReach, UsageError
from fleetcraft.core.states import JobState
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.look import look, read_exit, read_file
from fleetcraft.fleet.names import is_token
from fleetcraft.fleet.resolve import resolve
from fleetcraft.fleet.state import FleetState, Job, Phase, ref_json
from fleetcraft.fleet.tail import lives_of
from fleetcraft.spool.life import LIVE, find_state
from fleetcraft.spool.requests import DRAIN as DRAIN_LIVES
from fleetcraft.spool.requests import RequestLog, ask
from fleetcraft.store.files import explain

Wait = Callable[[float], None]
_LOOK_EVERY_S = 1.0
_WAITS = (JobState.PENDING, JobState.HELD, JobState.BLOCKED)


@dataclass(slots=True)
class EndReport:
    """What a drain or a cancel asked for, and what is left."""

    drained: list[str] = field(default_factory=list)  # lives that were asked
    cancelled: list[str] = field(default_factory=list)  # tokens
    signalled: list[str] = field(default_factory=list)  # tokens
    left: list[str] = field(default_factory=list)  # lives that had not ended when the jobs were cancelled
    problems: list[str] = field(default_factory=list)
    waited_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {name: getattr(self, name) for name in self.__slots__}


def drain(fleet: Fleet, why: str = "") -> EndReport:
    """No new jobs; waiting jobs are given back, and workers leave when what they run has ended."""
    fleet.must_exist()
    state = fleet.state()
    if not state.drained:
        fleet.log.state_fact(kinds.DRAIN, why=why)
    return follow_drain(fleet, fresh_state(fleet))


def resume(fleet: Fleet, why: str = "") -> None:
    """Take a drain back: the next pass may submit again. Workers that were asked to leave still leave."""
    fleet.must_exist()
    if fleet.state().drained:
        fleet.log.state_fact(kinds.RESUME, why=why)


def fresh_state(fleet: Fleet, report: EndReport | None = None) -> FleetState:
    """The state after open submissions were looked up and the jobs were looked at.

    With a report, what could not be written down is told there and stops nothing.
    """
    for step in (resolve, look):
        try:
            step(fleet, fleet.state())
        except OutOfReach as error:
            if report is None:
                raise
            report.problems.append(f"not recorded: {error}")
    return fleet.state()


def follow_drain(fleet: Fleet, state: FleetState) -> EndReport:
    """Bring a drain to what appeared since: called by every pass over a drained fleet. Idempotent."""
    report = EndReport()
    waiting = [job for job in state.live() if job.is_waiting and job.cancel_utc is None]
    _give_back(fleet, waiting, "the fleet drains", report)
    report.drained = drain_lives(fleet, [job for job in state.live() if job.serves_work], "the fleet drains")
    return report


@dataclass(frozen=True, slots=True)
class Doubt:
    """What a fresh look says of jobs that are known as waiting."""

    answered: bool
    waiting: frozenset[str] = frozenset()  # tokens that certainly wait
    queued: frozenset[str] = frozenset()  # tokens that the queue has


def still_waiting(fleet: Fleet, jobs: Sequence[Job]) -> Doubt:
    """Ask anew, past every shared answer: what is known may be older than the start of a job.

    A job with a living worker, or whose script began, does not wait, whatever the scheduler says.
    """
    fresh = fleet.scheduler.mine()
    if not fresh.answered:
        return Doubt(answered=False)
    by_token = {view.token: view for view in fresh.jobs.values() if view.token}
    views = {
        job.token: view
        for job in jobs
        if job.ref and (view := fresh.jobs.get(str(job.ref)) or by_token.get(job.token)) and view.ref.id == job.ref.id
    }
    ours = {token: view for token, view in views.items() if not view.token or view.token == token}
    waiting = [
        job.token for job in jobs
        if (view := ours.get(job.token)) and not view.stale and view.state in _WAITS and not has_begun(fleet, job)
    ]  # fmt: skip
    return Doubt(answered=True, waiting=frozenset(waiting), queued=frozenset(ours))


def has_begun(fleet: Fleet, job: Job) -> bool:
    """True when the job itself left a trace of a run that nobody knows to be over."""
    if living(fleet, job):
        return True
    try:
        started = read_file(fleet, fleet.folder.job(job.token).started)
        if started is None:
            return fleet.spool.files.exists(fleet.folder.job(job.token).started)
        if read_exit(fleet, job) is not None:
            return False
    except OSError:
        return True
    at_utc = started.get("at_utc")
    if not isinstance(at_utc, (int, float)):
        return True
    # Taken off its nodes by the scheduler, it waits for the next run.
    return not any(run.end_utc is not None and at_utc <= run.end_utc for run in job.runs)


def _give_back(fleet: Fleet, jobs: Sequence[Job], why: str, report: EndReport) -> list[Job]:
    """Cancel the jobs that wait, and no other; returns those that do not, or of which nobody knows.

    Held, a job cannot start between the look and the cancel; and the cancel itself leaves alone what runs.
    """
    jobs = [job for job in jobs if job.ref is not None]
    if not jobs:
        return []
    first = still_waiting(fleet, jobs)
    if not first.answered:
        names = ", ".join(job.token for job in jobs)
        report.problems.append(f"the scheduler did not answer whether {names} still waits, so it was not given back")
        return list(jobs)
    held = [job for job in jobs if job.token in first.waiting]
    if held:
        _record(fleet, report, kinds.HOLD, tokens=[job.token for job in held], why=why)
        fleet.scheduler.hold([ref for job in held for ref in _refs(job)])
        sure = still_waiting(fleet, held).waiting
        started = [job for job in held if job.token not in sure]
        _release(fleet, started, report)
        held = [job for job in held if job.token in sure]
    if held:
        _record(fleet, report, kinds.CANCEL, tokens=[job.token for job in held], why=why)
        report.problems += fleet.cancel_refs([ref for job in held for ref in _refs(job)], only_waiting=True)
        report.cancelled += [job.token for job in held]
    given = {job.token for job in held}
    return [job for job in jobs if job.token not in given]


def _release(fleet: Fleet, jobs: Sequence[Job], report: EndReport) -> None:
    """Let go what was held and runs, or may: a later pass tries again where this one is not heard."""
    refs = [ref for job in jobs for ref in _refs(job)]
    if refs and all(change.asked for change in fleet.scheduler.release(refs)):
        _record(fleet, report, kinds.RELEASE, tokens=[job.token for job in jobs])


def _record(fleet: Fleet, report: EndReport, kind: str, **body: object) -> None:
    """Write down what is done; a full disk must not keep a job running."""
    try:
        fleet.log.state_fact(kind, **body)
    except OutOfReach as error:
        report.problems.append(f"not recorded ({kind}): {error}")


def drain_lives(fleet: Fleet, jobs: Sequence[Job], reason: str) -> list[str]:
    """Ask the living workers of jobs to drain, those that were not asked yet."""
    requests = RequestLog(fleet.spool)
    requests.refresh(force=True)
    lives = [life for job in jobs for life in living(fleet, job) if life not in requests.drained]
    if lives:
        ask(fleet.spool, DRAIN_LIVES, lives=lives, reason=reason)
    return lives


def living(fleet: Fleet, job: Job) -> list[str]:
    """The lives of a job that have not ended by their own word."""
    files, layout = fleet.spool.files, fleet.spool.layout
    return [life for life in lives_of(fleet, job) if find_state(files, layout.life(life)) == LIVE]


def pick(state: FleetState, targets: Sequence[str] | None) -> list[Job]:
    """Jobs by token or id; all live ones without targets. Raises UsageError."""
    if not targets:
        return state.live()
    jobs: list[Job] = []
    for target in targets:
        job = state.jobs.get(target) or state.by_ref(target)
        if job is None:
            raise UsageError(f"The fleet has no job {target}.", hint="See `fleetcraft fleet status`.")
        jobs.append(job)
    return jobs


def cancel(
    fleet: Fleet, targets: Sequence[str] | None = None, *, why: str = "", finish_s: float = 0.0, save_s: float = 60.0,
    wait: Wait = time.sleep,
) -> EndReport:  # fmt: skip
    """End jobs, or the whole fleet without targets: drain, wait, ask tasks to save their state, wait, cancel.

    `finish_s` is how long running tasks may go on, `save_s` how long they may take to save. Both waits end early.
    """
    fleet.must_exist()
    report = EndReport()
    if not targets:
        _record(fleet, report, kinds.DRAIN, why=why or "cancelled")
    state = fresh_state(fleet, report)
    if state.problems:
        state = adopt(fleet, state, report)
    jobs = [job for job in pick(state, targets) if job.is_live and job.ref is not None]
    doubtful = {job.token for job in _give_back(fleet, [job for job in jobs if job.is_waiting], why, report)}
    running = [job for job in jobs if not job.is_waiting or job.token in doubtful]
    if not state.specs and running:
        # The site is only guessed then, and an id of ours may be a job of somebody else there.
        queued = still_waiting(fleet, running).queued
        report.problems += [
            f"{job.token} ({job.ref}) is not in the queue" for job in running if job.token not in queued
        ]
        running = [job for job in running if job.token in queued]
    if not running:
        return report
    _record(fleet, report, kinds.CANCEL, tokens=[job.token for job in running], why=why)
    if finish_s > 0:
        try:
            report.drained = drain_lives(fleet, running, why or "the job is cancelled")
        except OutOfReach as error:
            report.problems.append(f"the workers could not be asked to leave: {error}")
        _wait_for_lives(fleet, running, finish_s, wait, report)
    if _may_work(fleet, running, 0.0):
        report.problems += [problem for job in running if (problem := tell_to_stop(fleet, job))]
        report.signalled = [job.token for job in running]
        # The time to save begins when the word has arrived: nodes look for it every few seconds.
        limit_s = save_s + fleet.policy.notice_s if save_s > 0 else 0.0
        _wait_for_lives(fleet, running, limit_s, wait, report, tell=True)
    report.left = [life for job in running for life in living(fleet, job)]
    report.problems += fleet.cancel_refs([ref for job in running for ref in _refs(job)])
    report.cancelled += [job.token for job in running]
    return report


def adopt(fleet: Fleet, state: FleetState, report: EndReport) -> FleetState:
    """Where records are damaged: jobs in the queue that carry a token of this fleet, and whose records are lost.

    Every token of a fleet has a folder before the scheduler is asked.
    """
    names: list[str] = []
    try:
        names = [name for name in fleet.spool.files.folders(fleet.folder.jobs) if is_token(name)]
    except OSError as error:
        report.problems.append(str(explain(error, "The folders of the jobs cannot be read")))
    known = {job.token for job in state.jobs.values() if job.ref is not None}
    lost = {*names, *state.jobs} - known
    if not lost:
        return state
    for view in fleet.scheduler.mine().jobs.values():
        if view.token in lost:
            _record(fleet, report, kinds.SUBMITTED, token=view.token, ref=ref_json(view.ref), outcome="found")
            job = state.jobs.setdefault(view.token, Job(view.token))
            job.ref, job.phase, job.state = view.ref, Phase.SUBMITTED, view.state
    return state


def tell_to_stop(fleet: Fleet, job: Job) -> str:
    """Have the workers of a job save the state of their tasks, give them back, and leave; what went wrong, in words.

    By a file and not by a signal of the scheduler, which on some sites reaches the tasks too and ends them.
    """
    try:
        fleet.spool.files.create(fleet.folder.job(job.token).stop)
    except FileExistsError:
        return ""
    except OSError as error:
        return str(explain(error, f"The workers of {job.token} could not be told to stop"))
    return ""


def cancel_step(fleet: Fleet, targets: Sequence[str] | None = None, *, signal: str | None = None) -> EndReport:
    """End the workers and not the jobs: they are told to stop, and a job ends by itself when its workers have.

    With `signal` the scheduler sends it to every process of the job instead, tasks included.
    """
    fleet.must_exist()
    report = EndReport()
    jobs = [job for job in pick(fleet.state(), targets) if job.is_live and job.ref is not None]
    fleet.log.state_fact(kinds.NOTE, what="signalled", tokens=[job.token for job in jobs], signal=signal)
    if signal is None:
        report.problems += [problem for job in jobs if (problem := tell_to_stop(fleet, job))]
    else:
        report.problems += fleet.cancel_refs([job.ref for job in jobs if job.ref], signal=signal)
    report.signalled = [job.token for job in jobs]
    return report


def _refs(job: Job) -> list[Any]:
    return ([job.ref] if job.ref is not None else []) + job.extra_refs


def _may_work(fleet: Fleet, jobs: Sequence[Job], passed_s: float) -> bool:
    """True while a worker lives, or one may still come because the script of its job has begun."""
    if any(living(fleet, job) for job in jobs):
        return True
    return passed_s < fleet.policy.notice_s and any(job.serves_work and has_begun(fleet, job) for job in jobs)


def _wait_for_lives(
    fleet: Fleet, jobs: Sequence[Job], limit_s: float, wait: Wait, report: EndReport, *, tell: bool = False
) -> None:
    clock = fleet.spool.clock
    begun_s = clock.mono()
    while (passed_s := clock.mono() - begun_s) < limit_s and _may_work(fleet, jobs, passed_s):
        wait(min(_LOOK_EVERY_S, limit_s - passed_s))
        if tell:
            for job in jobs:
                tell_to_stop(fleet, job)  # a script that has only just begun takes the word of an earlier run away
    report.waited_s += clock.mono() - begun_s
