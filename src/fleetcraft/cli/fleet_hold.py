"""`fleet devnode` and `fleet smoke`: a node to work on, and a short proof that a site works."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import open_spool, whole_program
from fleetcraft.cli.fleet_options import (
    add_place_arguments,
    add_shape_arguments,
    add_worker_arguments,
    read_options,
)
from fleetcraft.cli.fleet_submit import show_dry_run, tell_submitted
from fleetcraft.cli.output import Output, printable
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_GOING, UsageError

if TYPE_CHECKING:
    from fleetcraft.fleet.devnode import Held
    from fleetcraft.fleet.smoke import SmokeResult

_STYLES = {"passed": ("green",), "failed": ("red", "bold"), "skipped": ("dim",), "missing": ("yellow",)}


def _common_arguments(parser: argparse.ArgumentParser, default: str) -> argparse._ArgumentGroup:
    parser.add_argument(
        "fleet", metavar="FLEET", nargs="?", default=default, help=f"on whose record it stands (default: {default})"
    )
    add_place_arguments(parser)
    add_shape_arguments(parser)
    add_worker_arguments(parser)
    group = parser.add_argument_group("what to do")
    group.add_argument("--dry-run", action="store_true", help="submit nothing; show what would be")
    return group


def _devnode_arguments(parser: argparse.ArgumentParser) -> None:
    group = _common_arguments(parser, "devnode")
    group.add_argument("--detach", action="store_true", help="come back at once; `fleet cancel` gives the node back")
    group.add_argument("--why", metavar="TEXT", default="a node for a person", help="kept with the submission")


def _devnode(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program():
        from fleetcraft.actions import fleet_hold
        from fleetcraft.actions.fleet_supply import exit_of
    spool = open_spool(arguments, create=not arguments.dry_run)
    options = read_options(arguments)
    if arguments.dry_run:
        dry = fleet_hold.preview_devnode(spool, arguments.fleet, options)
        return show_dry_run(arguments.fleet, dry, output, DEVNODE.schema)
    if output.json and not arguments.detach:
        raise UsageError("Holding a node talks to a person; with --json, use --detach.")
    prepared, made = fleet_hold.start_devnode(spool, arguments.fleet, options, why=arguments.why)
    if output.json:
        job = str(made.ref) if made.ref else None
        output.document(DEVNODE.schema, {"fleet": arguments.fleet, "dry_run": False, "job": job, "token": made.token})
    else:
        tell_submitted(arguments.fleet, made, output)
    if made.ref is None or arguments.detach:
        return exit_of(made)

    def tell(held: Held) -> None:
        output.line(_told(held))
        output.flush()

    # A closed terminal and a polite kill give the node back, too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    output.line("held until this command ends; Ctrl-C gives the node back")
    output.flush()

    def tell_release(problems: Sequence[str]) -> None:
        job = made.ref or made.token
        output.lines([""] if output.is_terminal else [])  # behind the ^C
        output.lines(f"! {printable(text)}" for text in problems)
        if problems:
            output.line(f"the node may still be held: fleetcraft fleet cancel {arguments.fleet} --job {job}")
        else:
            output.line(f"the node goes back: the scheduler was asked to end job {job}")
        output.flush()

    last = fleet_hold.follow_devnode(prepared, made.token, tell, tell_release)
    return EXIT_DONE if last.state in ("done", "timeout", "cancelled") else EXIT_FAILED


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _told(held: Held) -> str:
    why = f": {printable(held.reason)}" if held.reason else ""
    if held.is_ready:
        return f"{held.host} is ready: fleetcraft fleet shell {held.job or held.token}"
    return f"job {held.job or held.token} is {held.state}{why}"


def _smoke_arguments(parser: argparse.ArgumentParser) -> None:
    group = _common_arguments(parser, "smoke")
    group.add_argument("--no-wait", action="store_true", help="submit it and come back at once")
    group.add_argument("--read", metavar="JOB", help="submit nothing; read the checks of this job")


def _smoke(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program():
        from fleetcraft.actions import fleet_hold
        from fleetcraft.actions.fleet_supply import exit_of
    spool = open_spool(arguments, create=not (arguments.dry_run or arguments.read))
    if arguments.read:
        return _show(fleet_hold.read_checks(spool, arguments.fleet, arguments.read), output)
    options = read_options(arguments)
    if arguments.dry_run:
        dry = fleet_hold.preview_smoke(spool, arguments.fleet, options)
        return show_dry_run(arguments.fleet, dry, output, SMOKE.schema)
    prepared, made = fleet_hold.start_smoke(spool, arguments.fleet, options)
    if not output.json:
        tell_submitted(arguments.fleet, made, output)
    if made.ref is None or arguments.no_wait:
        if output.json:
            job = str(made.ref) if made.ref else None
            output.document(SMOKE.schema, {"fleet": arguments.fleet, "job": job, "token": made.token, "checks": []})
        elif made.ref is not None:
            output.line(f"read it: fleetcraft fleet smoke {arguments.fleet} --read {made.token}")
        return exit_of(made)

    def tell(word: str) -> None:
        if not output.json:
            output.line(f"job {made.ref}: {word}")
            output.flush()

    return _show(fleet_hold.follow_smoke(prepared.fleet, made.token, tell), output)


def _show(result: SmokeResult, output: Output) -> int:
    if output.json:
        output.document(SMOKE.schema, result.as_json())
    else:
        for check in result.checks:
            word = output.paint(f"{check.verdict:<8}", *_STYLES[check.verdict])
            first, *rest = check.text.splitlines() or [""]
            output.line(f"{word} {check.name:<12} {printable(first)}")
            shown = rest if check.verdict == "failed" else []
            output.lines(f"{'':<22}{printable(line)}" for line in shown[-10:])
        output.line(printable(result.sentence))
    if result.ok:
        return EXIT_DONE
    ended = result.state not in ("submitted", "unknown", "pending", "held", "running", "ending")
    failed = any(check.verdict == "failed" for check in result.checks)
    return EXIT_FAILED if ended or failed else EXIT_GOING


DEVNODE = Command(
    path=("fleet", "devnode"),
    summary="hold a node to work on by hand, until you let it go",
    description="Ask for a node and hold it: it says when it is ready, beats while it is held, notes what its GPUs\n"
    "do, and goes back when this command ends, whatever ends it, or at its time limit.",
    arguments=_devnode_arguments,
    run=_devnode,
    examples=(
        Example(line="fleetcraft fleet devnode --profile mysite --time 2h", what="Hold one node, at most two hours."),
        Example(
            line="fleetcraft fleet devnode --profile mysite --partition dev --detach --json",
            what="Come back at once; `fleetcraft fleet cancel devnode` gives it back.",
        ),
    ),
    exits={1: "the job ended in another way than by its time or by you", 4: "a guard or the scheduler refused it"},
)
SMOKE = Command(
    path=("fleet", "smoke"),
    summary="prove a site in a short job: environment, GPUs, spool, driver, one task",
    description="Submit a job of at most 30 minutes that checks, on a node, what a fleet will need: the environment\n"
    "of the profile, the GPUs that were asked for, the spool's file operations, the driver library, and one task from\n"
    "enqueue to receipt. Each check that ran has its verdict, also when the job was killed half-way.",
    arguments=_smoke_arguments,
    run=_smoke,
    examples=(
        Example(line="fleetcraft fleet smoke --profile mysite", what="Submit it, wait, and show the verdicts."),
        Example(line="fleetcraft fleet smoke --read 4711 --json", what="The verdicts of an earlier one."),
    ),
    exits={
        1: "a check failed, or the job ended without all of them",
        3: "with --read: still going",
        4: "a guard or the scheduler refused it",
    },
)
