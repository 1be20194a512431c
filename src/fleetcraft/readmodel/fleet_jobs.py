"""One job of a fleet as a person sees it: where it stands, why, how old that knowledge is, and what it did and cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetcraft.core.quantities import format_duration
from fleetcraft.core.states import JobState, Outcome
from fleetcraft.fleet.look import Look, ended_words
from fleetcraft.fleet.state import Job, Phase
from fleetcraft.fleet.tail import job_ids
from fleetcraft.readmodel.lives import WorkerView
from fleetcraft.schedulers.api import JobView
from fleetcraft.spool.reading import SpoolFold

OPEN, REJECTED, SUBMITTED = "open", "rejected", "submitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetJobView:
    """One job. What is not known is None."""

    token: str
    id: str | None  # the scheduler's
    fleet: str
    state: str  # a word of JobState, or open, rejected, submitted
    raw_state: str
    about: str  # the reason of this state in a sentence; empty when there is nothing to say
    purpose: str
    shape: str
    lane: int | None
    nodes: int
    node_names: tuple[str, ...]
    gpus: int
    asked_utc: float | None
    start_utc: float | None
    expected_start_utc: float | None  # the scheduler's guess for one that waits
    end_utc: float | None  # for a running job: when its time limit is reached
    age_s: float | None  # of what is said here
    stale: bool  # the scheduler was asked and did not answer for it
    workers: int  # that are up in it
    tasks: int | None  # that succeeded in it; None: no worker of it is known
    tasks_age_s: float | None  # of that number, as the oldest heartbeat of its running workers
    attempts: Mapping[str, int]  # that ended in it, by outcome
    gpu_hours: float
    idle_tail_s: float | None
    idle_gpu_hours: float | None
    why: str
    is_live: bool

    def as_json(self) -> dict[str, Any]:
        """For the JSON document."""
        return {
            name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in self.__slots__
        }


def outcomes_of(reader: SpoolFold) -> dict[str, dict[str, int]]:
    """How many attempts of each worker life ended how, as their heartbeats say."""
    found: dict[str, dict[str, int]] = {}
    for life, reading in reader.lives.items():
        counts = (reading.heartbeat or {}).get("counts")
        if isinstance(counts, Mapping):
            found[life] = {str(name): value for name, value in counts.items() if isinstance(value, int) and value}
    return found


def view_job(
    fleet: str,
    job: Job,
    look: Look | None,
    workers: Iterable[WorkerView],
    outcomes: Mapping[str, Mapping[str, int]],
    now_utc: float,
    *,
    ended: Mapping[str, Any] | None = None,
) -> FleetJobView:
    """One job as it is known now; `look` is the answer of the scheduler, if it was asked.

    `ended` is what the job's own script wrote at its end, which may be newer than any answer.
    """
    view = look.views.get(job.token) if look is not None else None
    ids = job_ids(job)
    mine = [worker for worker in workers if worker.job_id in ids]
    attempts: Counter[str] = Counter()
    for worker in mine:
        attempts.update(outcomes.get(worker.life, {}))
    stale = bool(look is not None and job.is_live and job.ref is not None and (view is None or view.stale))
    fresh_utc = look.at_utc if look is not None and view is not None and not view.stale else None
    known_utc = fresh_utc if fresh_utc is not None else (job.seen_utc or job.intent_utc)
    idle = job.idle or {}
    over = said_its_end(job, ended)
    return FleetJobView(
        token=job.token,
        id=str(job.ref) if job.ref is not None else None,
        fleet=fleet,
        state=JobState.ENDING.value if over else _state(job),
        raw_state=view.raw_state if view is not None else job.raw_state,
        about=over or _about(job, view, now_utc),
        purpose=job.purpose,
        shape=job.shape,
        lane=job.lane,
        nodes=job.nodes,
        node_names=job.node_names,
        gpus=job.nodes * job.gpus_per_node,
        asked_utc=job.intent_utc,
        start_utc=job.start_utc,
        expected_start_utc=view.start_utc if view is not None and job.is_waiting else None,
        end_utc=_end_utc(job, view),
        age_s=None if known_utc is None else round(max(0.0, now_utc - known_utc), 1),
        stale=stale,
        workers=sum(worker.is_running for worker in mine),
        tasks=attempts[Outcome.SUCCEEDED.value] if mine else None,
        tasks_age_s=max((one.age_s for one in mine if one.is_running and one.age_s is not None), default=None),
        attempts=dict(attempts),
        gpu_hours=round(job.node_seconds(now_utc) * job.gpus_per_node / 3600, 4),
        idle_tail_s=_number(idle, "since_last_task_s"),
        idle_gpu_hours=_number(idle, "gpu_hours"),
        why=job.why,
        is_live=job.is_live and not job.withdrawn,
    )


def said_its_end(job: Job, ended: Mapping[str, Any] | None) -> str:
    """Words for a job that wrote its end while the scheduler was not heard of it yet; else empty."""
    if ended is None or not job.is_live or job.phase is not Phase.SUBMITTED:
        return ""
    return f"{ended_words(ended)}; the scheduler has not said so yet"


def _state(job: Job) -> str:
    if job.phase is Phase.OPEN:
        return OPEN
    if job.phase is Phase.REJECTED:
        return REJECTED
    return job.state.value if job.state is not None else SUBMITTED


def _about(job: Job, view: JobView | None, now_utc: float) -> str:
    if job.withdrawn:
        return "given up: it was never seen after its answer was lost"
    if job.phase is Phase.OPEN:
        return "the scheduler's answer was lost; the next pass looks for it"
    if job.phase is Phase.REJECTED:
        return f"{job.code}: {job.text}" if job.text else job.code
    if job.cancel_utc is not None and job.is_live:
        return "its end was asked for"
    said = (view.reason_text or view.reason) if view is not None else ""
    if job.is_waiting:
        reason = said or job.cause or job.reason
        if not reason and job.begin_utc is not None and job.begin_utc > now_utc:
            return f"it may begin in {format_duration(job.begin_utc - now_utc)}"
        return reason
    if job.cancel_utc is not None and job.state is JobState.CANCELLED:
        # What it waited for stays in the scheduler's record, and is not why it ended.
        return job.cause or "its end was asked for"
    return job.cause or said


def _end_utc(job: Job, view: JobView | None) -> float | None:
    if job.state is not None and job.state.ended:
        return job.end_utc
    if job.is_running:
        if view is not None and view.end_utc is not None:
            return view.end_utc
        if job.start_utc is not None and job.time_limit_s is not None:
            return job.start_utc + job.time_limit_s
    return None


def _number(record: Mapping[str, Any], key: str) -> float | None:
    value = record.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def nodes_by_state(jobs: Sequence[Job]) -> dict[str, int]:
    """Nodes that are assigned and nodes that are waited for."""
    return {
        "assigned": sum(len(job.node_names) or job.nodes for job in jobs if job.is_running),
        "pending": sum(job.nodes for job in jobs if job.is_waiting or job.is_open),
        "unknown": sum(job.nodes for job in jobs if job.is_live and job.state is JobState.UNKNOWN),
    }
