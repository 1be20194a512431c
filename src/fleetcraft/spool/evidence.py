"""Is a life still there? Three answers, and only positive evidence counts as death.

An error, an empty answer, a missing file and another host's clock are no evidence. What cannot be known is
`unknown`, and nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fleetcraft.core.states import LossCause
from fleetcraft.spool import host
from fleetcraft.spool.host import Identity


class Liveness(StrEnum):
    """What is known about a life."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The answer with its reason, kept in the journal of whoever acts on it."""

    liveness: Liveness
    reason: str
    cause: LossCause = LossCause.WORKER_GONE
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWord:
    """What the scheduler says of the job that a life ran in."""

    ended: bool | None  # True: its processes are gone, also when the job began anew since; None: no answer
    cause: LossCause = LossCause.NODE_GONE
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapPolicy:
    """When a silent life may be taken for dead, and how its children are ended."""

    lease_s: float | None = None  # None: never on silence alone
    restart_still_s: float = 30.0  # how long a life of an earlier boot of this machine must be silent
    cache_limit_s: float = 0.0  # how long a directory listing may be stale here; 0 on a local file system
    kill_grace_s: float = 5.0
    # The scheduler's word on the job that a life ran in. Asked twice, a grace apart.
    job_word: Callable[[Identity], JobWord] | None = None
    job_ask_after_s: float = 30.0  # a heartbeat that moves needs no question, and hundreds of nodes ask none
    job_grace_s: float = 30.0


@dataclass(slots=True)
class Watch:
    """What an observer saw of one heartbeat, on the observer's own clock."""

    sequence: int
    since_s: float
    job_ended_since_s: float | None = None


def judge(identity: Identity, watch: Watch, now_s: float, policy: ReapPolicy, *, degraded: bool = False) -> Evidence:
    """Weigh what this host can see of another life.

    `now_s` is the observer's monotonic clock; `degraded` says that the observer's own storage was slow, so
    that a heartbeat standing still may be the observer's fault.
    """
    if identity.boot_id is not None and identity.boot_id == host.boot_id():
        if identity.pid_namespace is not None and identity.pid_namespace == host.pid_namespace():
            return _judge_process(identity)
        verdict = _judge_job(identity, watch, now_s, policy)
        return verdict or _unknown("its processes are in another pid namespace of this machine")
    verdict = _judge_job(identity, watch, now_s, policy)
    if verdict is not None:
        return verdict
    still_s = now_s - watch.since_s
    if degraded:
        return _unknown("this observer's own storage was slow, so silence proves nothing")
    restarted = _is_this_machine_before_its_restart(identity)
    limits_s = [policy.lease_s, policy.restart_still_s if restarted else None]
    limit_s = min((limit for limit in limits_s if limit is not None), default=None)
    if limit_s is not None and still_s >= limit_s:
        reason = "its machine was started anew and its" if restarted else "its"
        return Evidence(
            liveness=Liveness.DEAD,
            reason=f"{reason} heartbeat stood still for {still_s:.0f} s (limit {limit_s:.0f} s)",
            cause=LossCause.NODE_GONE,
            facts={"still_s": round(still_s, 1), "limit_s": limit_s, "host": identity.host},
        )
    return _unknown(f"it runs on {identity.host}, which cannot be asked from here")


def _is_this_machine_before_its_restart(identity: Identity) -> bool:
    """One machine runs one boot at a time; but copies of a machine may share its id, and those beat."""
    return (
        identity.machine_id is not None
        and identity.machine_id == host.machine_id()
        and identity.host == host.host_name()
        and identity.boot_id is not None
        and host.boot_id() is not None
    )


def _judge_process(identity: Identity) -> Evidence:
    if not host.can_see_processes():
        return _unknown("/proc does not show processes here")
    seen = host.process(identity.pid)
    facts = {"pid": identity.pid, "host": identity.host}
    if seen is None or seen.is_gone:
        return Evidence(liveness=Liveness.DEAD, reason=f"process {identity.pid} is gone", facts=facts)
    if identity.start_ticks is None:
        return _unknown("its start time was not recorded")
    if seen.start_ticks != identity.start_ticks:
        return Evidence(
            liveness=Liveness.DEAD,
            reason=f"pid {identity.pid} belongs to another process now",
            facts=facts | {"start_ticks": identity.start_ticks, "found_start_ticks": seen.start_ticks},
        )
    return Evidence(liveness=Liveness.ALIVE, reason=f"process {identity.pid} runs", facts=facts)


def _judge_job(identity: Identity, watch: Watch, now_s: float, policy: ReapPolicy) -> Evidence | None:
    if policy.job_word is None or identity.job_id is None or now_s - watch.since_s < policy.job_ask_after_s:
        return None
    word, job = policy.job_word(identity), f"job {identity.job_id}"
    if word.ended is None:
        return None
    if not word.ended:
        watch.job_ended_since_s = None
        return Evidence(liveness=Liveness.ALIVE, reason=f"{job} has not ended")
    if watch.job_ended_since_s is None:
        watch.job_ended_since_s = now_s
    heard_s = now_s - watch.job_ended_since_s
    if heard_s >= policy.job_grace_s and watch.since_s <= watch.job_ended_since_s:
        return Evidence(
            liveness=Liveness.DEAD,
            reason=f"the scheduler says twice that {job} ended, and the heartbeat did not move",
            cause=word.cause,
            facts={"job_id": identity.job_id, "said": word.text, "grace_s": policy.job_grace_s},
        )
    return _unknown(f"the scheduler says that {job} ended; asking again after {policy.job_grace_s:.0f} s")


def _unknown(reason: str) -> Evidence:
    return Evidence(liveness=Liveness.UNKNOWN, reason=reason)
