"""`gpu mfu`: model FLOPs utilization, estimated, measured and at the clock that was held, never one for another."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import whole_program
from fleetcraft.cli.gpu_span import span_of, utc
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import spool_root
from fleetcraft.cli.tables import table
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from fleetcraft.readmodel.gpu_mfu import Found
    from fleetcraft.usage.mfu_join import MfuRow, MfuTable
    from fleetcraft.usage.peaks import Peak

_SHOWN = 50
_IMPOSSIBLE = "impossible"
_GROUPS = ("family", "task", "gpu")
_PRECISIONS = ("bf16", "fp16", "tf32", "fp8", "fp16_accumulate_fp16")
_DEFINITION = {
    "estimated": "FLOPs that tasks reported or declared, over dense peak x GPU time held",
    "measured": "mean share of time with tensor pipes at work; a ceiling for dense work, not an estimate",
    "at_clock": "the estimate over the peak at the mean clock that was held",
    "whole": "idle, starting and lost GPU time are in the denominator of the last row",
}


def _arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to reckon")
    group.add_argument("--fleet", metavar="NAME", help="only the jobs of this fleet (default: the whole spool)")
    group.add_argument("--job", metavar="ID", help="only this job")
    group.add_argument("--since", metavar="TIME", help="from then on: 6h for that long ago, or an ISO date or time")
    group.add_argument("--until", metavar="TIME", help="up to then, the same way (default: now)")
    group.add_argument("--zone", metavar="NAME", default="UTC", help="time zone of times without one (default: UTC)")
    group.add_argument("--by", choices=_GROUPS, default="family", help="a row for each of these (default: family)")
    how = parser.add_argument_group("against what")
    how.add_argument(
        "--precision", choices=_PRECISIONS, default="bf16",
        help="dense peak for idle time and for tasks that declare no precision (default: bf16)",
    )  # fmt: skip
    how.add_argument("--peaks", metavar="FILE", help="a table of peaks that adds devices or replaces them (TOML)")
    how.add_argument("--no-ask", action="store_true", help="do not ask schedulers; jobs stand as on record")


def _run(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program("GPUs"):
        from fleetcraft.actions.gpu_ledger import ask_fleets
        from fleetcraft.readmodel.gpu_ledger import Asked, read_states
        from fleetcraft.readmodel.gpu_mfu import read_mfu
        from fleetcraft.spool.spool import Spool
        from fleetcraft.usage import peaks

    now_ms = time.time_ns() // 1_000_000
    since_ms, until_ms = span_of(arguments, now_ms)
    if since_ms is not None and until_ms is not None and until_ms < since_ms:
        raise UsageError("--until lies before --since.", hint="A span such as 6h means that long ago.")
    known = peaks.table(arguments.peaks)
    root = spool_root(arguments)
    silent = [] if arguments.no_ask else ask_fleets(root, arguments.fleet)
    spool = Spool.open(root, create=False)
    asked = Asked(fleet=arguments.fleet, job=arguments.job, since_ms=since_ms, until_ms=until_ms, now_ms=now_ms)
    found = read_mfu(
        spool, read_states(spool), asked, by=arguments.by, precision=arguments.precision, peaks=known
    )  # fmt: skip
    if output.json:
        output.document(MFU.schema, as_json(found, silent, known))
    else:
        output.lines(describe(found, silent, known, output))
    return EXIT_FAILED if is_impossible(found) else EXIT_DONE


def is_impossible(found: Found) -> bool:
    """True where a row, or the whole, came out above 1: one of its inputs is wrong."""
    rows = () if found.table is None else (*found.table.rows, found.table.total)
    return any(flag.startswith(_IMPOSSIBLE) for row in rows for flag in row.mfu.flags)


def as_json(found: Found, silent: list[str], known: tuple[Peak, ...]) -> dict[str, object]:
    """Everything for a program; `rows` is empty and `total` null where no GPU was allocated."""
    table = found.table
    return {
        "by": None if table is None else table.by,
        "precision": None if table is None else table.precision,
        "since_ms": None if table is None else table.since_ms,
        "until_ms": None if table is None else table.until_ms,
        "rows": [] if table is None else [_row_json(row) for row in table.rows],
        "total": None if table is None else _row_json(table.total),
        "peaks": [] if table is None else _peaks_json(table, known),
        "problems": [*silent, *found.problems],
        "definition": _DEFINITION,
    }


def of_all(
    root: str, *, fleet: str | None, job: str | None, since_ms: int | None, until_ms: int | None, now_ms: int
) -> tuple[dict[str, Any] | None, str]:
    """The whole of a spool for the summary: the row as JSON, or None with the reason. It asks no scheduler."""
    from fleetcraft.readmodel.gpu_ledger import Asked, read_states
    from fleetcraft.readmodel.gpu_mfu import read_mfu
    from fleetcraft.spool.spool import Spool

    spool = Spool.open(root, create=False)
    asked = Asked(fleet=fleet, job=job, since_ms=since_ms, until_ms=until_ms, now_ms=now_ms)
    table = read_mfu(spool, read_states(spool), asked).table
    if table is None:
        return None, "no GPU was allocated"
    return _row_json(table.total), ""


def in_words(row: dict[str, Any] | None, reason: str) -> str:
    """The three numbers in a line, each with its label, and with its reason where it is absent."""
    if row is None:
        return f"none: {reason}"
    said = [
        f"{label} {'none (' + row[key + '_reason'] + ')' if row[key] is None else f'{100 * row[key]:.2f} %'}"
        for key, label in (("estimated", "estimated"), ("measured", "measured"), ("at_clock", "at clock"))
    ]
    return "; ".join([*said, *row["flags"]])


def _row_json(row: MfuRow) -> dict[str, Any]:
    mfu = row.mfu
    return {
        "key": row.key, "label": row.label,
        "estimated": mfu.estimated, "estimated_reason": mfu.estimated_reason,
        "measured": mfu.measured, "measured_reason": mfu.measured_reason,
        "at_clock": mfu.at_clock, "at_clock_reason": mfu.at_clock_reason,
        "flops": mfu.flops, "peak_tflops": mfu.peak_tflops, "precision": mfu.precision, "source": mfu.source,
        "held_ms": row.held_ms, "work_ms": row.work_ms, "known_ms": row.known_ms,
        "tensor_known_ms": round(row.tensor_ms), "clock_known_ms": round(row.clock_ms),
        "sm_clock_mhz": row.sm_clock_mhz, "devices_ms": dict(row.devices),
        "attempts": row.attempts, "attempts_with_flops": row.attempts_known,
        "attempts_reported": row.attempts_reported, "flags": list(mfu.flags),
    }  # fmt: skip


def _peaks_json(table: MfuTable, known: tuple[Peak, ...]) -> list[dict[str, Any]]:
    from fleetcraft.usage.mfu_join import sources

    return [
        {"device": name, "label": peak.label, "tflops": dict(peak.tflops), "source": peak.source, "seen": peak.seen}
        if peak is not None
        else {"device": name, "label": None, "tflops": None, "source": None, "seen": None}
        for name, peak in sources(table, known)
    ]


def describe(found: Found, silent: list[str], known: tuple[Peak, ...], output: Output) -> Iterator[str]:
    """The same for a person."""
    told = found.table
    if told is None:
        yield "no GPU was allocated in that time"
    else:
        yield from _describe(told, known, output)
    for text in (*silent, *found.problems):
        yield f"{output.paint('!', 'yellow', 'bold')} {printable(text)}"


def _describe(told: MfuTable, known: tuple[Peak, ...], output: Output) -> Iterator[str]:
    yield output.paint("model FLOPs utilization", "bold") + f"  {utc(told.since_ms)} to {utc(told.until_ms)} UTC"
    yield ""
    shown = [*told.rows[:_SHOWN], told.total]
    heads = (told.by.upper(), "TRIES", "GPU-S", "TFLOP", "PEAK TFLOPS", "ESTIMATED", "MEASURED", "AT CLOCK")
    yield from table(output, heads, [_cells(row) for row in shown])
    if len(told.rows) > _SHOWN:
        yield f"and {count(len(told.rows) - _SHOWN, 'row')} more; --json has them all"
    yield ""
    yield from _reasons(shown)
    for row in shown:
        for flag in row.mfu.flags:
            color = "red" if flag.startswith(_IMPOSSIBLE) else "yellow"
            yield f"{output.paint('!', color, 'bold')} {printable(row.label)}: {printable(flag)}"
    total = told.total
    declared = total.attempts_known - total.attempts_reported
    yield (
        f"FLOPs         of {count(total.attempts, 'attempt')}: {total.attempts_reported} reported, "
        f"{declared} as their tasks declare, {total.attempts - total.attempts_known} unknown"
    )
    yield from _words(told, known)


def _cells(row: MfuRow) -> tuple[str, ...]:
    mfu = row.mfu
    peak = "none" if mfu.peak_tflops is None else f"{mfu.peak_tflops:,.6g} {mfu.precision}"
    flops = "none" if mfu.flops is None else f"{mfu.flops / 1e12:,.6g}"
    return (
        printable(row.label), str(row.attempts), f"{row.held_ms / 1000:,.1f}", flops, peak,
        _share(mfu.estimated), _share(mfu.measured), _share(mfu.at_clock),
    )  # fmt: skip


def _share(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.2f} %"


def _reasons(rows: list[MfuRow]) -> Iterator[str]:
    """Why a number is absent, once for all rows that share the reason."""
    for name in ("estimated", "measured", "at clock"):
        whose: dict[str, list[str]] = {}
        for row in rows:
            mfu = row.mfu
            value, why = {
                "estimated": (mfu.estimated, mfu.estimated_reason),
                "measured": (mfu.measured, mfu.measured_reason),
                "at clock": (mfu.at_clock, mfu.at_clock_reason),
            }[name]
            if value is None:
                whose.setdefault(why, []).append(row.label)
        for why, labels in whose.items():
            more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
            of = "all rows" if len(labels) == len(rows) else ", ".join(labels[:3]) + more
            yield f"no {name:<9}  {printable(of)}: {printable(why)}"


def _words(told: MfuTable, known: tuple[Peak, ...]) -> Iterator[str]:
    from fleetcraft.usage.mfu_join import sources

    for name, peak in sources(told, known):
        if peak is not None:
            figures = ", ".join(f"{key} {value:g}" for key, value in peak.tflops.items())
            seen = "" if peak.seen in ("page", "") else f" (source seen: {peak.seen})"
            yield f"peak          {printable(name)}: dense TFLOPS {figures}, by {printable(peak.source)}{seen}"
    yield f"estimated     {_DEFINITION['estimated']}"
    yield f"measured      {_DEFINITION['measured']}"
    yield f"at clock      {_DEFINITION['at_clock']}"


MFU = Command(
    path=("gpu", "mfu"),
    summary="model FLOPs utilization: estimated, measured, and at the clock that was held",
    description="Divide the FLOPs that attempts reported, or that tasks which ended done declare, by what the devices\n"
    "that they held can do at most. The last row divides by the whole allocation, idle time included. Each number\n"
    "has its label, and each absent one its reason; a device whose name is not in the table of peaks has none. An\n"
    "estimate above 1 is not shown: its row has a flag that says what may be wrong, and the exit code is 1.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft gpu mfu", what="The whole spool, a row for each family of tasks."),
        Example(line="fleetcraft gpu mfu --fleet study1 --since 24h --by gpu", what="One fleet, GPU by GPU."),
        Example(line="fleetcraft gpu mfu --by task --peaks mine.toml --json", what="With own peaks, for a program."),
    ),
    exits={1: "a row came out above 1: one of its inputs is wrong"},
)
