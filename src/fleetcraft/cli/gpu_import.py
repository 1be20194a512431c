"""`gpu import`: logs of other tools into a telemetry folder."""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import whole_program
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import duration, is_spool_named, spool_root
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from datetime import tzinfo

    from fleetcraft.actions.gpu_import import Imported

# True of nearly every such log, so it is said once, and not for each of them.
_COMMON = {
    "no_zone": "without a time zone: stamps were taken for UTC (name the zone with --zone)",
    "no_device": "without a name of a GPU: all rows were taken for one GPU, whose identity is not known",
    "no_interval": "too short to tell the interval: 30 s is assumed (name it with --interval)",
}


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help="logs, or folders of them (.csv, .log, .txt, .dmon)")
    parser.add_argument("--to", metavar="DIR", help="a telemetry folder (default: the telemetry of the spool)")
    parser.add_argument("--host", metavar="NAME", help="the machine of a log (default: the name of its file)")
    parser.add_argument("--job", metavar="ID", default="", help="the job in which it was written")
    how = parser.add_argument_group("what a log does not tell")
    how.add_argument("--zone", metavar="NAME", default="", help="time zone of stamps without one (default: UTC)")
    how.add_argument("--day", metavar="DATE", default="", help="first day of a log that tells only times of day")
    how.add_argument("--columns", metavar="NAMES", help="the columns of a log without a header, with commas between")
    how.add_argument(
        "--interval",
        metavar="SPAN",
        type=duration("--interval"),
        help="how often it was written (default: as it seems)",
    )
    parser.add_argument("--dry-run", action="store_true", help="read everything, write nothing")


def _run(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program("GPUs"):
        from fleetcraft.actions import gpu_import as action

    if arguments.to is None and not is_spool_named(arguments):
        raise UsageError("There is no place to write to.", hint="Name a telemetry folder with --to, or a spool.")
    root = arguments.to if arguments.to is not None else os.path.join(spool_root(arguments), "telemetry")
    asked = action.Asked(
        paths=arguments.paths, root=os.path.abspath(root), host=arguments.host or "", job=arguments.job,
        zone=_zone(arguments.zone), zone_name=arguments.zone, day=arguments.day,
        columns=None if arguments.columns is None else [name.strip() for name in arguments.columns.split(",")],
        interval_ms=None if arguments.interval is None else round(arguments.interval * 1000),
        dry_run=arguments.dry_run,
    )  # fmt: skip
    done = list(action.import_logs(asked, now_ms=time.time_ns() // 1_000_000))
    if output.json:
        output.document(
            IMPORT.schema,
            {"to": asked.root, "dry_run": asked.dry_run, "logs": [one.as_json() for one in done]},
        )
    else:
        _tell(done, output, dry_run=asked.dry_run)
    return EXIT_FAILED if any(one.state == action.UNREADABLE for one in done) else EXIT_DONE


def _zone(name: str) -> tzinfo | None:
    """The zone that was named, UTC among them; None where none was."""
    from datetime import UTC

    if not name:
        return None
    with whole_program("GPUs"):
        from fleetcraft.actions.gpu_summary import zone_of
    return zone_of(name) or UTC


def _tell(done: list[Imported], output: Output, *, dry_run: bool) -> None:
    from fleetcraft.actions.gpu_import import DONE, GREW

    mark = output.paint("!", "yellow", "bold")
    for one in done:
        for told in one.unknown:
            if told["kind"] not in _COMMON or told["count"]:
                output.line(f"{mark} {printable(os.path.basename(one.source))}: {printable(told['text'])}")
    for kind, text in _COMMON.items():
        many = sum(any(told["kind"] == kind and not told["count"] for told in one.unknown) for one in done)
        if many:
            output.line(f"{mark} {count(many, 'log')} {text}")
    taken = [one for one in done if one.state in (DONE, GREW)]
    rows = sum(one.rows for one in taken)
    words = "would import" if dry_run else "imported"
    output.line(f"{words} {count(rows, 'row')} of {count(len(taken), 'log')}")
    states = [one.state for one in done if one.state != DONE]
    for state in sorted(set(states)):
        output.line(f"{count(states.count(state), 'log')}: {state}")


IMPORT = Command(
    path=("gpu", "import"),
    summary="take in logs of nvidia-smi and the like, and say what they cannot tell",
    description="Turn logs that other tools wrote (CSV of nvidia-smi --query-gpu, text of nvidia-smi dmon) into\n"
    "telemetry segments, one for each log. Damaged lines are counted and never guessed. The same log a second time\n"
    "changes nothing, and of one that has grown only the new rows are added.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(
            line="fleetcraft gpu import logs/ --to telemetry --zone America/Chicago",
            what="A folder with one log for each machine, whose stamps are local times.",
        ),
        Example(
            line="fleetcraft gpu import node7.dmon --to telemetry --day 2026-07-19 --dry-run",
            what="Look at a log of `nvidia-smi dmon -o T` without writing anything.",
        ),
    ),
    exits={1: "a file is no log that can be read", 2: "no such path, zone or day; nothing was written"},
)
