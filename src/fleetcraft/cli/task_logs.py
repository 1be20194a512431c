"""`task logs`: what an attempt wrote, while it runs too."""

from __future__ import annotations

import argparse

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output
from fleetcraft.cli.parser import number, spool_root
from fleetcraft.core.errors import EXIT_DONE, UsageError
from fleetcraft.readmodel.logs import decoded, open_log
from fleetcraft.spool.spool import Spool


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the task's name, or its id such as 3.17")
    group = parser.add_argument_group("what to show")
    group.add_argument(
        "-f", "--follow", action="store_true", help="go on until the attempt ends; waits for its start too"
    )
    group.add_argument(
        "--attempt", type=number, metavar="N", help="this attempt (default: the one that decided, else the last)"
    )
    group.add_argument(
        "--bytes", action="store_true", help="write the bytes as they are, instead of text with wrong bytes marked"
    )


def _run(arguments: argparse.Namespace, output: Output) -> int:
    spool = Spool.open(spool_root(arguments))
    if output.json and arguments.follow:
        raise UsageError("--follow writes output as it comes; with --json, ask again as often as you like.")
    log = open_log(spool, arguments.name, arguments.attempt, follow=arguments.follow)
    if output.json:
        view = log.attempt
        body = {"name": log.detail.name, "id": str(log.detail.id), "attempt": view.attempt, "worker": view.worker}
        output.document(LOGS.schema, {**body, "shared": view.log_shared, "output": "".join(decoded(log.chunks))})
        return EXIT_DONE
    if log.attempt.log_shared:
        output.note(
            f"{log.detail.name} is one of several short calls that ran together; this is what all of them wrote"
        )
    if arguments.bytes:
        output.flush()
        for chunk in log.chunks:
            output.stdout.buffer.write(chunk)
            output.stdout.buffer.flush()
        return EXIT_DONE
    for text in decoded(log.chunks):
        output.stdout.write(text)
        output.flush()
    return EXIT_DONE


LOGS = Command(
    path=("task", "logs"),
    summary="what a task wrote to its output",
    description="Print what an attempt wrote: standard output and standard error, in the order of the writes.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(
            line="fleetcraft task logs train-0", what="The output of the attempt that decided, or of the last one."
        ),
        Example(line="fleetcraft task logs -f train-0", what="Go on until the attempt ends."),
        Example(line="fleetcraft task logs train-0 --attempt 1", what="The output of the first attempt."),
    ),
    exits={1: "the output was there and is gone"},
)
