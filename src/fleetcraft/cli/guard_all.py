"""`guard all`: what every guard says to a request, with its evidence; nothing is submitted or written."""

from __future__ import annotations

import argparse

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import decision_lines, open_spool, whole_program
from fleetcraft.cli.fleet_options import (
    add_fleet_arguments,
    add_place_arguments,
    add_shape_arguments,
    add_worker_arguments,
    read_options,
)
from fleetcraft.cli.fleet_submit import DEFAULT_FLEET
from fleetcraft.cli.output import Output
from fleetcraft.core.errors import EXIT_DONE, EXIT_REFUSED


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "fleet", metavar="FLEET", nargs="?", default=DEFAULT_FLEET, help="its name in this spool (default: main)"
    )
    add_place_arguments(parser)
    add_shape_arguments(parser)
    add_fleet_arguments(parser)
    add_worker_arguments(parser)


def _run(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program():
        from fleetcraft.actions.fleet_supply import ask_guards_about
    draft = ask_guards_about(open_spool(arguments), arguments.fleet, read_options(arguments))
    if output.json:
        output.document(ALL.schema, {"fleet": arguments.fleet, **draft.as_json()})
    else:
        output.lines(decision_lines(draft.ruling.as_json(), output))
        output.line("all of them allow it" if draft.ruling.allowed else "it would be refused")
    return EXIT_DONE if draft.ruling.allowed else EXIT_REFUSED


ALL = Command(
    path=("guard", "all"),
    summary="what every guard says to a request, without submitting it",
    description="Ask every guard about the job that `fleet submit` with the same options would submit first.\n"
    "All of them are asked, also after a refusal, and each says on what evidence.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft guard all --profile local --time 1h", what="One line for each guard."),
        Example(
            line="fleetcraft guard all study1 --profile mysite --nodes 8 --json", what="With the evidence as data."
        ),
    ),
    exits={4: "a guard would refuse it; the reasons are shown"},
)
