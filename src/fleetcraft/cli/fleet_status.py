"""`fleet status` and `fleet list`: what the fleets of a spool have, did and cost."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import hours, open_spool, whole_program
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.tables import table
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_GOING, EXIT_TRY_AGAIN
from fleetcraft.core.quantities import format_duration
from fleetcraft.core.states import TaskState
from fleetcraft.readmodel.words import local_time

if TYPE_CHECKING:
    from fleetcraft.readmodel.fleet_jobs import FleetJobView
    from fleetcraft.readmodel.fleet_status import FleetView

_HEADS = ("JOB", "STATE", "NODES", "GPUS", "WORKERS", "TASKS", "GPU-HOURS", "UNTIL", "KNOWN", "ABOUT")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fleet", metavar="FLEET", nargs="*", help="which fleets (default: all of the spool)")
    group = parser.add_argument_group("what to show")
    group.add_argument("--all", action="store_true", help="every job that ended, too")
    group.add_argument("--no-ask", action="store_true", help="what is on record, without asking the scheduler")
    group.add_argument(
        "--exit-code", action="store_true",
        help="answer with the exit code too: 0 no job is left, 1 a fleet failed, 3 still going",
    )  # fmt: skip


def _run(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program():
        from fleetcraft.actions.fleet_look import look_at
        from fleetcraft.readmodel.fleet_jobs import outcomes_of
        from fleetcraft.readmodel.fleet_status import view_fleet
        from fleetcraft.readmodel.picture import take_picture
    spool = open_spool(arguments)
    looked = look_at(spool, arguments.fleet, ask=not arguments.no_ask)
    picture = take_picture(spool)
    outcomes = outcomes_of(picture.reader)
    unfinished = sum(
        number for state, number in picture.counts().items() if not state.ended and state is not TaskState.BLOCKED
    )
    views = [
        view_fleet(
            one.fleet, one.state, one.look, picture.workers, outcomes, unfinished=unfinished, all_jobs=arguments.all
        )
        for one in looked
    ]
    if output.json:
        output.document(STATUS.schema, {"fleets": [view.as_json() for view in views]})
    elif not views:
        output.line("nothing was submitted for a fleet of this spool yet; see `fleetcraft fleet submit --help`")
    else:
        for position, view in enumerate(views):
            output.lines([""] if position else [])
            output.lines(describe(view, output))
    if any(view.answered is False for view in views):
        return EXIT_TRY_AGAIN
    return _exit_code(views) if arguments.exit_code else EXIT_DONE


def _exit_code(views: list[FleetView]) -> int:
    if any(view.standing in ("active", "draining") for view in views):
        return EXIT_GOING
    return EXIT_FAILED if any(view.standing == "failed" for view in views) else EXIT_DONE


def describe(view: FleetView, output: Output) -> Iterator[str]:
    """One fleet for a person."""
    where = f"{view.profile}, partition {view.partition}" if view.profile else "no shape is on record"
    yield f"{output.paint(view.name, 'bold')}  {view.standing}: {printable(view.sentence)}  ({printable(where)})"
    spent = f"{hours(view.gpu_hours, view.gpu_hour_cap)} GPU-hours"
    if view.gpu_hour_cap is None and not any(job.gpus for job in view.jobs):
        spent = f"{hours(view.node_hours, view.node_hour_cap)} node-hours"
    held = f", at most {hours(view.reserved_gpu_hours)} more by its live jobs" if view.reserved_gpu_hours else ""
    idle = f", {hours(view.idle_gpu_hours)} of them idle at the end of jobs" if view.idle_gpu_hours else ""
    yield f"  spent {spent}{idle}{held}"
    nodes = view.nodes
    # Tasks are counted from the spool now, and what was done here from the workers' last heartbeats.
    age = "" if view.tasks_age_s is None else f" as of {format_duration(view.tasks_age_s)} ago"
    work = "" if view.unfinished is None else f"; {count(view.unfinished, 'task')} unfinished, {view.tasks:,} done here"
    work += age if work else ""
    lanes = f", {count(view.lanes, 'lane')}" if view.lanes else ""
    yield f"  nodes {nodes['assigned']} assigned, {nodes['pending']} waited for{lanes}{work}"
    if view.jobs:
        yield from (f"  {line}" for line in table(output, _HEADS, [_row(job, view) for job in view.jobs], styled=1))
    listed = sum(not job.is_live for job in view.jobs)
    if view.ended_jobs > listed:
        yield f"  and {view.ended_jobs - listed} more that ended; --all shows them"
    yield from (f"{output.paint('!', 'yellow', 'bold')} {printable(text)}" for text in view.problems)


def _row(job: FleetJobView, view: FleetView) -> tuple[str, ...]:
    zone = view.time_zone
    known = "" if job.age_s is None else f"{format_duration(job.age_s)} ago"
    about = job.about
    others = ", ".join(f"{number} {outcome}" for outcome, number in job.attempts.items() if outcome != "succeeded")
    if others:
        about = f"{about}; attempts: {others}" if about else f"attempts: {others}"
    if job.idle_tail_s is not None:
        tail = f"idle for {format_duration(job.idle_tail_s)} at its end"
        about = f"{about}; {tail}" if about else tail
    if job.expected_start_utc is not None:
        by = local_time(job.expected_start_utc, zone)
        about = f"{about}{' ' if about else ''}The scheduler expects to start it by {by}."
    if job.lane is not None:
        about = f"lane {job.lane}{': ' if about else ''}{about}"
    return (
        job.id or job.token,
        job.state,
        str(job.nodes),
        str(job.gpus),
        str(job.workers),
        "?" if job.tasks is None else f"{job.tasks:,}",
        hours(job.gpu_hours),
        "" if job.end_utc is None else local_time(job.end_utc, zone),
        f"{known} ({'not told yet' if view.answered else 'no answer'})" if job.stale else known,
        about,
    )


def _list(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program():
        from fleetcraft.actions.fleet_look import read_states
    spool = open_spool(arguments)
    now_utc = spool.clock.utc()
    rows: list[dict[str, Any]] = []
    for name, state in read_states(spool).items():
        spec = state.spec() or state.specs.get(max(state.specs, default=0))
        rows.append(
            {
                "name": name,
                "profile": spec.site.profile if spec else None,
                "partition": spec.site.partition.name if spec else None,
                "shapes": len(state.shapes),
                "drained": state.drained,
                "live_jobs": len(state.live()),
                "live_nodes": state.live_nodes(),
                "jobs": len(state.jobs),
                "gpu_hours": round(state.gpu_seconds(now_utc) / 3600, 4),
                "gpu_hour_cap": spec.gpu_hour_cap if spec else None,
                "problems": state.problems,
            }
        )
    if output.json:
        output.document(LIST.schema, {"fleets": rows})
        return EXIT_DONE
    if not rows:
        output.line("no fleet was made in this spool; see `fleetcraft fleet submit --help`")
        return EXIT_DONE
    heads = ("FLEET", "PROFILE", "PARTITION", "LIVE JOBS", "NODES", "JOBS", "GPU-HOURS", "ABOUT")
    cells = [
        (
            str(row["name"]), str(row["profile"] or "?"), str(row["partition"] or "?"), str(row["live_jobs"]),
            str(row["live_nodes"]), str(row["jobs"]), hours(row["gpu_hours"], row["gpu_hour_cap"]),
            "drained" if row["drained"] else "",
        )
        for row in rows
    ]  # fmt: skip
    output.lines(table(output, heads, cells))
    return EXIT_DONE


STATUS = Command(
    path=("fleet", "status"),
    summary="the jobs of a fleet: state, reason, work done, time and GPU-hours",
    description="Ask the scheduler once and show every job with its state, the reason in a sentence, how old that\n"
    "knowledge is, what its workers did, and what it cost. A question without an answer changes nothing: the last\n"
    "that is known is shown with its age, and the exit code is 75.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft fleet status", what="Every fleet of this spool."),
        Example(line="fleetcraft fleet status study1 --no-ask", what="What is on record, asking nobody."),
        Example(line="fleetcraft fleet status study1 --exit-code --json", what="For a script that waits for the end."),
    ),
    exits={
        1: "with --exit-code: a fleet failed",
        3: "with --exit-code: a job waits or runs",
        75: "the scheduler or the storage did not answer; run the same command again",
    },
)
LIST = Command(
    path=("fleet", "list"),
    summary="which fleets a spool has",
    description="List the fleets from their records. Nobody is asked; `fleetcraft fleet status` asks the scheduler.",
    run=_list,
    examples=(
        Example(line="fleetcraft fleet list", what="The fleets of this spool."),
        Example(line="fleetcraft fleet list --json", what="The same as one JSON object."),
    ),
)
