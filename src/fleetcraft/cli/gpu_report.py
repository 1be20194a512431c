"""`gpu report`: one page with figures about what became of GPU-hours."""

from __future__ import annotations

import argparse
import time

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import whole_program
from fleetcraft.cli.gpu_span import span_of
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import spool_root
from fleetcraft.core.errors import EXIT_DONE


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", metavar="PATH", nargs="*",
        help="telemetry folders, segments or plain CSV logs (default: the spool, with its ledger)",
    )  # fmt: skip
    group = parser.add_argument_group("what to report")
    group.add_argument("--fleet", metavar="NAME", help="only this fleet")
    group.add_argument("--job", metavar="ID", help="only this job")
    group.add_argument("--since", metavar="TIME", help="from then on: 6h for that long ago, or an ISO date or time")
    group.add_argument("--until", metavar="TIME", help="up to then, the same way (default: to the end, or now)")
    group.add_argument("--zone", metavar="NAME", default="UTC", help="time zone of times without one (default: UTC)")
    group.add_argument("--no-ask", action="store_true", help="do not ask schedulers; jobs stand as on record")
    made = parser.add_argument_group("what to make")
    made.add_argument("--output", metavar="FILE", default="report.html", help="the page (default: report.html)")
    made.add_argument("--figures", metavar="DIR", help="also write every figure as a file into this folder")
    made.add_argument("--format", choices=("svg", "png"), default="svg", help="of these files (default: svg)")
    made.add_argument("--data", metavar="FILE", help="also write all numbers of the page as JSON")
    made.add_argument(
        "--publish", action="store_true",
        help="for strangers: no host, user, account, path or id; refuses what it cannot clean",
    )  # fmt: skip


def _run(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program("GPUs"):
        from fleetcraft.actions.gpu_ledger import ask_fleets
        from fleetcraft.actions.gpu_summary import Asked
        from fleetcraft.report.gpu_data import collect
        from fleetcraft.report.gpu_write import write_report

    now_ms = time.time_ns() // 1_000_000
    since_ms, until_ms = span_of(arguments, now_ms)
    asked = Asked(
        fleet=arguments.fleet, job=arguments.job, since_ms=since_ms, until_ms=until_ms, now_ms=now_ms,
        zone=arguments.zone,
    )  # fmt: skip
    root = None if arguments.paths else spool_root(arguments)
    silent = [] if root is None or arguments.no_ask else ask_fleets(root, arguments.fleet)
    report = collect(asked.options(), paths=arguments.paths, spool_root=root, problems=silent)
    files = write_report(
        report, arguments.output, figures=arguments.figures, kind=arguments.format, data=arguments.data,
        published=arguments.publish,
    )  # fmt: skip
    if output.json:
        total = report.document["total"]
        names = ("gpu_hours", "utilization_pct", "active_fraction", "energy")
        output.document(REPORT.schema, {"files": files, **{name: total[name] for name in names}})
    else:
        output.line(f"{printable(arguments.output)}: {_headline(report.document)}")
        if len(files) > 1:
            output.line(f"and {count(len(files) - 1, 'file')} beside it")
    return EXIT_DONE


def _headline(document: dict[str, object]) -> str:
    total, ledgers = document["total"], document["ledgers"]
    assert isinstance(total, dict)  # noqa: S101  it is made that way
    assert isinstance(ledgers, list)  # noqa: S101
    checks = [ledger["check"] for ledger in ledgers if ledger["classes_ms"]]
    if total["samples"]:
        kwh = total["energy"]["held_kwh"]
        energy = "unknown energy" if kwh is None else f"{kwh:,.2f} kWh"
        active = total["active_fraction"]
        busy = "unknown activity" if active is None else f"{100 * active:.2f} % active"
        checks.insert(0, f"{total['gpu_hours']:,.3f} GPU-hours seen, {busy}, {energy}")
    return "; ".join(checks) or "nothing was allocated or seen in that time"


REPORT = Command(
    path=("gpu", "report"),
    summary="one page with figures: where the GPU-hours went, and what would save some",
    description="Write one HTML file that needs nothing else: a timeline for each GPU, the ledger, the largest\n"
    "wastes, utilization, memory, power and energy over time, tasks, coverage, and the digests of all that was read.\n"
    "From samples alone, the timeline shows activity instead of the ledger's classes.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft gpu report --output report.html", what="The whole spool."),
        Example(line="fleetcraft gpu report logs/ --output report.html", what="A folder of plain logs."),
        Example(
            line="fleetcraft gpu report --fleet study1 --publish --figures figures --data report.json",
            what="For strangers, with figures and numbers as files.",
        ),
    ),
    exits={4: "the report could not be cleaned of every name; nothing was written"},
)
