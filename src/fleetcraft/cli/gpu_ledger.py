"""`gpu ledger`: what became of every allocated GPU-second, in classes that add up to the allocation."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import whole_program
from fleetcraft.cli.gpu_span import span_of, utc
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import is_spool_named, spool_root
from fleetcraft.cli.tables import table
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED

if TYPE_CHECKING:
    from fleetcraft.readmodel.gpu_ledger import Ledgers
    from fleetcraft.usage.ledger_api import Ledger, LedgerRow, TaskUse

_BAR = 32
# Above so much the table speaks of hours.
_HOURS_FROM_MS = 36_000_000
_TASKS_SHOWN = 10
_GIB = 1 << 30
_NEARLY = 0.95
_GROUPS = ("fleet", "job", "host", "gpu", "task")


def _arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to account for")
    group.add_argument("--fleet", metavar="NAME", help="only the jobs of this fleet (default: the whole spool)")
    group.add_argument("--job", metavar="ID", help="only this job")
    group.add_argument("--since", metavar="TIME", help="from then on: 6h for that long ago, or an ISO date or time")
    group.add_argument("--until", metavar="TIME", help="up to then, the same way (default: now)")
    group.add_argument("--zone", metavar="NAME", default="UTC", help="time zone of times without one (default: UTC)")
    group.add_argument("--by", choices=_GROUPS, default="fleet", help="a row for each of these (default: fleet)")
    how = parser.add_argument_group("where from")
    how.add_argument(
        "--telemetry", metavar="PATH", action="append", default=[],
        help="read these samples instead of the spool's; without --spool, the samples alone",
    )  # fmt: skip
    how.add_argument("--no-ask", action="store_true", help="do not ask schedulers; jobs stand as on record")
    how.add_argument("--timeline", action="store_true", help="with --json: also every stretch of every GPU")


def _run(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program("GPUs"):
        from fleetcraft.actions.gpu_ledger import ask_fleets
        from fleetcraft.readmodel.gpu_ledger import open_ledgers

    now_ms = time.time_ns() // 1_000_000
    since_ms, until_ms = span_of(arguments, now_ms)
    bare = bool(arguments.telemetry) and not is_spool_named(arguments)
    root = None if bare else spool_root(arguments)
    silent = [] if root is None or arguments.no_ask else ask_fleets(root, arguments.fleet)
    ledgers = open_ledgers(
        root, fleet=arguments.fleet, job=arguments.job, since_ms=since_ms, until_ms=until_ms, by=arguments.by,
        telemetry=arguments.telemetry, problems=silent,
    )  # fmt: skip
    both = [ledger for ledger in (ledgers.gpu, ledgers.slots) if ledger is not None]
    if output.json:
        output.document(LEDGER.schema, as_json(ledgers, spans=arguments.timeline))
    else:
        output.lines(describe(ledgers, output))
    return EXIT_DONE if all(ledger.adds_up for ledger in both) else EXIT_FAILED


def as_json(ledgers: Ledgers, *, spans: bool) -> dict[str, object]:
    """Both ledgers for a program; null where there is none."""
    return {
        "gpu": None if ledgers.gpu is None else ledgers.gpu.as_json(spans=spans),
        "slots": None if ledgers.slots is None else ledgers.slots.as_json(spans=spans),
    }


def describe(ledgers: Ledgers, output: Output) -> Iterator[str]:
    """Both ledgers for a person."""
    some = [ledger for ledger in (ledgers.gpu, ledgers.slots) if ledger is not None]
    if not some:
        yield "nothing was allocated in that time"
    for place, ledger in enumerate(some):
        if place:
            yield ""
        yield from _one(ledger, output)


def _one(ledger: Ledger, output: Output) -> Iterator[str]:
    from fleetcraft.usage.ledger_api import Class

    hours = ledger.allocated_ms >= _HOURS_FROM_MS
    unit = f"{ledger.unit}-{'hours' if hours else 'seconds'}"
    yield output.paint(f"{ledger.unit} ledger", "bold") + f"  {utc(ledger.since_ms)} to {utc(ledger.until_ms)} UTC"
    yield ""
    yield from _classes(ledger, output, unit, hours=hours)
    yield ""
    heads = (
        ledger.by.upper(),
        "GPUS" if ledger.unit == "GPU" else "WORKERS",
        unit.upper(),
        "USEFUL",
        "RUNNING",
        "WASTED",
        "UNKNOWN",
        "SEEN",
    )
    rows = [_cells(row, hours=hours, gpu=ledger.unit == "GPU") for row in ledger.rows[:50]]
    yield from table(output, heads, rows)
    if len(ledger.rows) > len(rows):
        yield f"and {len(ledger.rows) - len(rows)} more; --json has them all"
    if ledger.tasks and ledger.unit == "GPU":
        yield ""
        yield from _tasks(ledger, output)
    yield ""
    yield from _wastes(ledger, output)
    unknown = ledger.total.amounts.get(Class.UNKNOWN, 0)
    if unknown:
        told = ", ".join(f"{why} {_amount(part, hours=hours)}" for why, part in sorted(ledger.unknown.items()))
        yield f"unknown     {told}"
    yield from _coverage(ledger)
    yield from (f"{output.paint('!', 'yellow', 'bold')} {printable(text)}" for text in ledger.problems)
    good = ("green",) if ledger.adds_up else ("red", "bold")
    yield output.paint(ledger.check_line(), *good)


def _classes(ledger: Ledger, output: Output, unit: str, *, hours: bool) -> Iterator[str]:
    from fleetcraft.usage.ledger_api import NO_WASTE, TEXT, Class

    total = ledger.total.total
    rows = []
    for kind in Class:
        amount = ledger.total.amounts.get(kind, 0)
        if amount:
            size = max(1, round(amount / total * _BAR))
            mark = "█" if kind in NO_WASTE else "▒"
            rows.append((TEXT[kind], _amount(amount, hours=hours), _percent(amount, total), mark * size))
    yield from table(output, ("CLASS", unit.upper(), "SHARE", ""), rows)


def _cells(row: LedgerRow, *, hours: bool, gpu: bool) -> tuple[str, ...]:
    from fleetcraft.usage.ledger_api import Class

    def share(*kinds: Class) -> str:
        return _percent(sum(row.amounts.get(kind, 0) for kind in kinds), row.total)

    kept = (Class.USEFUL, Class.OPEN, Class.UNKNOWN)
    wasted = [kind for kind in Class if kind not in kept]
    seen = _percent(row.observed_ms, row.total) if gpu else "-"
    return (
        row.label, str(row.lines or "-"), _amount(row.total, hours=hours), share(Class.USEFUL), share(Class.OPEN),
        share(*wasted), share(Class.UNKNOWN), seen,
    )  # fmt: skip


def _tasks(ledger: Ledger, output: Output) -> Iterator[str]:
    heads = ("TASK", "TRIES", "GPU-S", "ACTIVE GPU-S", "MEMORY PEAK", "JOULES HELD", "JOULES COUNTER")
    shown = ledger.tasks[:_TASKS_SHOWN]
    yield from table(output, heads, [_task(use) for use in shown])
    if len(ledger.tasks) > len(shown):
        yield f"and {len(ledger.tasks) - len(shown)} more; --by task or --json has them all"


def _task(use: TaskUse) -> tuple[str, ...]:
    peak = "-" if use.memory_peak_bytes is None else f"{use.memory_peak_bytes / _GIB:.1f} GiB{'*' * use.shared}"
    active = _seconds(use.active_ms) if use.observed_ms else "-"
    return (
        use.name or use.task, str(use.attempts), _seconds(use.held_ms), active, peak,
        _joules(use.joules_held, use.observed_ms, use.held_ms),
        _joules(use.joules_counter, use.counter_ms, use.held_ms),
    )  # fmt: skip


def _seconds(amount: int) -> str:
    return f"{amount / 1000:,.3f}" if amount < 10_000 else f"{amount / 1000:,.1f}"


def _joules(value: float | None, known_ms: int, held_ms: int) -> str:
    """Of which part, where that is not nearly all of it: it would be taken for the whole."""
    if value is None:
        return "-"
    part = "" if known_ms >= _NEARLY * held_ms else f" for {_percent(known_ms, held_ms)}"
    return f"{value:,.0f}{part}"


def _wastes(ledger: Ledger, output: Output) -> Iterator[str]:
    if not ledger.wastes:
        yield "no waste was found"
        return
    yield output.paint("the largest wastes", "bold")
    for number, waste in enumerate(ledger.wastes, 1):
        seconds = _amount(waste.ms, hours=False)
        amount = f"{seconds} {ledger.unit}-seconds, {_percent(waste.ms, ledger.total.total)}"
        yield f"{number}. {printable(waste.text)}: {amount}"
        yield f"   {printable(waste.remedy)}"
    yield ""


def _coverage(ledger: Ledger) -> Iterator[str]:
    if ledger.unit == "GPU":
        yield (
            f"coverage    samples cover {_percent(ledger.total.observed_ms, ledger.total.total)} of the allocation "
            f"of {count(ledger.total.lines, 'GPU')}"
        )
    for place, source in enumerate(ledger.sources):
        yield f"{'sources' if not place else '':<10}  {printable(source)}"


def _amount(amount: int, *, hours: bool) -> str:
    if hours:
        return f"{amount / 3_600_000:,.3f}"
    return "<0.1" if 0 < amount < 50 else f"{amount / 1000:,.1f}"


def _percent(part: float, whole: float) -> str:
    if not whole:
        return "-"
    return "<0.1 %" if 0 < part < whole / 2000 else f"{100 * part / whole:.1f} %"


LEDGER = Command(
    path=("gpu", "ledger"),
    summary="what became of every allocated GPU-second, and the largest wastes",
    description="Join what the scheduler allocated, what the journals say of every attempt, what the samples saw and\n"
    "when work waited. Every allocated GPU-second lands in exactly one class, and the classes add up to the\n"
    "allocation. What nothing tells is unknown; it is never spread over the others. Workers without a GPU get the\n"
    "same in slot-seconds.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft gpu ledger", what="The whole spool, a row for each fleet."),
        Example(line="fleetcraft gpu ledger --fleet study1 --since 24h --by host", what="One fleet, its last day."),
        Example(line="fleetcraft gpu ledger --job 4711 --by task --json", what="One job, task by task, for a program."),
        Example(line="fleetcraft gpu ledger --telemetry logs/", what="Samples alone: how much was free or reserved."),
    ),
    exits={1: "the classes do not add up to the allocation (a fault of the program; please report it)"},
)
