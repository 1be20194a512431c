"""`gpu top`: every GPU of every node of every job of yours, live in a terminal, or once as a table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import whole_program
from fleetcraft.cli.gpu_classify import look_arguments, looker
from fleetcraft.cli.output import Output
from fleetcraft.cli.parser import duration
from fleetcraft.cli.tables import terminal_width
from fleetcraft.core.errors import EXIT_DONE, UsageError

if TYPE_CHECKING:
    from fleetcraft.readmodel.gpu_filter import Filter
    from fleetcraft.readmodel.gpu_picture import GpusNow

_INTERVAL_S = 5.0
_LEAST_S = 1.0
_PIPE_COLUMNS = 10_000  # in a pipe nothing is cut
_SORTS = ("host", "class", "util", "mem", "power", "age", "idle", "job")


def _arguments(parser: argparse.ArgumentParser) -> None:
    look_arguments(parser)
    group = parser.add_argument_group("how to show")
    group.add_argument("--once", action="store_true", help="print one table and end; the way it is without a terminal")
    group.add_argument(
        "--interval", metavar="SPAN", type=duration("--interval"), default=_INTERVAL_S,
        help=f"time between readings of the files (default: {_INTERVAL_S:g}s); the scheduler is asked more seldom",
    )  # fmt: skip
    group.add_argument(
        "--filter", metavar="TERMS", default="", help="only these: 'class=free-idle host=n1* util<5 mem>=40G'"
    )
    group.add_argument("--sort", choices=_SORTS, default="host", help="the column to sort by (default: host)")
    group.add_argument("--reverse", action="store_true", help="the other way round")


def _run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.interval < _LEAST_S:
        raise UsageError("--interval must be at least 1s.", hint="Files are read at each look.")
    with whole_program("GPUs"):
        from fleetcraft.readmodel.gpu_filter import kept, parse_filter
    wanted = parse_filter(arguments.filter)
    made = looker(arguments, deep_s=900.0)
    if output.json or arguments.once or not output.is_terminal:
        picture = made.look()
        if output.json:
            output.document(TOP.schema, {"filter": wanted.text, **kept(picture, wanted).as_json()})
        else:
            _print(picture, wanted, arguments, output)
        return EXIT_DONE
    from fleetcraft.cli.gpu_top_app import TopApp

    TopApp(
        made.look,
        interval_s=arguments.interval,
        filter_text=wanted.text,
        sort=arguments.sort,
        reverse=arguments.reverse,
    ).run()
    return EXIT_DONE


def _print(picture: GpusNow, wanted: Filter, arguments: argparse.Namespace, output: Output) -> None:
    from rich.console import Console

    from fleetcraft.cli.gpu_top_view import header, lines, rich_table

    console = Console(
        file=output.stdout, width=terminal_width(output) or _PIPE_COLUMNS, force_terminal=output.color,
        no_color=not output.color, highlight=False, markup=False, emoji=False,
    )  # fmt: skip
    console.print(header(picture))
    shown = lines(picture, wanted, arguments.sort, descending=arguments.reverse)
    console.print()
    if shown:
        console.print(rich_table(shown, console.width))
    else:
        console.print("no GPU fits the filter" if wanted.terms else "no GPU is expected, and none reports")


TOP = Command(
    path=("gpu", "top"),
    summary="every GPU of all your nodes, live: load, memory, power, class, task, and who is silent",
    description="Show every GPU of every node that your jobs and workers hold, from the files of their samplers and\n"
    "the scheduler, without logging in anywhere. A host that fell silent stays, with its age and the reason. Keys:\n"
    "q ends, s sorts by the next column, r reverses, / filters, e exports what is shown, p pauses. Without a\n"
    "terminal, and with --once, one table is printed.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft gpu top", what="In a terminal; also over SSH."),
        Example(
            line="fleetcraft gpu top --once --filter 'class=free-idle,reserved-idle'", what="What is idle, as a table."
        ),
        Example(line="fleetcraft gpu top --sort util --filter job=4711", what="One job, the least used GPUs first."),
    ),
    exits={130: "interrupted"},
)
