"""Whether a job whose GPUs are all free may be ended, which nobody gets who did not ask for it.

Every doubt says no: a GPU that was not seen enough, a task that runs, a sign of life of the application, work that
waits, warnings that were not written or not old enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleetcraft.usage.classify import Cause, Class
from fleetcraft.usage.thresholds import Thresholds

WARNINGS = 2


class Step(StrEnum):
    """What is next for a job."""

    NONE = "none"
    WARN = "warn"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOfJob:
    """One GPU of the job. `free_s` and `coverage` are over the release limit, not only the last window."""

    kind: Class
    cause: Cause
    free_s: float | None
    coverage: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIdle:
    """All that is looked at. `expected_gpus` None: nobody knows how many the job has."""

    job: str
    gpus: Sequence[GpuOfJob]
    expected_gpus: int | None
    is_ours: bool  # a running job that a fleet of this spool submitted
    running_tasks: int
    heartbeat_age_s: float | None
    scheduler_answered: bool
    warned_utc: Sequence[float]  # warnings since its GPUs became idle, as they were written


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The next step, and why not more."""

    step: Step
    why: str


def rule(job: JobIdle, now_utc: float, thresholds: Thresholds) -> Ruling:
    """What may be done now."""
    doubt = _doubt(job, thresholds)
    if doubt:
        return Ruling(step=Step.NONE, why=doubt)
    warned = [at for at in job.warned_utc if at <= now_utc]
    if warned and now_utc - max(warned) < thresholds.release_gap_s:
        left = thresholds.release_gap_s - (now_utc - max(warned))
        return Ruling(step=Step.NONE, why=f"it was warned; the next step is in {left:.0f} s")
    if len(warned) < WARNINGS:
        return Ruling(step=Step.WARN, why=f"warning {len(warned) + 1} of {WARNINGS}: all of its GPUs are free")
    return Ruling(
        step=Step.RELEASE, why=f"all of its GPUs were free for {_least_free_s(job):.0f} s, and it was warned twice"
    )


def _doubt(job: JobIdle, thresholds: Thresholds) -> str:
    known = job.expected_gpus is not None and len(job.gpus) >= max(1, job.expected_gpus)
    sign_s = job.heartbeat_age_s
    doubts = (
        (not job.is_ours, "it is not a job of a fleet of this spool"),
        (not job.scheduler_answered, "the scheduler did not answer"),
        (not known, "not all of its GPUs are known"),
        (job.running_tasks > 0, "a task of it runs"),
        (sign_s is not None and sign_s <= thresholds.fresh_s, "its application gave a sign of life"),
    )
    for holds, why in doubts:
        if holds:
            return why
    return next((why for gpu in job.gpus if (why := _doubt_of(gpu, thresholds))), "")


def _doubt_of(gpu: GpuOfJob, thresholds: Thresholds) -> str:
    if gpu.kind is not Class.FREE_IDLE:
        return f"one of its GPUs is {gpu.kind.value}"
    if gpu.cause is Cause.APPLICATION:
        return "its application gave a sign of life"
    if gpu.cause is Cause.WORK_WAITS:
        return "work waits that its GPUs could run, so something else is wrong"
    if gpu.coverage is None or gpu.coverage < thresholds.release_coverage:
        return "not enough of its time was seen"
    if gpu.free_s is None or gpu.free_s < thresholds.release_s:
        return "not all of its GPUs were free for the whole limit"
    return ""


def _least_free_s(job: JobIdle) -> float:
    return min(gpu.free_s or 0.0 for gpu in job.gpus)
