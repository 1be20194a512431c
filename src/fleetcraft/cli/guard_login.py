"""`guard login`: what you run on this login node, by the site's rules; on demand, end what Fleetcraft left there."""

from __future__ import annotations

import argparse

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import whole_program
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import duration
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_REFUSED
from fleetcraft.core.quantities import format_bytes

_STYLES = {"go": ("green",), "caution": ("yellow",), "stop": ("red", "bold")}


def _arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to look at")
    group.add_argument(
        "--profile", metavar="NAME",
        help="whose rules (default: $FLEETCRAFT_PROFILE, else the only profile of yours, else none)",
    )  # fmt: skip
    reap = parser.add_argument_group("ending what is left")
    reap.add_argument(
        "--reap", action="store_true",
        help="end what Fleetcraft started here, and nothing else; only where the profile calls this a login node",
    )  # fmt: skip
    reap.add_argument(
        "--spool", action="append", default=[], metavar="DIR",
        help="also the workers on record in this spool; may be repeated",
    )  # fmt: skip
    reap.add_argument(
        "--grace", type=duration("--grace"), default=10.0, metavar="TIME",
        help="between asking to end and killing (default: 10s)",
    )  # fmt: skip


def _run(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program():
        from fleetcraft.actions.guard_login import look_at_login, reap_login
    from fleetcraft.core.clock import SystemClock

    endings = []
    if arguments.reap:
        endings = reap_login(arguments.profile, arguments.spool, SystemClock(), grace_s=arguments.grace)
    look = look_at_login(arguments.profile)
    decision, evidence = look.decision, look.evidence
    reaped = [
        {"pid": one.target.pid, "name": one.target.name, "because": one.target.because, "outcome": one.outcome,
         "note": one.note or None}
        for one in endings
    ]  # fmt: skip
    if output.json:
        body = {"profile": look.profile, "cap_processes": look.cap_processes, **decision.as_json()}
        output.document(LOGIN.schema, {**body, "reaped": reaped if arguments.reap else None})
    else:
        for one in reaped:
            note = f" ({one['note']})" if one["note"] else ""
            output.line(f"{one['outcome']}: {one['pid']} {printable(str(one['name']))}, {one['because']}{note}")
        if arguments.reap and not reaped:
            output.line("nothing of Fleetcraft runs here")
        level = str(decision.evidence["level"])
        output.line(f"{output.paint(level, *_STYLES[level])}  {printable(decision.reason)}")
        if evidence.memory_bytes is not None:
            ours = count(evidence.ours or 0, "process", "processes")
            output.line(f"    {format_bytes(evidence.memory_bytes)} resident; {ours} by Fleetcraft")
        if look.profile is None:
            output.line("    no profile says what is allowed here; name one with --profile")
    if any(one.outcome in ("still there", "not permitted") for one in endings):
        return EXIT_FAILED
    return EXIT_DONE if decision.allowed else EXIT_REFUSED


LOGIN = Command(
    path=("guard", "login"),
    summary="whether what you run on this login node is within the site's rules",
    description="Count your processes, threads, ssh connections and memory on this host, and compare them with the\n"
    "profile's rules for login nodes. What cannot be counted is refused, never taken for zero.",
    arguments=_arguments,
    run=_run,
    uses_spool=False,
    examples=(
        Example(line="fleetcraft guard login", what="Count, and say go, caution or stop."),
        Example(
            line="fleetcraft guard login --profile mysite --reap --spool /scratch/me/run1",
            what="First end the processes that Fleetcraft left on this login node.",
        ),
    ),
    exits={1: "with --reap: something of ours could not be ended", 4: "stop: nothing more may be started from here"},
)
