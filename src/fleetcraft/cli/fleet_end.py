"""`fleet drain`, `fleet cancel` and `fleet shell`: letting go of nodes in order, and looking inside a job."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import fleet_argument, open_spool, whole_program
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import duration
from fleetcraft.core.errors import EXIT_DONE, UsageError
from fleetcraft.core.quantities import format_duration

if TYPE_CHECKING:
    from fleetcraft.fleet.drain import EndReport

_EXITS = {75: "the scheduler or the storage did not take all of it; run the same command again"}


def _drain_arguments(parser: argparse.ArgumentParser) -> None:
    fleet_argument(parser)
    group = parser.add_argument_group("what to do")
    group.add_argument("--resume", action="store_true", help="take a drain back: the next pass may submit again")
    group.add_argument("--why", metavar="TEXT", default="asked for", help="kept with the request")


def _drain(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program():
        from fleetcraft.actions import fleet_end
    spool = open_spool(arguments)
    if arguments.resume:
        name = fleet_end.resume_fleet(spool, arguments.fleet, why=arguments.why)
        if output.json:
            output.document(DRAIN.schema, {"fleet": name, "resumed": True})
        else:
            output.line(f"{name}: the drain is taken back; `fleetcraft fleet ensure {name}` may submit again")
        return EXIT_DONE
    name, report = fleet_end.drain_fleet(spool, arguments.fleet, why=arguments.why)
    if output.json:
        output.document(DRAIN.schema, {"fleet": name, "resumed": False, **report.as_json()})
    else:
        output.line(f"{name}: nothing new is submitted")
        output.lines(_told(report))
    return fleet_end.exit_of_end(report)


def _cancel_arguments(parser: argparse.ArgumentParser) -> None:
    fleet_argument(parser)
    group = parser.add_argument_group("what to cancel")
    group.add_argument(
        "--job", action="append", default=[], metavar="ID",
        help="this job only, by the scheduler's id or its token; may be repeated (default: the whole fleet)",
    )  # fmt: skip
    group.add_argument(
        "--step",
        action="store_true",
        help="tell only the workers to stop; each job ends with them and nothing is killed",
    )
    group.add_argument(
        "--signal", metavar="NAME",
        help="with --step: have the scheduler send this signal to every process of the jobs instead, tasks included",
    )  # fmt: skip
    times = parser.add_argument_group("how long to wait for the work")
    times.add_argument(
        "--finish", type=duration("--finish"), default=0.0, metavar="TIME",
        help="so long running tasks may go on (default: 0s)",
    )  # fmt: skip
    times.add_argument(
        "--save", type=duration("--save"), default=60.0, metavar="TIME",
        help="so long they may then take to save their state (default: 1m)",
    )  # fmt: skip
    group.add_argument("--why", metavar="TEXT", default="asked for", help="kept with the request")


def _cancel(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program():
        from fleetcraft.actions import fleet_end
    spool = open_spool(arguments)
    if arguments.step:
        name, report = fleet_end.signal_fleet(spool, arguments.fleet, arguments.job, signal=arguments.signal)
    else:
        name, report = fleet_end.cancel_fleet(
            spool, arguments.fleet, arguments.job,
            why=arguments.why, finish_s=arguments.finish, save_s=arguments.save,
        )  # fmt: skip
    if output.json:
        output.document(CANCEL.schema, {"fleet": name, "step": arguments.step, **report.as_json()})
    else:
        told = list(_told(report))
        output.lines(f"{name}: {line}" for line in told or ["no job is live"])
    return fleet_end.exit_of_end(report)


def _told(report: EndReport) -> Iterator[str]:
    if report.drained:
        yield f"asked {count(len(report.drained), 'worker')} to leave"
    if report.signalled:
        yield f"told {', '.join(report.signalled)}"
    if report.waited_s >= 1:
        yield f"waited {format_duration(report.waited_s)} for the work to go back"
    if report.left:
        yield f"{count(len(report.left), 'worker')} had not left yet; what they hold goes back by the next pass"
    if report.cancelled:
        yield f"asked the scheduler to end {', '.join(report.cancelled)}"
    yield from (f"! {printable(text)}" for text in report.problems)


def _shell_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TASK|JOB", help="a running task, or a job by its id or token")
    group = parser.add_argument_group("how")
    group.add_argument("--node", metavar="NAME", help="which node of the job (default: the task's, else the first)")
    group.add_argument("--shell", metavar="PROGRAM", default="bash", help="what to run there (default: bash)")
    group.add_argument("--print", action="store_true", dest="show", help="only print the command")


def _shell(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program():
        from fleetcraft.actions.fleet_end import find_shell
    # What is only printed is for a terminal; what runs here may have none, as in a script.
    pty = output.json or arguments.show or (sys.stdin.isatty() and sys.stdout.isatty())
    found = find_shell(open_spool(arguments), arguments.target, node=arguments.node, shell=arguments.shell, pty=pty)
    if found.doubt:
        output.note(f"job {found.job}: {found.doubt}")
    if output.json:
        body = {"argv": list(found.argv), "job": found.job, "node": found.node, "fleet": found.fleet}
        output.document(SHELL.schema, {**body, "task": found.task, "doubt": found.doubt})
    elif arguments.show:
        output.line(shlex.join(found.argv))
    else:
        output.note(f"job {found.job} on {found.node or 'its node'}: {shlex.join(found.argv)}")
        output.flush()
        try:
            os.execvp(found.argv[0], list(found.argv))  # noqa: S606  the shell takes our place
        except FileNotFoundError as error:
            raise UsageError(f"There is no {found.argv[0]} here.", hint="Run it where jobs are submitted.") from error
    return EXIT_DONE


DRAIN = Command(
    path=("fleet", "drain"),
    summary="submit nothing new, give waiting jobs back, let workers leave after what they run",
    description="Drain a fleet: no pass submits anything for it, waiting jobs are given back, and workers leave when\n"
    "what they run has ended. `fleet submit` or --resume takes it back.",
    arguments=_drain_arguments,
    run=_drain,
    examples=(
        Example(line="fleetcraft fleet drain study1", what="Let it run out."),
        Example(line="fleetcraft fleet drain study1 --resume", what="Take that back."),
    ),
    exits=_EXITS,
)
CANCEL = Command(
    path=("fleet", "cancel"),
    summary="end the jobs of a fleet; work goes back first",
    description="End jobs in order: workers claim nothing new, running tasks may finish for --finish, then get their\n"
    "checkpoint signal and --save to obey it, what is unfinished goes back, and only then the jobs are cancelled.",
    arguments=_cancel_arguments,
    run=_cancel,
    examples=(
        Example(line="fleetcraft fleet cancel study1 --finish 10m", what="What runs may go on for ten minutes."),
        Example(line="fleetcraft fleet cancel study1 --job 4711", what="One job of it; the fleet lives on."),
        Example(line="fleetcraft fleet cancel study1 --step", what="Only ask what runs to save its state."),
    ),
    exits=_EXITS,
)
SHELL = Command(
    path=("fleet", "shell"),
    summary="open a shell beside a running task, or in a job, on its node",
    description="Find the node and take the place of this command with a shell there, inside the same job. The\n"
    "scheduler is asked for a job that is not known to run. Without a terminal the shell reads its standard input.",
    arguments=_shell_arguments,
    run=_shell,
    examples=(
        Example(line="fleetcraft fleet shell train-0", what="Where that task runs now."),
        Example(line="fleetcraft fleet shell 4711 --node n2 --print", what="Only show the command."),
    ),
)
