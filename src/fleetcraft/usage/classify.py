"""What a GPU does now, in one word with its reason: the first rule that holds wins.

What is not known decides nothing: no verdict of idleness rests on an absent value, and silence is not idleness.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fleetcraft.usage.api import Window
from fleetcraft.usage.thresholds import Thresholds


class Class(StrEnum):
    """The classes. A GPU is in exactly one."""

    WORKING = "working"
    WAITING = "waiting"  # held or served, idle, and something that will pass keeps work from it
    RESERVED_IDLE = "reserved-idle"
    FREE_IDLE = "free-idle"
    STARTING = "starting"
    UNKNOWN = "unknown"
    UNREACHABLE = "unreachable"
    BROKEN = "telemetry-broken"  # the sampler lives and the driver does not serve it; jobs may be fine
    LOST = "lost"
    HUNG = "hung"


IDLE = (Class.WAITING, Class.RESERVED_IDLE, Class.FREE_IDLE)
# Nobody knows what such a GPU does, so nothing may be done to its job.
BLIND = (Class.UNKNOWN, Class.UNREACHABLE, Class.BROKEN, Class.LOST, Class.HUNG)


class Cause(StrEnum):
    """Why, in one word for programs."""

    NONE = ""
    NO_SAMPLER = "no_sampler"  # nothing was ever written, or its worker says that none runs
    NOT_MEASURED = "not_measured"  # a person told its worker so
    SAMPLER_ENDED = "sampler_ended"
    SAMPLER_SILENT = "sampler_silent"  # it wrote, stopped, and its worker is not known to be gone
    STORAGE_FULL = "storage_full"
    WORKER_LOST = "worker_lost"
    NODE_DOWN = "node_down"  # by the scheduler's word
    LOW_COVERAGE = "low_coverage"
    NO_UTILIZATION = "no_utilization"  # this device does not tell
    NO_PROCESSES = "no_processes"  # on unified memory only a process shows that somebody holds it
    DRIVER = "driver"
    WORK_WAITS = "work_waits"  # that this GPU could run: somebody should look
    NOTHING_QUEUED = "nothing_queued"
    NEEDS_UNMET = "needs_unmet"
    PERMITS = "permits"
    BACKOFF = "backoff"
    UPSTREAM = "upstream"
    BLOCKED = "blocked"
    LANE_WITHOUT_WORKERS = "lane_without_workers"
    NO_WORKER = "no_worker"
    DRAINING = "draining"
    STOPPED = "stopped"
    RESIDENT = "resident"  # loaded, and waits for its next call
    TASK = "task"  # a task holds it and does something else just now
    APPLICATION = "application"  # its own heartbeat is fresh
    CLAIMED = "claimed"
    NODE_BUSY = "node_busy"  # what waits needs more of this node than is free now


# What passes by itself or by other tasks; every other cause leaves the GPU idle until somebody acts.
PASSING = (Cause.PERMITS, Cause.BACKOFF, Cause.UPSTREAM, Cause.RESIDENT, Cause.TASK, Cause.CLAIMED, Cause.NODE_BUSY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the rules look at. None is not known."""

    expected: bool = True  # a scheduler or a worker says that it must be there
    age_s: float | None = None  # since the last sample came, by one clock; None: there is none
    interval_s: float = 10.0
    silence: Cause = Cause.NONE  # what is known about the reason for silence
    silence_text: str = ""
    state: str = "ok"  # what the sampler says of the device
    state_text: str = ""
    coverage: float | None = None
    job_age_s: float | None = None
    ever_active: bool | None = None  # since its job began
    active_fraction: float | None = None  # None: no sample had a utilization
    sm_active_pct: float | None = None
    util_pct: float | None = None
    own_pids: bool | None = None
    held_bytes: float | None = None  # most memory in use in the window, above the baseline
    unified: bool = False  # its memory is the host's, so memory says nothing
    queue: Cause = Cause.NONE  # why nothing runs on it, from the queue and its worker
    queue_text: str = ""
    heartbeat_age_s: float | None = None  # of the application, where it has one


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The class, and by which rule."""

    kind: Class
    rule: int
    cause: Cause = Cause.NONE
    text: str = ""
    label: str = ""  # `low` where a working GPU is hardly used

    @property
    def is_nudged_only(self) -> bool:
        """True where somebody may be told, and nothing may ever be ended by itself."""
        return self.kind is not Class.FREE_IDLE or self.cause is Cause.APPLICATION


_STATES = {
    "lost": (Class.LOST, "the GPU fell off the bus"),
    "hung": (Class.HUNG, "its driver does not answer"),
    "reset_required": (Class.BROKEN, "the GPU needs a reset"),
    "broken": (Class.BROKEN, "every question to it fails"),
    "telemetry_broken": (Class.BROKEN, "the driver does not serve the sampler; jobs may be fine"),
    "no_gpu": (Class.LOST, "the host shows no GPU any more"),
}


def classify(evidence: Evidence, thresholds: Thresholds) -> Verdict:
    """The first rule that holds."""
    for rule, judge in enumerate(_RULES, start=1):
        verdict = judge(evidence, thresholds, rule)
        if verdict is not None:
            return verdict
    raise AssertionError("the last rule always holds")


def _silent(evidence: Evidence, thresholds: Thresholds, rule: int) -> Verdict | None:
    if evidence.age_s is None:
        if evidence.expected:
            cause = evidence.silence or Cause.NO_SAMPLER
            text = evidence.silence_text or "no sampler ever wrote here"
            return Verdict(kind=Class.UNREACHABLE, rule=rule, cause=cause, text=text)
        return Verdict(kind=Class.UNKNOWN, rule=rule, cause=Cause.NO_SAMPLER, text="nothing was ever sampled")
    limit_s = thresholds.silent_after_s(evidence.interval_s)
    if evidence.age_s <= limit_s:
        return None
    text = evidence.silence_text or f"nothing came for {evidence.age_s:.0f} s, more than {limit_s:.0f} s"
    kind = Class.UNREACHABLE if evidence.expected else Class.UNKNOWN
    return Verdict(kind=kind, rule=rule, cause=evidence.silence or Cause.SAMPLER_SILENT, text=text)


def _driver(evidence: Evidence, _thresholds: Thresholds, rule: int) -> Verdict | None:
    if evidence.state == "ok":
        return None
    kind, text = _STATES.get(evidence.state, (Class.BROKEN, f"its sampler calls it {evidence.state}"))
    return Verdict(kind=kind, rule=rule, cause=Cause.DRIVER, text=evidence.state_text or text)


def _uncovered(evidence: Evidence, thresholds: Thresholds, rule: int) -> Verdict | None:
    coverage = evidence.coverage
    if coverage is not None and coverage >= thresholds.min_coverage:
        return None
    seen = (
        "how much was seen is not known" if coverage is None else f"only {100 * coverage:.0f} % of the window was seen"
    )
    return Verdict(kind=Class.UNKNOWN, rule=rule, cause=Cause.LOW_COVERAGE, text=seen)


def _starting(evidence: Evidence, thresholds: Thresholds, rule: int) -> Verdict | None:
    young = evidence.job_age_s is not None and evidence.job_age_s < thresholds.grace_s
    if (
        not young
        or evidence.ever_active is not False
        or evidence.active_fraction is None
        or evidence.active_fraction > 0
    ):
        return None
    text = f"its job is {evidence.job_age_s:.0f} s old and was never active"
    if evidence.queue_text:
        text += f"; {evidence.queue_text}"
    return Verdict(kind=Class.STARTING, rule=rule, cause=evidence.queue, text=text)


def _working(evidence: Evidence, thresholds: Thresholds, rule: int) -> Verdict | None:
    if evidence.active_fraction is None:
        text = "the device does not tell its utilization, so nothing is said of it"
        return Verdict(kind=Class.UNKNOWN, rule=rule, cause=Cause.NO_UTILIZATION, text=text)
    if evidence.active_fraction <= 0:
        return None
    mean = evidence.sm_active_pct if evidence.sm_active_pct is not None else evidence.util_pct
    low = "low" if mean is not None and mean < thresholds.low_sm_pct else ""
    text = f"active in {100 * evidence.active_fraction:.0f} % of the time that was seen"
    return Verdict(kind=Class.WORKING, rule=rule, label=low, text=text)


def _reserved(evidence: Evidence, thresholds: Thresholds, rule: int) -> Verdict | None:
    holds = is_held(evidence, thresholds)
    if holds is None:
        text = "idle, and whether somebody holds it is not known"
        return Verdict(kind=Class.UNKNOWN, rule=rule, cause=Cause.NO_PROCESSES, text=text)
    if not holds and evidence.queue not in (Cause.TASK, Cause.RESIDENT):
        return None
    if evidence.queue in PASSING:
        return Verdict(kind=Class.WAITING, rule=rule, cause=evidence.queue, text=evidence.queue_text)
    text = evidence.queue_text
    cause = evidence.queue
    if _is_fresh(evidence, thresholds):
        cause, text = Cause.APPLICATION, f"its application gave a sign {evidence.heartbeat_age_s:.0f} s ago"
    return Verdict(kind=Class.RESERVED_IDLE, rule=rule, cause=cause, text=text or "memory is held and nothing runs")


def _free(evidence: Evidence, thresholds: Thresholds, rule: int) -> Verdict:
    if evidence.queue in PASSING:
        return Verdict(kind=Class.WAITING, rule=rule, cause=evidence.queue, text=evidence.queue_text)
    cause, text = evidence.queue, evidence.queue_text or "nothing runs on it and nobody holds it"
    if _is_fresh(evidence, thresholds):
        cause, text = Cause.APPLICATION, f"its application gave a sign {evidence.heartbeat_age_s:.0f} s ago"
    return Verdict(kind=Class.FREE_IDLE, rule=rule, cause=cause, text=text)


_RULES = (_silent, _driver, _uncovered, _starting, _working, _reserved, _free)


def is_held(evidence: Evidence, thresholds: Thresholds) -> bool | None:
    """True where somebody holds it: memory above the baseline, or on unified memory a process. None: not known."""
    if evidence.unified and evidence.own_pids is not None:
        return evidence.own_pids
    if evidence.unified:
        # The driver's own use shows there too, so much memory proves nothing without a process; little does.
        little = evidence.held_bytes is not None and evidence.held_bytes < thresholds.reserved_bytes
        return False if little else None
    if evidence.held_bytes is None:
        return evidence.own_pids
    return evidence.held_bytes >= thresholds.reserved_bytes


def _is_fresh(evidence: Evidence, thresholds: Thresholds) -> bool:
    return evidence.heartbeat_age_s is not None and evidence.heartbeat_age_s <= thresholds.fresh_s


def from_window(window: Window, *, active_ms: int | None = None) -> dict[str, Any]:
    """What a window of samples says, as fields of Evidence; of a time that was not seen nothing is said.

    `active_ms` stands in where activity was counted with another threshold than the window's.
    """
    active = window.active_ms if active_ms is None else active_ms
    return {
        "coverage": min(1.0, (window.observed_ms + window.bad_ms) / window.length_ms) if window.length_ms else None,
        "active_fraction": active / window.util_ms if window.util_ms else None,
        "util_pct": window.util_sum / window.util_ms if window.util_ms else None,
        "sm_active_pct": window.sm_active_sum / window.sm_active_ms if window.sm_active_ms else None,
    }
