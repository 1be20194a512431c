"""Intents without an answer: looked up by their token first, and given up only when every doubt is spent.

Giving up is itself safe: before it is written down the job is told in its folder to run nothing, so a submission that
arrives after all starts no work and is cancelled as soon as it is seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fleetcraft.core.errors import OutOfReach
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.state import WITHDRAWN, FleetState, Job, ref_json
from fleetcraft.fleet.submit import end_if_withdrawn
from fleetcraft.schedulers.api import JobView, Observation
from fleetcraft.store.files import explain


@dataclass(slots=True)
class Resolved:
    """What one look at the open intents gave."""

    found: list[str] = field(default_factory=list)  # tokens that a job stands for
    withdrawn: list[str] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)  # token to why nothing is decided about it yet
    problems: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """True when something was written."""
        return bool(self.found or self.withdrawn)


def resolve(fleet: Fleet, state: FleetState, *, patient: bool = True) -> Resolved:
    """Look every open intent up, and the withdrawn ones for as long as they may still appear.

    With `patient` an intent that is younger than the time to settle is left to whoever is submitting it.
    """
    result, now = Resolved(), fleet.now()
    for job in state.open_intents():
        age_s = _age_of(job, now)
        if patient and job.unresolved_utc is None and age_s < fleet.policy.settle_s:
            result.waiting[job.token] = "its submission is under way"
            continue
        _look_up(fleet, job, age_s, result)
    for job in state.jobs.values():
        if job.withdrawn and job.ref is None and now - (job.intent_utc or 0.0) < fleet.policy.late_s:
            observation = fleet.scheduler.find(job.token)
            if observation.jobs:
                _take_in(fleet, job, observation, result)
    return result


def _look_up(fleet: Fleet, job: Job, age_s: float, result: Resolved) -> None:
    observation = fleet.scheduler.find(job.token)
    if observation.jobs:
        _take_in(fleet, job, observation, result)
    elif not observation.answered and not _left_no_trace(fleet, job, age_s):
        said = "; ".join(observation.problems) or "no answer"
        result.waiting[job.token] = f"the scheduler did not say whether it has it ({said})"
    elif age_s < fleet.policy.withdraw_after_s:
        left_s = fleet.policy.withdraw_after_s - age_s
        result.waiting[job.token] = f"not found; it may still appear for {left_s:.0f} s"
    else:
        _withdraw(fleet, job, result)


def _age_of(job: Job, now_utc: float) -> float:
    """How old an intent is.

    One from the future was written by a clock that is wrong, and one without a time has lost its record: neither keeps
    a fleet waiting, because giving up is safe.
    """
    written_utc = job.intent_utc or job.unresolved_utc
    return float("inf") if written_utc is None else abs(now_utc - written_utc)


def _left_no_trace(fleet: Fleet, job: Job, age_s: float) -> bool:
    """True when the queue answers without it and its script never began, while accounting stays silent for long."""
    if age_s < fleet.policy.withdraw_after_s:
        return False
    try:
        if fleet.spool.files.exists(fleet.folder.job(job.token).started):
            return False
    except OSError:
        return False
    queue = fleet.scheduler.mine()
    return queue.answered and not any(view.token == job.token for view in queue.jobs.values())


def _withdraw(fleet: Fleet, job: Job, result: Resolved) -> None:
    try:
        fleet.mark_withdrawn(job.token)
    except OSError as error:
        raise explain(error, f"Cannot withdraw {job.token}") from error
    # The last look comes after the mark: whatever appears behind it finds the mark.
    observation = fleet.scheduler.find(job.token)
    if observation.jobs:
        _take_in(fleet, job, observation, result, withdrawn=True)
        return
    if not observation.answered and not _left_no_trace(fleet, job, fleet.policy.withdraw_after_s):
        result.waiting[job.token] = "the scheduler did not answer the last look"
        return
    fleet.log.state_fact(
        kinds.REJECTED, token=job.token, code=WITHDRAWN, retry="transient",
        text="the answer was lost, and no job with its token appeared",
    )  # fmt: skip
    result.withdrawn.append(job.token)


def _take_in(fleet: Fleet, job: Job, observation: Observation, result: Resolved, *, withdrawn: bool = False) -> None:
    """Write down the jobs that carry the token; more than one is too many, and the later ones are cancelled."""
    views = sorted(observation.jobs.values(), key=_age)
    if withdrawn:
        # It was marked already and may have run nothing. It is given up, and its need is met by another.
        fleet.log.state_fact(
            kinds.REJECTED, token=job.token, code=WITHDRAWN, retry="transient", text="found when it had been given up"
        )
    for view in views:
        fleet.log.state_fact(kinds.SUBMITTED, token=job.token, ref=ref_json(view.ref), outcome="found")
    result.found.append(job.token)
    extra = [view.ref for view in views[1:] if not view.state.ended]
    if extra:
        fleet.log.state_fact(
            kinds.NOTE, what="double", token=job.token, refs=[str(view.ref) for view in views],
            reason="more than one job carries this token; the later ones are cancelled",
        )  # fmt: skip
        result.problems += fleet.cancel_refs(extra)
    try:
        result.problems += end_if_withdrawn(fleet, job.token)
    except OutOfReach as error:
        result.problems.append(str(error))


def _age(view: JobView) -> tuple[float, int, str]:
    return (view.submit_utc or 0.0, len(view.ref.id), view.ref.id)
