"""`doctor`: whether this machine and this spool can do what is needed, and what to do where they cannot."""

from __future__ import annotations

import argparse

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import spool_root
from fleetcraft.cli.tables import STATE_STYLES
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED
from fleetcraft.readmodel.doctor import examine
from fleetcraft.readmodel.finding import Level


def _run(arguments: argparse.Namespace, output: Output) -> int:
    findings = []
    for finding in examine(spool_root(arguments)):
        findings.append(finding)
        if not output.json:
            word = output.paint(f"{finding.level.value:<4}", *STATE_STYLES[finding.level.value])
            output.line(f"{word}  {finding.what:<12} {printable(finding.found)}")
            if finding.advice:
                output.line(f"{'':<19} {printable(finding.advice)}")
            output.flush()
    bad = sum(finding.level is Level.BAD for finding in findings)
    warned = sum(finding.level is Level.WARN for finding in findings)
    if output.json:
        body = {"bad": bad, "warn": warned, "findings": [finding.as_json() for finding in findings]}
        output.document(DOCTOR.schema, body)
    elif bad or warned:
        output.line(f"{count(bad, 'thing')} to mend, {count(warned, 'warning')}")
    else:
        output.line("all is well")
    return EXIT_FAILED if bad else EXIT_DONE


DOCTOR = Command(
    path=("doctor",),
    summary="whether this machine and this spool can do what is needed",
    description="Look at this machine and at the spool (or the place where it would be made),\n"
    "and say what to do about each finding.",
    run=_run,
    examples=(
        Example(line="fleetcraft doctor", what="Look at everything; ends with 1 when something must be mended."),
        Example(line="fleetcraft doctor --spool /scratch/me/spool --json", what="The same as one JSON object."),
    ),
    exits={1: "something must be mended before tasks can run"},
)
