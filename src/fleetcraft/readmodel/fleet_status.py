"""Fleets as a person sees them: what each was asked to be, what it has, what it spent, and what stands in its way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetcraft.core.quantities import format_duration
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.look import Look, read_exit
from fleetcraft.fleet.notify import EMPTY, Standing, standing
from fleetcraft.fleet.state import FleetState
from fleetcraft.readmodel.fleet_jobs import FleetJobView, nodes_by_state, view_job
from fleetcraft.readmodel.lives import WorkerView

# Jobs that ended are listed newest first, so many of them unless all are asked for.
_ENDED_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """One fleet, dated."""

    name: str
    spool: str
    at_utc: float
    profile: str | None
    partition: str | None
    time_zone: str | None  # in which a person reads its times
    standing: str
    sentence: str
    answered: bool | None  # by the scheduler; None: it was not asked
    jobs: tuple[FleetJobView, ...]  # live first, then ended ones, newest first
    ended_jobs: int
    nodes: dict[str, int]
    lanes: int
    gpu_hours: float
    reserved_gpu_hours: float
    gpu_hour_cap: float | None
    node_hours: float
    node_hour_cap: float | None
    idle_gpu_hours: float  # measured after the last task of jobs that ended
    tasks: int  # that succeeded in its jobs
    tasks_age_s: float | None  # of that number; None: no worker is up any more, so it stands
    unfinished: int | None  # tasks that wait or run; None: not read
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The JSON document, without its schema."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return plain | {"jobs": [job.as_json() for job in self.jobs], "problems": list(self.problems)}


def view_fleet(
    fleet: Fleet,
    state: FleetState,
    look: Look | None,
    workers: Sequence[WorkerView],
    outcomes: Mapping[str, Mapping[str, int]],
    *,
    unfinished: int | None = None,
    all_jobs: bool = False,
) -> FleetView:
    """One fleet from its records, the scheduler's answer, and what its workers say."""
    now_utc = fleet.now()
    spec = state.spec() or state.specs.get(max(state.specs, default=0))
    word = standing(state, fleet, unfinished=unfinished)
    ends = {job.token: read_exit(fleet, job) for job in state.live()}
    jobs = [
        view_job(fleet.name, job, look, workers, outcomes, now_utc, ended=ends.get(job.token))
        for job in state.jobs.values()
    ]
    live = [job for job in jobs if job.is_live]
    ended = [job for job in reversed(jobs) if not job.is_live]
    problems = list(state.problems)
    if look is not None:
        problems += look.problems
        if not look.answered:
            problems.append(_unanswered(live))
    return FleetView(
        name=fleet.name,
        spool=fleet.spool.layout.root,
        at_utc=round(now_utc, 3),
        profile=spec.site.profile if spec else None,
        partition=spec.site.partition.name if spec else None,
        time_zone=spec.site.time_zone if spec else None,
        standing=word.word,
        sentence=_sentence(state, word),
        answered=None if look is None else look.answered,
        jobs=(*live, *(ended if all_jobs else ended[:_ENDED_SHOWN])),
        ended_jobs=len(ended),
        nodes=nodes_by_state(list(state.jobs.values())),
        lanes=sum(state.specs[number].lanes for number in state.shapes.values()),
        gpu_hours=round(state.gpu_seconds(now_utc) / 3600, 4),
        reserved_gpu_hours=round(state.reserved_gpu_seconds(now_utc) / 3600, 4),
        gpu_hour_cap=spec.gpu_hour_cap if spec else None,
        node_hours=round(state.node_seconds(now_utc) / 3600, 4),
        node_hour_cap=spec.node_hour_cap if spec else None,
        idle_gpu_hours=round(sum(job.idle_gpu_hours or 0.0 for job in jobs), 4),
        tasks=sum(job.tasks or 0 for job in jobs),
        tasks_age_s=max((job.tasks_age_s for job in jobs if job.tasks_age_s is not None), default=None),
        unfinished=unfinished,
        problems=tuple(dict.fromkeys(problems)),
    )


def _sentence(state: FleetState, word: Standing) -> str:
    if word.word == EMPTY and state.jobs and not any(job.serves_work for job in state.jobs.values()):
        return "only held nodes and checks stand on its record, and none of them is live"
    return word.text.removeprefix(f"{word.word}: ")


def _unanswered(live: Iterable[FleetJobView]) -> str:
    ages = [job.age_s for job in live if job.age_s is not None]
    oldest = f"; what is shown is up to {format_duration(max(ages))} old" if ages else ""
    return f"the scheduler did not answer{oldest}"
