"""`why fleet` and `why job`: the last decisions about a fleet, and everything that was decided about one job."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import fleet_argument, open_spool, whole_program
from fleetcraft.cli.output import Output, printable
from fleetcraft.core.errors import EXIT_DONE, UsageError

if TYPE_CHECKING:
    from fleetcraft.fleet.state import FleetState
    from fleetcraft.readmodel.fleet_why import FleetExplanation


def _show(found: FleetExplanation, output: Output, schema: str) -> int:
    if output.json:
        output.document(schema, found.as_json())
    else:
        first, *rest = found.sentences
        output.line(output.paint(printable(first), "bold"))
        output.lines(f"  {printable(sentence)}" for sentence in rest)
    return EXIT_DONE


def _fleet(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program():
        from fleetcraft.actions.fleet_look import read_logs
        from fleetcraft.actions.fleet_open import choose_fleet
        from fleetcraft.fleet.records import no_such_fleet
        from fleetcraft.fleet.state import fold
        from fleetcraft.readmodel.fleet_why import explain_fleet
    spool = open_spool(arguments)
    name = choose_fleet(spool, arguments.fleet)
    log = read_logs(spool).get(name)
    if log is None:
        raise no_such_fleet(name, spool.layout.root)
    state = fold(log.records)
    return _show(explain_fleet(name, log.records, state, zone=_zone(state, output)), output, FLEET.schema)


def _zone(state: FleetState, output: Output) -> str | None:
    """That of the site, for a person; programs get UTC."""
    from fleetcraft.actions.fleet_open import newest_spec

    spec = None if output.json else newest_spec(state)
    return None if spec is None else spec.site.time_zone


def _job_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="ID", help="the scheduler's id, or the job's token")


def _job(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program():
        from fleetcraft.actions.fleet_look import read_end, read_logs
        from fleetcraft.fleet.state import fold
        from fleetcraft.readmodel.fleet_why import explain_job, find_job
    spool = open_spool(arguments)
    logs = read_logs(spool)
    states = {name: fold(log.records) for name, log in logs.items()}
    found = find_job(states, arguments.job)
    if found is None:
        raise UsageError(
            f"No fleet of this spool has a job {arguments.job!r}.", hint="See `fleetcraft fleet status --all`."
        )
    name, job = found
    ended, said_in = read_end(spool, name, job)
    explained = explain_job(
        name,
        logs[name].records,
        job,
        zone=_zone(states[name], output),
        ended=ended,
        output=said_in,
        now_utc=spool.clock.utc(),
    )
    return _show(explained, output, JOB.schema)


FLEET = Command(
    path=("why", "fleet"),
    summary="why a fleet has the jobs that it has: the last decisions about it",
    description="Tell the last decisions about a fleet, newest first: what was asked for and why, what each\n"
    "guard said, what was refused, cancelled or drained. Nobody is asked; the records tell.",
    arguments=fleet_argument,
    run=_fleet,
    examples=(
        Example(line="fleetcraft why fleet study1", what="Why it grew, or why it did not."),
        Example(line="fleetcraft why fleet study1 --json", what="The same with the evidence as data."),
    ),
)
JOB = Command(
    path=("why", "job"),
    summary="why a job of a fleet was submitted, and what became of it",
    description="Tell everything that was decided and seen about one job, oldest first.",
    arguments=_job_arguments,
    run=_job,
    examples=(
        Example(line="fleetcraft why job 4711", what="By the scheduler's id."),
        Example(line="fleetcraft why job fcabc2defgh3 --json", what="By its token, with the records as data."),
    ),
)
