"""Whether a fleet may get another job at all: not while its jobs fail at their start, or the scheduler just said no.

Each answer is a sentence, or an empty string when nothing stands in the way.
"""

from __future__ import annotations

from fleetcraft.core.quantities import format_duration
from fleetcraft.core.states import JobState
from fleetcraft.fleet.handle import FleetPolicy
from fleetcraft.fleet.spec import FleetSpec
from fleetcraft.fleet.state import FleetState, Job, Phase
from fleetcraft.schedulers.api import Retry

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 30.0, 1800.0


def obstacle(state: FleetState, spec: FleetSpec, policy: FleetPolicy, now_utc: float) -> str:
    """Why no job of this shape is submitted now."""
    return (
        _pause_between(state, spec, now_utc)
        or _refused_before(state, spec, now_utc)
        or _cancelled_by_others(state, spec, policy, now_utc)
        or _failing(state, spec, policy)
    )  # fmt: skip


def _asked(state: FleetState) -> list[Job]:
    return sorted((job for job in state.jobs.values() if job.number), key=lambda job: job.number)


def _pause_between(state: FleetState, spec: FleetSpec, now_utc: float) -> str:
    asked = _asked(state)
    gap_s = spec.site.scheduler.submit_gap_s
    if not asked or asked[-1].intent_utc is None:
        return ""
    left_s = asked[-1].intent_utc + gap_s - now_utc
    return f"the site asks for {gap_s:g} s between two submissions; {left_s:.0f} s are left" if left_s > 0 else ""


def _refused_before(state: FleetState, spec: FleetSpec, now_utc: float) -> str:
    """The refusals since the last job that stood, of this shape."""
    refused: list[Job] = []
    for job in reversed(_asked(state)):
        if job.shape != spec.shape:
            continue
        if job.phase is not Phase.REJECTED:
            break
        refused.append(job)
    if not refused:
        return ""
    last = refused[0]
    said = f"the scheduler said no to {last.token} ({last.code or 'no reason'}: {last.text})".replace(": )", ")")
    same = last.spec_number is not None and state.specs.get(last.spec_number) == spec
    if last.retry == Retry.NEVER and same:
        return f"{said}; the same request meets the same answer, so submit the fleet with other options"
    if last.retry == Retry.NEVER or last.intent_utc is None:
        return ""
    pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (len(refused) - 1))
    left_s = last.intent_utc + pause_s - now_utc
    return f"{said}; it is asked again in {format_duration(left_s)}" if left_s > 0 else ""


def _cancelled_by_others(state: FleetState, spec: FleetSpec, policy: FleetPolicy, now_utc: float) -> str:
    """Somebody who cancels a job does not want another one at once."""
    ended = [job for job in _asked(state) if job.shape == spec.shape and job.ended_by_others and job.seen_utc]
    if not ended:
        return ""
    last = max(ended, key=lambda job: job.seen_utc or 0.0)
    seen_utc = last.seen_utc or 0.0
    # A job or a shape that was asked for since is a person's word.
    if any((job.intent_utc or 0.0) > seen_utc for job in _asked(state)) or state.resumed_utc > seen_utc:
        return ""
    left_s = seen_utc + policy.by_hand_s - now_utc
    if left_s <= 0:
        return ""
    return (
        f"{last.token} was {last.cause or 'cancelled, not by this fleet'}; nothing replaces it for another "
        f"{format_duration(left_s)} (`fleet submit` does at once, `fleet drain` ends it)"
    )


def _failing(state: FleetState, spec: FleetSpec, policy: FleetPolicy) -> str:
    """A crash loop costs money and queue places: jobs that fail at once stop the supply until a person submits."""
    ended = [
        job for job in _asked(state)
        if job.shape == spec.shape and job.serves_work and job.phase is Phase.SUBMITTED and not job.withdrawn
        and job.state is not None and job.state.ended and job.cancel_utc is None
    ]  # fmt: skip
    last = ended[-policy.failures :]
    if len(last) < policy.failures or not all(failed_at_start(job, policy) for job in last):
        return ""
    # A new declaration is a person's word that something was changed.
    if state.shapes.get(spec.shape, 0) > last[-1].number:
        return ""
    return (
        f"the last {len(last)} jobs failed at their start ({last[-1].cause or last[-1].raw_state}); "
        f"read the output of {last[-1].token}, then submit the fleet anew"
    )


def failed_at_start(job: Job, policy: FleetPolicy) -> bool:
    """True when it ended badly before it could do anything."""
    if job.state not in (JobState.FAILED, JobState.OUT_OF_MEMORY):
        return False
    return sum(run.node_seconds(run.end_utc or run.start_utc) / max(1, run.nodes) for run in job.runs) < policy.quick_s
