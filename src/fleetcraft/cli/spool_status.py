"""`spool status`: how many tasks stand where, how fast they end, and what stands in the way."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import duration, spool_root
from fleetcraft.cli.tables import STATE_STYLES, bar, table
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_GOING, UsageError
from fleetcraft.core.quantities import format_duration
from fleetcraft.core.states import TaskState
from fleetcraft.readmodel.status import StatusView, read_status
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool

_HOME_AND_CLEAR = "\x1b[H\x1b[J"
_NEW_SCREEN, _OLD_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def _arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to show")
    group.add_argument("--watch", action="store_true", help="show it again until every task has ended, or Ctrl-C")
    group.add_argument(
        "--interval",
        metavar="TIME",
        type=duration("--interval"),
        default=1.0,
        help="how often --watch looks (default: 1s)",
    )
    group.add_argument(
        "--exit-code", action="store_true",
        help="answer with the exit code too: 0 all succeeded, 1 some did not, 3 still going",
    )  # fmt: skip


def _run(arguments: argparse.Namespace, output: Output) -> int:
    spool = Spool.open(spool_root(arguments))
    reader = SpoolFold(spool)
    if arguments.watch:
        if output.json:
            raise UsageError("--watch draws for a person; with --json, ask again as often as you like.")
        view = _watch(spool, reader, output, max(0.1, arguments.interval))
    else:
        view = read_status(spool, reader)
        if output.json:
            output.document(STATUS.schema, view.as_json())
        else:
            output.lines(describe(view, output))
    return _exit_code(view) if arguments.exit_code else EXIT_DONE


def _exit_code(view: StatusView) -> int:
    if view.unfinished:
        return EXIT_GOING
    return EXIT_DONE if view.counts[TaskState.SUCCEEDED] == view.total else EXIT_FAILED


def _watch(spool: Spool, reader: SpoolFold, output: Output, interval_s: float) -> StatusView:
    """Redraw in place on a terminal; in a pipe, one line for each look that shows something new."""
    last = ""
    if output.is_terminal:
        output.stdout.write(_NEW_SCREEN)
    try:
        while True:
            view = read_status(spool, reader)
            if output.is_terminal:
                output.stdout.write(_HOME_AND_CLEAR + "\n".join(describe(view, output)) + "\n")
            else:
                line = _one_line(view)
                if line != last:
                    output.line(line)
                last = line
            output.flush()
            if not view.unfinished:
                break
            time.sleep(interval_s)
    finally:
        if output.is_terminal:
            output.stdout.write(_OLD_SCREEN)
            output.flush()
    if output.is_terminal:
        output.lines(describe(view, output))
    return view


def _one_line(view: StatusView) -> str:
    parts = [f"{number:,} {state.value}" for state, number in view.counts.items() if number]
    return f"{view.ended:,} of {view.total:,} ended: {', '.join(parts) or 'no tasks'}"


def describe(view: StatusView, output: Output) -> Iterator[str]:
    """The status for a person."""
    share = f"{100 * view.ended / view.total:.1f} %" if view.total else "empty"
    yield f"{output.paint(printable(view.spool), 'bold')}  {count(view.total, 'task')}, {view.ended:,} ended ({share})"
    if view.total:
        shown = (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.QUARANTINED, TaskState.CANCELLED, TaskState.RUNNING)
        yield bar(output, [(state.value, view.counts[state]) for state in shown], view.total)
    width = max((len(f"{number:,}") for number in view.counts.values()), default=1)
    for state in TaskState:
        number = view.counts[state]
        if number:
            yield f"  {number:>{width},}  {output.paint(state.value, *STATE_STYLES[state.value])}"
    yield f"rate  {_rate(view)}"
    yield from _workers(view, output)
    odd = []
    if view.foreign:
        odd.append(f"{count(view.foreign, 'foreign file')} among the tokens")
    if view.damaged:
        odd.append(f"{count(view.damaged, 'damaged record')} in the journals")
    if odd:
        yield f"note  {', '.join(odd)}; see `fleetcraft spool check`"
    for sentence in view.in_the_way:
        yield f"{output.paint('!', 'yellow', 'bold')} {printable(sentence)}"


def _rate(view: StatusView) -> str:
    if not view.unfinished:
        return "nothing is left to do"
    if view.rate_per_s is None:
        return f"unknown: {view.rate_reason}"
    per = f"{view.rate_per_s:,.0f}/s" if view.rate_per_s >= 10 else f"{view.rate_per_s * 60:,.1f}/min"
    if view.eta_s is None:
        return f"{per}, {view.eta_reason}"
    return f"{per}, about {format_duration(view.eta_s)} left"


def _workers(view: StatusView, output: Output) -> Iterator[str]:
    if not view.workers:
        return
    yield ""
    rows = [
        (
            worker.life,
            worker.state.value,
            worker.host or "?",
            "?" if worker.cpus is None else str(worker.cpus),
            "?" if worker.gpus is None else str(worker.gpus),
            f"{worker.running:,}",
            f"{worker.done:,}",
            "?" if worker.age_s is None else format_duration(worker.age_s),
        )
        for worker in view.workers
    ]
    yield from table(output, ("WORKER", "STATE", "HOST", "CPUS", "GPUS", "RUNNING", "DONE", "HEARD"), rows, styled=1)
    for worker in view.workers:
        if worker.unmeasured:
            yield f"{output.paint('!', 'yellow', 'bold')} {worker.life}: {printable(worker.unmeasured)}"


STATUS = Command(
    path=("spool", "status"),
    summary="how many tasks stand where, how fast they end, what stands in the way",
    description="Show how many tasks stand in each state, the rate, the time left, the workers, and what stands\n"
    "in the way. Every task is in exactly one state, so the numbers add up to the total.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft spool status", what="Show the spool of this directory."),
        Example(line="fleetcraft spool status --watch", what="Keep it on the screen until all tasks have ended."),
        Example(
            line="fleetcraft spool status --spool /scratch/me/run1 --json",
            what="One JSON object with a number for each state.",
        ),
    ),
    exits={
        1: "with --exit-code: everything has ended, and not all of it well",
        3: "with --exit-code: still going",
    },
)
