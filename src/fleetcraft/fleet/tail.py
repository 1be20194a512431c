"""The idle tail: how long the nodes of an ended job were kept after its last task and its last worker were done.

Measured from the journals of its workers, once after its end. What cannot be read is None with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.backlog import tail_records
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.state import FleetState, Job
from fleetcraft.spool.life import HEARTBEAT, read_identity, read_json


def job_ids(job: Job) -> set[str]:
    """What the workers of a job call it: the scheduler's id, or the token where the scheduler gives none."""
    ids = {job.token}
    if job.ref is not None:
        ids |= {job.ref.id, str(job.ref)}
    return ids


def lives_of(fleet: Fleet, job: Job) -> list[str]:
    """The worker lives that ran in a job. Ids may be used again, so only lives of its own time count."""
    ids = job_ids(job)
    since = (job.intent_utc or 0.0) - 60.0
    found: list[str] = []
    for life in fleet.spool.lives():
        identity = read_identity(fleet.spool.files, fleet.spool.layout.life(life))
        if (
            identity is not None
            and identity.kind == "worker"
            and identity.job_id in ids
            and identity.created_utc >= since
        ):
            found.append(life)
    return found


def measure(fleet: Fleet, job: Job) -> Mapping[str, Any]:
    """The idle tail of one ended job. Raises OSError."""
    end_utc = job.end_utc
    if end_utc is None:
        return {"reason": "the end of the job is not known"}
    ends: list[float] = []
    leaves: list[float] = []
    lives = lives_of(fleet, job)
    for life in lives:
        ends += [
            float(record["end"])
            for record in tail_records(fleet.spool, life)
            if record.get("t") == "receipt" and isinstance(record.get("end"), (int, float))
        ][-1:]
        beat = read_json(fleet.spool.files, f"{fleet.spool.layout.life(life)}/{HEARTBEAT}") or {}
        if isinstance(beat.get("at_utc"), (int, float)):
            leaves.append(float(beat["at_utc"]))
    if not lives:
        return {"reason": "no worker of this job left a trace", "lives": 0}
    last_task = max(ends, default=None)
    last_leave = max(leaves, default=None)
    nodes = len(job.node_names) or job.nodes
    since_task_s = None if last_task is None else max(0.0, end_utc - last_task)
    return {
        "lives": len(lives),
        "since_last_task_s": None if since_task_s is None else round(since_task_s, 1),
        "since_worker_end_s": None if last_leave is None else round(max(0.0, end_utc - last_leave), 1),
        "gpu_hours": None if since_task_s is None else round(since_task_s * nodes * job.gpus_per_node / 3600, 4),
        "reason": "" if last_task is not None else "no task ended on it",
    }


def measure_ended(fleet: Fleet, state: FleetState) -> list[str]:
    """Write the idle tail of every ended job down that has none yet; returns their tokens. Raises OSError."""
    done: list[str] = []
    for job in state.jobs.values():
        ended = job.state is not None and job.state.ended
        if not ended or job.idle is not None or not job.serves_work or not job.runs:
            continue
        fleet.log.state_fact(kinds.IDLE, token=job.token, **measure(fleet, job))
        done.append(job.token)
    return done


def summary(state: FleetState) -> dict[str, Any]:
    """The idle tails of a fleet together, for the status."""
    tails = [job.idle for job in state.jobs.values() if job.idle is not None]
    seconds = [tail["since_last_task_s"] for tail in tails if tail.get("since_last_task_s") is not None]
    hours = [tail["gpu_hours"] for tail in tails if tail.get("gpu_hours") is not None]
    return {
        "jobs": len(tails),
        "measured": len(seconds),
        "mean_s": round(sum(seconds) / len(seconds), 1) if seconds else None,
        "longest_s": max(seconds, default=None),
        "gpu_hours": round(sum(hours), 4) if hours else None,
    }
