"""`task verify`: whether recorded outputs are still what they were."""

from __future__ import annotations

import argparse

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output, count
from fleetcraft.cli.parser import spool_root
from fleetcraft.cli.progress import Progress
from fleetcraft.cli.tables import table
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED
from fleetcraft.readmodel.verify import verify_outputs
from fleetcraft.spool.spool import Spool


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="tasks to look at (default: all that succeeded)")


def _run(arguments: argparse.Namespace, output: Output) -> int:
    spool = Spool.open(spool_root(arguments))
    looked, wrong = 0, []
    with Progress(output, "verified", "outputs") as progress:
        for verified in verify_outputs(spool, arguments.names):
            looked += 1
            progress(looked)
            if not verified.good:
                wrong.append(verified)
    if output.json:
        output.document(
            VERIFY.schema, {"outputs": looked, "wrong": len(wrong), "findings": [one.as_json() for one in wrong]}
        )
    else:
        if wrong:
            rows = [(one.name, one.found.value, one.path, one.detail) for one in wrong]
            output.lines(table(output, ("TASK", "OUTPUT IS", "PATH", "ABOUT"), rows))
        output.line(f"{count(looked, 'output')} looked at, {len(wrong):,} not as recorded")
        if wrong:
            output.line(f"`fleetcraft task retry {wrong[0].name}` makes it again")
    return EXIT_FAILED if wrong else EXIT_DONE


VERIFY = Command(
    path=("task", "verify"),
    summary="whether recorded outputs are still there, byte for byte",
    description="Compare the outputs that tasks declared with the sizes and digests in their receipts.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft task verify", what="All recorded outputs of all tasks that succeeded."),
        Example(line="fleetcraft task verify train-0 --json", what="The outputs of one task, as one JSON object."),
    ),
    exits={1: "an output is missing, changed or unreadable"},
)
