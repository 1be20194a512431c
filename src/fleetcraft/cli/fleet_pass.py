"""`fleet renew` and `fleet ensure`: one pass over a fleet, for a person, for cron, or again and again."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import decision_lines, fleet_argument, open_spool, whole_program
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import duration
from fleetcraft.core.errors import EXIT_DONE, EXIT_REFUSED, EXIT_TRY_AGAIN, UsageError

if TYPE_CHECKING:
    from fleetcraft.fleet.ensure import PassReport

_EXITS = {
    4: "it wanted a job, and a guard or the scheduler refused it",
    75: "the scheduler or the storage did not answer; run the same command again",
}


def _dry_argument(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("what to do")
    group.add_argument(
        "--dry-run", action="store_true", help="say what would be done by what is on record; nobody is asked"
    )
    return group


def _renew_arguments(parser: argparse.ArgumentParser) -> None:
    fleet_argument(parser)
    _dry_argument(parser)


def _ensure_arguments(parser: argparse.ArgumentParser) -> None:
    fleet_argument(parser)
    group = _dry_argument(parser)
    group.add_argument("--loop", action="store_true", help="pass after pass, until Ctrl-C")
    group.add_argument(
        "--interval", type=duration("--interval"), default=300.0, metavar="TIME",
        help="how often with --loop (default: 5m)",
    )  # fmt: skip


def _renew(arguments: argparse.Namespace, output: Output) -> int:
    return _once(arguments, output, RENEW.schema, grow=False, shrink=False)


def _ensure(arguments: argparse.Namespace, output: Output) -> int:
    if not arguments.loop:
        return _once(arguments, output, ENSURE.schema)
    if output.json:
        raise UsageError("--loop talks to a person; with --json, run single passes as often as you like.")
    with whole_program():
        from fleetcraft.actions.fleet_supply import passes
        from fleetcraft.fleet.ensure import PassOptions

    last = ""

    def tell(report: PassReport) -> None:
        nonlocal last
        text = "\n".join(describe(report, output))
        if text != last:
            output.line(text)
            output.flush()
        last = text

    what = PassOptions(dry=arguments.dry_run)
    passes(open_spool(arguments), arguments.fleet, what, max(1.0, arguments.interval), tell)
    return EXIT_DONE


def _once(arguments: argparse.Namespace, output: Output, schema: str, **what: bool) -> int:
    with whole_program():
        from fleetcraft.actions.fleet_supply import one_pass
        from fleetcraft.fleet.ensure import PassOptions
    report = one_pass(open_spool(arguments), arguments.fleet, PassOptions(dry=arguments.dry_run, **what))
    if output.json:
        output.document(schema, {"dry_run": arguments.dry_run, **report.as_json()})
    else:
        output.lines(describe(report, output))
    return exit_code(report)


def exit_code(report: PassReport) -> int:
    """Refused, not answered, or done."""
    made = report.submitted
    if not report.answered:
        return EXIT_TRY_AGAIN  # whatever was refused was refused for that
    if report.damaged:
        return EXIT_REFUSED
    if made is not None and not made.draft.ruling.allowed:
        return EXIT_REFUSED
    if made is not None and made.submission is not None:
        from fleetcraft.actions.fleet_supply import exit_of

        return exit_of(made)
    return EXIT_TRY_AGAIN if report.waiting or report.backlog is None else EXIT_DONE


def describe(report: PassReport, output: Output) -> Iterator[str]:
    """What a pass did, for a person."""
    standing = f" ({report.standing.word})" if report.standing is not None else ""
    yield f"{output.paint(report.action, 'bold')}{standing}  {printable(report.reason)}"
    if report.submitted is not None and not report.submitted.draft.ruling.allowed:
        yield from decision_lines(report.submitted.draft.ruling.as_json(), output)
    if report.backlog is not None:
        waiting = count(report.backlog.waiting, "task waits", "tasks wait")
        yield f"  backlog: {waiting}, {report.backlog.unfinished:,} unfinished"
    yield from _listed("  lane", report.renewals)
    yield from _listed("  open", report.waiting)
    yield from (f"  told: {printable(text)}" for text in report.notified)
    yield from (f"{output.paint('!', 'yellow', 'bold')} {printable(text)}" for text in report.problems)


def _listed(what: str, reasons: Any) -> Iterator[str]:
    yield from (f"{what} {name}: {printable(reason)}" for name, reason in reasons.items() if reason)


RENEW = Command(
    path=("fleet", "renew"),
    summary="queue the successors that a fleet's lanes lack",
    description="Queue one successor of exactly its shape for each lane that has none. Any number of calls queue one.\n"
    "Nodes that failed lately are left out. At most one job is submitted in one pass.",
    arguments=_renew_arguments,
    run=_renew,
    examples=(
        Example(line="fleetcraft fleet renew study1", what="One pass over its lanes."),
        Example(line="fleetcraft fleet renew study1 --dry-run --json", what="What it would do, as one JSON object."),
    ),
    exits=_EXITS,
)
ENSURE = Command(
    path=("fleet", "ensure"),
    summary="one pass: look, renew, grow with the backlog or give back, at most one new job",
    description="Look up what is open, ask how the jobs stand, read the backlog and the measured times of its tasks,\n"
    "and do at most one thing about it: a successor, one more job, or giving a waiting job back. Made for cron.",
    arguments=_ensure_arguments,
    run=_ensure,
    examples=(
        Example(line="fleetcraft fleet ensure study1", what="One pass."),
        Example(
            line="fleetcraft fleet ensure study1 --spool /scratch/me/run1 --loop --interval 10m",
            what="A pass every ten minutes, until Ctrl-C.",
        ),
    ),
    exits=_EXITS,
)
