"""From a running task, or a job, to the command that opens a shell beside it on its node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from fleetcraft.core.errors import UsageError
from fleetcraft.core.names import TaskId, parse_task_id
from fleetcraft.core.quantities import format_duration
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.look import look
from fleetcraft.fleet.state import FleetState, Job
from fleetcraft.fleet.tail import job_ids
from fleetcraft.schedulers.slurm_commands import srun_argv
from fleetcraft.spool.life import HEARTBEAT, LIVE, find_state, read_identity, read_json
from fleetcraft.spool.spool import Spool

# An answer of another process that is older than this may be out of date.
_FRESH_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellTarget:
    """Where the shell opens."""

    argv: tuple[str, ...]
    job: str
    node: str | None
    fleet: str
    task: str | None = None
    doubt: str = ""  # why it may fail: what is known of the job is old


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPlace:
    """Where a task runs now."""

    life: str
    host: str
    job_id: str | None


def shell_target(
    fleets: Sequence[Fleet], target: str, *, node: str | None = None, shell: str = "bash", pty: bool = True
) -> ShellTarget:
    """The command for a task (name or BATCH.INDEX), a job's id or its token. Raises UsageError, OutOfReach.

    `pty`: whether whoever runs it sits at a terminal.
    """
    for fleet in fleets:
        state = fleet.state()
        known = state.jobs.get(target) or state.by_ref(target)
        if known is None:
            continue
        job, doubt = _now(fleet, state, known)
        chosen = node or (job.node_names[0] if job.node_names else None)
        return _target(fleet, job, chosen, shell, None, pty=pty, doubt=doubt)
    if not fleets:
        raise UsageError(
            "This spool has no fleet, so there is no job to open a shell in.",
            hint="See `fleetcraft fleet list`, or make one: `fleetcraft fleet submit`.",
        )
    task = find_task(fleets[0].spool, target)
    if task is None:
        raise UsageError(
            f"There is no running job and no task {target!r}.",
            hint="See `fleetcraft fleet status` and `fleetcraft task list --state running`.",
        )
    place = where_runs(fleets[0].spool, task)
    if place is None:
        raise UsageError(f"Task {task} does not run now.", hint=f"See `fleetcraft task show {task}`.")
    for fleet in fleets:
        for job in fleet.state().live():
            if place.job_id is not None and place.job_id in job_ids(job):
                return _target(fleet, job, _node_of(job, place.host), shell, str(task), pty=pty)
    raise UsageError(
        f"Task {task} runs on {place.host} in no job of a fleet of this spool.", hint=f"Try `ssh {place.host}`."
    )


def _now(fleet: Fleet, state: FleetState, job: Job) -> tuple[Job, str]:
    """The job as it is known now, and what makes that doubtful. Raises UsageError where no shell can be in it."""
    if job.is_running:
        return job, ""
    if job.is_live:
        # The records hear of a job only when somebody asks, and it may have started since.
        seen = look(fleet, state)
        job = fleet.state().jobs.get(job.token, job)
        if job.is_running:
            return job, ""
        view = seen.views.get(job.token)
        told = seen.answered and view is not None and not view.stale
        known_utc = seen.at_utc if told else job.seen_utc
        is_old = not told or known_utc is None or fleet.now() - known_utc >= _FRESH_S
        if job.is_live and job.ref is not None and is_old:
            age_s = None if known_utc is None else fleet.now() - known_utc
            return job, f"{_aged(job, age_s)}; it is tried all the same"
    word = job.state.value if job.state is not None else "not on a node"
    raise UsageError(
        f"There is no shell in job {job.ref or job.token}: it is {word}.", hint="See `fleetcraft fleet status --all`."
    )


def _aged(job: Job, age_s: float | None) -> str:
    if age_s is None:
        return "the scheduler was not heard of it yet"
    word = job.state.value if job.state is not None else "submitted"
    return f"it was {word} {format_duration(max(0.0, age_s))} ago"


def _node_of(job: Job, host: str) -> str:
    """The scheduler's name of a host: the domain may be missing on either side."""
    short = host.partition(".")[0]
    return next((name for name in job.node_names if name.partition(".")[0] == short), host)


def _target(
    fleet: Fleet, job: Job, node: str | None, shell: str, task: str | None, *, pty: bool, doubt: str = ""
) -> ShellTarget:
    if job.ref is None:
        raise UsageError(f"The job {job.token} has no id yet.", hint="See `fleetcraft fleet status`.")
    kind = fleet.scheduler.kind
    if kind == "slurm":
        # Without a name the shell still opens on one node, not on each of them.
        argv = srun_argv([shell], job=job.ref, overlap=True, pty=pty, node=node, nodes=1)
    elif kind in ("local", "memory"):
        argv = fleet.scheduler.command([shell], job.ref)
    else:
        raise UsageError(f"A shell in a job is not known for the scheduler {kind}.", hint=f"Try `ssh {node}`.")
    return ShellTarget(argv=tuple(argv), job=str(job.ref), node=node, fleet=fleet.name, task=task, doubt=doubt)


def find_task(spool: Spool, target: str) -> TaskId | None:
    """A task by name or id."""
    spool.refresh()
    named = spool.find(target)
    if named is not None:
        return named
    task = parse_task_id(target)
    return task if task is not None and spool.locate(task) is not None else None


def where_runs(spool: Spool, task: TaskId) -> RunningPlace | None:
    """The life that runs a task by its heartbeat, and its host."""
    for life in spool.lives():
        folder = spool.layout.life(life)
        beat = read_json(spool.files, os.path.join(folder, HEARTBEAT))
        if beat is None or find_state(spool.files, folder) != LIVE:
            continue
        for entry in beat.get("running", ()):
            found = parse_task_id(str(entry.get("task", "")))
            if found is None or found.batch != task.batch:
                continue
            if found.index <= task.index < found.index + int(entry.get("k", 1)):
                identity = read_identity(spool.files, folder)
                if identity is not None:
                    return RunningPlace(life=life, host=identity.host, job_id=identity.job_id)
    return None
