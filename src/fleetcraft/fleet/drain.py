"""Ending a fleet in order: nothing new is claimed, work goes back, and only then are jobs cancelled.

Draining and cancelling are separate verbs: a drain leaves running tasks alone, a cancel asks them to save their state
and ends the jobs when that is done or its time is up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.errors import UsageError
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.look import look
from fleetcraft.fleet.resolve import resolve
from fleetcraft.fleet.state import FleetState, Job
from fleetcraft.fleet.tail import lives_of
from fleetcraft.spool.life import LIVE, find_state
from fleetcraft.spool.requests import DRAIN as DRAIN_LIVES
from fleetcraft.spool.requests import RequestLog, ask
from fleetcraft.store.files import explain

Wait = Callable[[float], None]
_LOOK_EVERY_S = 1.0


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


def fresh_state(fleet: Fleet) -> FleetState:
    """The state after open submissions were looked up and the jobs were looked at."""
    resolve(fleet, fleet.state())
    look(fleet, fleet.state())
    return fleet.state()


def follow_drain(fleet: Fleet, state: FleetState) -> EndReport:
    """Bring a drain to what appeared since: called by every pass over a drained fleet. Idempotent."""
    report = EndReport()
    waiting = [job for job in state.live() if job.is_waiting and job.cancel_utc is None]
    _cancel_jobs(fleet, waiting, "the fleet drains", report)
    report.drained = drain_lives(fleet, [job for job in state.live() if job.serves_work], "the fleet drains")
    return report


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
        fleet.log.state_fact(kinds.DRAIN, why=why or "cancelled")
    state = fresh_state(fleet)
    jobs = [job for job in pick(state, targets) if job.is_live]
    _cancel_jobs(fleet, [job for job in jobs if job.is_waiting], why, report)
    running = [job for job in jobs if not job.is_waiting and job.ref is not None]
    if not running:
        return report
    fleet.log.state_fact(kinds.CANCEL, tokens=[job.token for job in running], why=why)
    if finish_s > 0:
        report.drained = drain_lives(fleet, running, why or "the job is cancelled")
        _wait_for_lives(fleet, running, finish_s, wait, report)
    if any(living(fleet, job) for job in running):
        report.problems += [problem for job in running if (problem := tell_to_stop(fleet, job))]
        report.signalled = [job.token for job in running]
        _wait_for_lives(fleet, running, save_s, wait, report)
    report.left = [life for job in running for life in living(fleet, job)]
    report.problems += fleet.cancel_refs([ref for job in running for ref in _refs(job)])
    report.cancelled += [job.token for job in running]
    return report


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


def _cancel_jobs(fleet: Fleet, jobs: Sequence[Job], why: str, report: EndReport) -> None:
    jobs = [job for job in jobs if job.ref is not None]
    if not jobs:
        return
    fleet.log.state_fact(kinds.CANCEL, tokens=[job.token for job in jobs], why=why)
    report.problems += fleet.cancel_refs([ref for job in jobs for ref in _refs(job)])
    report.cancelled += [job.token for job in jobs]


def _refs(job: Job) -> list[Any]:
    return ([job.ref] if job.ref is not None else []) + job.extra_refs


def _wait_for_lives(fleet: Fleet, jobs: Sequence[Job], limit_s: float, wait: Wait, report: EndReport) -> None:
    clock = fleet.spool.clock
    begun_s = clock.mono()
    while any(living(fleet, job) for job in jobs) and clock.mono() - begun_s < limit_s:
        wait(min(_LOOK_EVERY_S, limit_s))
    report.waited_s += clock.mono() - begun_s
