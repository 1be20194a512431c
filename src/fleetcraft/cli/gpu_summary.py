"""`gpu summary`: how busy GPUs were, over which time, with how much of it seen."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import whole_program
from fleetcraft.cli.gpu_span import span_of
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import duration, spool_root
from fleetcraft.cli.tables import table
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED, FleetcraftError, UsageError

if TYPE_CHECKING:
    from fleetcraft.actions.gpu_summary import Asked, Verified
    from fleetcraft.usage.summary import Row, Summary

_HEADS = (
    "{}", "GPUS", "GPU-HOURS", "COVER", "UTIL", "ACTIVE", "RESERVED", "FREE", "MEMORY", "POWER", "KWH HELD",
    "KWH COUNTER",
)  # fmt: skip
_GIB = 1 << 30
_UNKNOWN = "-"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", metavar="PATH", nargs="*",
        help="telemetry folders, segments or plain CSV logs (default: the telemetry of the spool)",
    )  # fmt: skip
    group = parser.add_argument_group("what to add up")
    group.add_argument("--fleet", metavar="NAME", help="only what was sampled for this fleet")
    group.add_argument("--job", metavar="ID", help="only what was sampled in this job")
    group.add_argument("--since", metavar="TIME", help="from then on: 6h for that long ago, or an ISO date or time")
    group.add_argument("--until", metavar="TIME", help="up to then, the same way (default: to the end, or now)")
    group.add_argument(
        "--window", metavar="SPAN", type=duration("--window"), help="the last so much time: 5m is --since 5m --until 0s"
    )
    group.add_argument("--by", choices=("gpu", "host", "job", "fleet"), default="host", help="a row for each of these")
    how = parser.add_argument_group("how to count")
    how.add_argument(
        "--definition", choices=("hold", "row"), default="hold",
        help="hold: a sample counts until the next one (default); row: every row counts one interval",
    )  # fmt: skip
    how.add_argument(
        "--zone", metavar="NAME", default="UTC", help="time zone of stamps and dates without one (default: UTC)"
    )
    how.add_argument(
        "--interval", metavar="SPAN", type=duration("--interval"), help="interval of plain logs (default: as they seem)"
    )
    how.add_argument(
        "--one-gpu", action="store_true",
        help="take a plain log that names no GPU for one GPU, also where rows come in pairs (two loggers)",
    )  # fmt: skip
    proof = parser.add_argument_group("evidence")
    proof.add_argument(
        "--output",
        metavar="FILE",
        help="freeze the answer, and the bytes it rests on by range and digest, in a new file",
    )
    proof.add_argument(
        "--verify", metavar="FILE", help="read the bytes of such a file again, compute anew, and compare"
    )


def _run(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program("GPUs"):
        from fleetcraft.actions import gpu_summary as action
        from fleetcraft.readmodel.gpu_sources import choose, is_fleet, no_fleet

    if arguments.verify:
        verified = action.verify(arguments.verify)
        _tell_verified(verified, arguments.verify, output)
        return EXIT_DONE if verified.holds else EXIT_FAILED
    asked = _asked(arguments)
    root = None if arguments.paths else spool_root(arguments)
    chosen = choose(
        arguments.paths, spool_root=root, fleet=asked.fleet, job=asked.job, since_ms=asked.since_ms,
        until_ms=asked.until_ms,
    )  # fmt: skip
    if root is not None and asked.fleet is not None:
        # A sampler may have been told a fleet that has no record here; nothing is frozen before that is known.
        known = is_fleet(root, asked.fleet) or action.answer(asked, chosen.sources, chosen.expected).rows
        if not known:
            raise no_fleet(root, asked.fleet)
    summary = action.answer(asked, chosen.sources, chosen.expected, arguments.output)
    mfu, why = _mfu(root, asked)
    if output.json:
        more = {"evidence": arguments.output, "mfu": mfu, "mfu_reason": why}
        output.document(SUMMARY.schema, {**summary.as_json(), **more})
        return EXIT_DONE
    output.lines(describe(summary, output))
    if root is not None:
        from fleetcraft.cli.gpu_mfu import in_words

        output.line(f"mfu         {printable(in_words(mfu, why))}")
    if arguments.output:
        output.line(f"frozen in {printable(arguments.output)}; `fleetcraft gpu summary --verify` proves it")
    return EXIT_DONE


def _mfu(root: str | None, asked: Asked) -> tuple[dict[str, Any] | None, str]:
    """Of the same spool and span, by what its attempts told; logs alone tell of no attempt."""
    if root is None:
        return None, "logs alone tell nothing of the work: name a spool"
    from fleetcraft.cli.gpu_mfu import of_all

    try:
        return of_all(
            root, fleet=asked.fleet, job=asked.job, since_ms=asked.since_ms, until_ms=asked.until_ms,
            now_ms=asked.now_ms,
        )  # fmt: skip
    except (OSError, FleetcraftError) as error:
        return None, f"the journals could not be read: {error}"


def _asked(arguments: argparse.Namespace) -> Asked:
    from fleetcraft.actions.gpu_summary import Asked

    now_ms = time.time_ns() // 1_000_000
    since, until = span_of(arguments, now_ms)
    if arguments.window is not None:
        if since is not None:
            raise UsageError("--window and --since both say where to begin.", hint="Give one of them.")
        until = now_ms if until is None else until
        since = until - round(arguments.window * 1000)
    elif since is not None and until is None:
        until = max(now_ms, since)
    if since is not None and until is not None and until < since:
        raise UsageError("--until lies before --since.", hint="A span such as 6h means that long ago.")
    return Asked(
        fleet=arguments.fleet,
        job=arguments.job,
        since_ms=since,
        until_ms=until,
        now_ms=now_ms,
        by=arguments.by,
        rule=arguments.definition,
        zone=arguments.zone,
        one_gpu=arguments.one_gpu,
        interval_ms=None if arguments.interval is None else round(arguments.interval * 1000),
    )


def describe(summary: Summary, output: Output) -> Iterator[str]:
    """The summary for a person."""
    mark = output.paint("!", "yellow", "bold")
    heads = (_HEADS[0].format(summary.by.upper()), *_HEADS[1:])
    yield from table(output, heads, [_cells(row) for row in (*summary.rows, summary.total)])
    yield ""
    cover = summary.coverage
    hours = f"{cover.observed_ms / 3.6e6:,.3f} of {cover.expected_ms / 3.6e6:,.3f} GPU-hours were seen"
    percent = _percent(summary.total.coverage)
    yield (
        f"coverage    {cover.hosts_with_data} of {count(cover.hosts, 'host')}, {cover.gpus_with_data} of "
        f"{count(cover.gpus, 'known GPU')}; {hours} ({percent})"
    )
    energy = summary.total.energy
    held = "unknown" if energy.held_kwh is None else f"{energy.held_kwh:,.3f} kWh by holding power"
    counter = "no energy counter" if energy.counter_kwh is None else f"{energy.counter_kwh:,.3f} kWh by the counter"
    yield f"energy      {held}; {counter}"
    if energy.is_apart and energy.apart is not None:
        yield f"{mark} held power and counted power are {100 * energy.apart:.0f} % apart"
    for row in summary.rows:
        if row.sums.bad_ms:
            hours = f"{row.sums.bad_ms / 3.6e6:,.3f} GPU-hours"
            yield f"{mark} {printable(row.name)}: lost, broken or without an answer for {hours}, not counted as seen"
    for problem in summary.problems:
        yield f"{mark} {printable(problem.host)}: {printable(problem.text)}"
    yield f"definition  {summary.definition}"


def _cells(row: Row) -> tuple[str, ...]:
    if not row.sums.samples:
        return (row.name, "0", *["no data" if place == 0 else _UNKNOWN for place in range(len(_HEADS) - 2)])
    body = row.as_json()
    energy = row.energy
    return (
        row.name,
        str(row.gpus),
        f"{row.gpu_hours:,.3f}",
        _percent(row.coverage),
        _number(body["utilization_pct"], 1, " %"),
        _percent(body["active_fraction"]),
        _number(body["reserved_idle_gpu_hours"], 3),
        _number(body["free_idle_gpu_hours"], 3),
        _number(None if body["memory_mean_bytes"] is None else body["memory_mean_bytes"] / _GIB, 1, " GiB"),
        _number(body["power_mean_w"], 0, " W"),
        _number(energy.held_kwh, 3),
        _number(energy.counter_kwh, 3) + (" !" if energy.is_apart else ""),
    )


def _number(value: float | None, digits: int, unit: str = "") -> str:
    return _UNKNOWN if value is None else f"{value:,.{digits}f}{unit}"


def _percent(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{100 * share:.1f} %"


def _tell_verified(verified: Verified, path: str, output: Output) -> None:
    if output.json:
        body = {
            "evidence": path, "holds": verified.holds, "files": verified.files, "bytes": verified.bytes_read,
            "changed": verified.changed, "differs": verified.differs,
        }  # fmt: skip
        output.document(SUMMARY.schema, body)
        return
    read = f"{count(verified.files, 'file')}, {verified.bytes_read:,} bytes"
    if verified.holds:
        output.line(f"{printable(path)} holds: {read} are as they were, and every number comes out again")
        return
    output.line(f"{printable(path)} does not hold ({read})")
    output.lines(f"  {printable(text)}" for text in [*verified.changed, *verified.differs])


SUMMARY = Command(
    path=("gpu", "summary"),
    summary="how busy GPUs were: hours, utilization, memory, energy, and how much was seen",
    description="Add up telemetry over time. Every sample counts until the next one of its GPU, gaps are not filled,\n"
    "and what is not known is shown as `-`, never as 0. Coverage is in hosts, GPUs and time. RESERVED and FREE are\n"
    "hours without activity, with and without memory held.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft gpu summary", what="All telemetry of this spool, a row for each host."),
        Example(line="fleetcraft gpu summary --window 5m --by gpu", what="The last five minutes of every GPU."),
        Example(line="fleetcraft gpu summary logs/ --zone US/Central", what="A folder of plain nvidia-smi logs."),
        Example(line="fleetcraft gpu summary logs/ --output june.json", what="Freeze the answer with its evidence."),
        Example(line="fleetcraft gpu summary --verify june.json", what="Compute it again from the same bytes."),
    ),
    exits={
        1: "with --verify: something differs",
        4: "the file of --output exists",
    },
)
