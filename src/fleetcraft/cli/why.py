"""`why`: the reasons behind a state, in sentences, with the records that decided as data."""

from __future__ import annotations

import argparse

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output, printable
from fleetcraft.cli.parser import spool_root
from fleetcraft.core.errors import EXIT_DONE
from fleetcraft.readmodel.why import explain_task
from fleetcraft.spool.spool import Spool


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the task's name, or its id such as 3.17")


def _run(arguments: argparse.Namespace, output: Output) -> int:
    found = explain_task(Spool.open(spool_root(arguments)), arguments.name)
    if output.json:
        output.document(TASK.schema, found.as_json())
    else:
        first, *rest = found.sentences
        output.line(output.paint(printable(first), "bold"))
        output.lines(f"  {printable(sentence)}" for sentence in rest)
    return EXIT_DONE


TASK = Command(
    path=("why", "task"),
    summary="why a task waits, failed, was lost or set aside",
    description="Say why a task is in its state: what it waits for, how each attempt ended, and what was decided\n"
    "on which evidence.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft why task train-0", what="Why it does not start, or why it failed."),
        Example(line="fleetcraft why task --json train-0", what="The same with the evidence as data."),
    ),
)
