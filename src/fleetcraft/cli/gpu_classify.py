"""`gpu classify`: what every GPU does now, in one word, by which rule and which thresholds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import open_spool, whole_program
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import is_spool_named
from fleetcraft.cli.tables import table
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED
from fleetcraft.core.quantities import format_duration

if TYPE_CHECKING:
    from fleetcraft.readmodel.gpu_picture import GpuNow, GpusNow
    from fleetcraft.wiring.gpu_look import Looker

_HEADS = ("HOST", "GPU", "CLASS", "ACTIVE", "UTIL", "MEMORY", "COVER", "AGE", "JOB", "WHY")
_BAD = ("unreachable", "telemetry-broken", "lost", "hung")


def look_arguments(parser: argparse.ArgumentParser) -> None:
    """What every verb that looks at GPUs can be told."""
    parser.add_argument(
        "paths", metavar="DIR", nargs="*", help="telemetry folders (default: that of the spool)"
    )  # fmt: skip
    group = parser.add_argument_group("what to look at")
    group.add_argument("--fleet", metavar="NAME", help="only the GPUs of this fleet")
    group.add_argument("--job", metavar="ID", help="only the GPUs of this job")
    group.add_argument("--profile", metavar="NAME", help="ask the site of this profile for your jobs")
    group.add_argument("--no-ask", action="store_true", help="from files alone, without asking the scheduler")
    how = parser.add_argument_group("how to judge")
    how.add_argument(
        "--threshold", metavar="NAME=VALUE", action="append", default=[],
        help="set one of the thresholds, as `idle_with_work_s=300`; may be given again",
    )  # fmt: skip
    how.add_argument(
        "--heartbeat", metavar="FILE", default="",
        help="a file that your application touches while it is alive; {job} and {host} are filled in",
    )  # fmt: skip


def looker(arguments: argparse.Namespace, *, deep_s: float = 0.0) -> Looker:
    """What looks, as the arguments say. Raises UsageError."""
    with whole_program("GPUs"):
        from fleetcraft.usage.thresholds import Thresholds
        from fleetcraft.wiring.gpu_look import Looker, LookOptions
    thresholds = Thresholds().replaced(arguments.threshold)
    options = LookOptions(
        paths=arguments.paths, fleet=arguments.fleet, job=arguments.job, profile=arguments.profile,
        ask=not arguments.no_ask, heartbeat=arguments.heartbeat, thresholds=thresholds, deep_s=deep_s,
    )  # fmt: skip
    spool = open_spool(arguments) if not arguments.paths or is_spool_named(arguments) else None
    made = Looker(options, spool)
    made.roots()
    return made


def _run(arguments: argparse.Namespace, output: Output) -> int:
    picture = looker(arguments, deep_s=arguments.back or 0.0).look()
    if output.json:
        output.document(CLASSIFY.schema, picture.as_json())
    else:
        output.lines(describe(picture, output))
    bad = sum(number for kind, number in picture.counts().items() if kind in _BAD)
    return EXIT_FAILED if arguments.exit_code and bad else EXIT_DONE


def _arguments(parser: argparse.ArgumentParser) -> None:
    from fleetcraft.cli.parser import duration

    look_arguments(parser)
    parser.add_argument(
        "--back", metavar="SPAN", type=duration("--back"), help="how far back to look for when a GPU was busy"
    )
    parser.add_argument(
        "--exit-code", action="store_true", help="answer with 1 where a GPU is unreachable, broken, lost or hung"
    )


def describe(picture: GpusNow, output: Output) -> Iterator[str]:
    """The classes for a person."""
    rows = [row_of(gpu) for gpu in picture.gpus]
    rows += [
        (host.host, "?", "unreachable", "-", "-", "-", "-", age_text(host.age_s), ",".join(host.jobs), host.reason)
        for host in picture.hosts if not host.gpus
    ]  # fmt: skip
    if not rows:
        yield "no GPU is expected, and none reports"
    else:
        yield from table(output, _HEADS, rows, styled=2)
    yield ""
    yield from summary_lines(picture)
    yield from (f"{output.paint('!', 'yellow', 'bold')} {printable(text)}" for text in picture.problems)


def summary_lines(picture: GpusNow) -> Iterator[str]:
    """Totals, queue, and by which thresholds."""
    totals = picture.totals()
    classes = ", ".join(f"{number} {kind}" for kind, number in picture.counts().items() if number)
    yield (
        f"coverage    {totals['reporting_hosts']} of {count(totals['hosts'], 'host')}, "
        f"{totals['reporting_gpus']} of {count(totals['gpus'], 'GPU')} report{f': {classes}' if classes else ''}"
    )
    if picture.queue is not None:
        waiting = picture.queue.gpu_waiting
        yield f"queue       {count(waiting, 'task')} {'waits' if waiting == 1 else 'wait'} for GPUs" + (
            "; the spool is stopped" if picture.queue.stopped else ""
        )
    if picture.scheduler_answered is False:
        yield "scheduler   did not answer; jobs are as they are on record"
    limits = picture.thresholds
    yield (
        f"thresholds  window {limits.window_s:g} s, active >= {limits.active_pct:g} %, reserved >= "
        f"{limits.reserved_mib:g} MiB above the baseline, low < {limits.low_sm_pct:g} %, coverage >= "
        f"{100 * limits.min_coverage:g} %, silent > max({limits.silent_intervals:g} intervals, {limits.silent_s:g} s), "
        f"grace {limits.grace_s:g} s"
    )
    if picture.clock != "file_server":
        yield "ages        by this machine's clock: nothing may be written to the telemetry folder"


def row_of(gpu: GpuNow) -> tuple[str, ...]:
    """One GPU as cells."""
    verdict = gpu.verdict
    kind = verdict.kind.value
    low = f"{verdict.label}: " if verdict.label else ""
    cause = f"{verdict.cause.value}: " if verdict.cause else ""
    idle = f" (idle for {format_duration(gpu.idle_s)})" if gpu.idle_s and kind.endswith("idle") else ""
    return (
        gpu.host,
        "?" if gpu.index is None else str(gpu.index),
        kind,
        percent(None if gpu.active_fraction is None else 100 * gpu.active_fraction),
        percent(gpu.util_pct),
        memory_text(gpu),
        percent(None if gpu.coverage is None else 100 * gpu.coverage),
        age_text(gpu.age_s),
        gpu.job or "-",
        f"{low}{cause}{verdict.text}{idle}",
    )


def percent(value: float | None) -> str:
    """A share as text; a dash where it is not known."""
    return "-" if value is None else f"{value:.0f} %"


def age_text(age_s: float | None) -> str:
    """How old; `never` where nothing ever came."""
    return "never" if age_s is None else f"{age_s:.0f} s" if age_s < 100 else format_duration(age_s)


def memory_text(gpu: GpuNow) -> str:
    """Used of total, in GiB."""
    if gpu.memory_bytes is None:
        return "-"
    total = "" if gpu.memory_total_bytes is None else f"/{gpu.memory_total_bytes / (1 << 30):.0f}"
    return f"{gpu.memory_bytes / (1 << 30):.1f}{total} GiB"


CLASSIFY = Command(
    path=("gpu", "classify"),
    summary="what every GPU does now: one class, with its reason and the thresholds",
    description="Say of every GPU that jobs and workers hold what it does now: working, waiting, reserved-idle,\n"
    "free-idle, starting, unknown, unreachable, telemetry-broken, lost or hung. The first rule that holds decides,\n"
    "and a GPU that does not report keeps its row, with the age and the reason of its silence. A value that is not\n"
    "known never makes a GPU idle.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft gpu classify", what="Every GPU of the spool's workers and of your jobs."),
        Example(line="fleetcraft gpu classify --no-ask --json", what="From files alone, for a program."),
        Example(line="fleetcraft gpu classify --threshold window_s=600", what="Judge ten minutes instead of five."),
        Example(line="fleetcraft gpu classify --exit-code", what="Fail where a GPU cannot be trusted."),
    ),
    exits={1: "with --exit-code: a GPU is unreachable, broken, lost or hung"},
)
