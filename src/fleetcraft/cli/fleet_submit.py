"""`fleet submit`: make a fleet, or give it the jobs of its shape; with --dry-run, only show what that would be."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import decision_lines, hours, open_spool, whole_program
from fleetcraft.cli.fleet_options import (
    add_fleet_arguments,
    add_place_arguments,
    add_shape_arguments,
    add_worker_arguments,
    read_options,
)
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.core.errors import EXIT_DONE, EXIT_REFUSED, EXIT_TRY_AGAIN, FleetcraftError
from fleetcraft.core.quantities import format_duration
from fleetcraft.readmodel.words import local_time

if TYPE_CHECKING:
    from fleetcraft.fleet.spec import FleetSpec
    from fleetcraft.fleet.submit import DryRun, Submitted

DEFAULT_FLEET = "main"
# A person at a terminal waits so long for the pause between two submissions.
_PATIENCE_S = 15.0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "fleet", metavar="FLEET", nargs="?", default=DEFAULT_FLEET, help="its name in this spool (default: main)"
    )
    add_place_arguments(parser)
    add_shape_arguments(parser)
    add_fleet_arguments(parser)
    add_worker_arguments(parser)
    group = parser.add_argument_group("what to do")
    group.add_argument(
        "--dry-run", action="store_true",
        help="submit nothing; show the script, the options, the cost, the start and what each guard decides",
    )  # fmt: skip
    group.add_argument("--why", metavar="TEXT", default="asked for", help="kept with the submission")


def _run(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program():
        from fleetcraft.actions import fleet_supply
    spool = open_spool(arguments)
    options = read_options(arguments)
    if arguments.dry_run:
        dry = fleet_supply.submit_preview(spool, arguments.fleet, options)
        problem = fleet_supply.write_problem(spool, arguments.fleet)
        return show_dry_run(arguments.fleet, dry, output, SUBMIT.schema, problem)

    def patience(gap_s: float) -> bool:
        if output.json or gap_s > _PATIENCE_S or not sys.stdin.isatty():
            return False
        output.note(f"waiting {math.ceil(gap_s)} s: the site wants a pause after your last submission")
        output.flush()
        return True

    launched = fleet_supply.submit_fleet(spool, arguments.fleet, options, why=arguments.why, patience=patience)
    if output.json:
        output.document(SUBMIT.schema, {"fleet": arguments.fleet, "dry_run": False, **launched.as_json()})
    else:
        for one in launched.submitted:
            tell_submitted(arguments.fleet, one, output)
        output.lines(f"{arguments.fleet}: {printable(text)}" for text in launched.skipped)
        if all(one.ref is not None for one in launched.submitted):
            output.line(f"see: fleetcraft fleet status {arguments.fleet}")
    return max((fleet_supply.exit_of(one) for one in launched.submitted), default=EXIT_DONE)


def tell_submitted(fleet: str, one: Submitted, output: Output) -> None:
    """What became of one submission, and after a refusal what each guard said."""
    if one.draft.ruling.unanswered:
        output.line(f"{fleet}: {printable(one.words)}")
        output.line("run the same command again; `--dry-run` shows what each guard says")
        return
    output.line(f"{fleet}: {printable(one.words)}; {cost_words(one.draft.wish.spec, one.draft.request.nodes)}")
    if not one.draft.ruling.allowed:
        output.lines(decision_lines(one.draft.ruling.as_json(), output))


def cost_words(spec: FleetSpec, nodes: int) -> str:
    """What a job costs when it runs to its time limit."""
    words = f"{count(nodes, 'node')} for {format_duration(spec.time_limit_s)}"
    if spec.gpus_per_node:
        words += f", at most {hours(spec.gpu_hours(nodes))} GPU-hours"
    else:
        words += f", at most {hours(spec.node_hours(nodes))} node-hours"
    units = spec.units(nodes)
    return words if units is None else f"{words}, {hours(units)} {spec.site.balance.unit}"


def show_dry_run(fleet: str, dry: DryRun, output: Output, schema: str, problem: FleetcraftError | None = None) -> int:
    """Everything that would happen; ends with 4 where a guard or the scheduler would refuse.

    `problem`: why the submission could not be written down at all.
    """
    ruling = dry.draft.ruling
    allowed = ruling.allowed and dry.estimate.possible is not False
    if output.json:
        site = dry.draft.wish.spec.site
        body = {"fleet": fleet, "dry_run": True, "profile": site.profile, "source": site.source}
        output.document(schema, {**body, **dry.as_json(), "problem": None if problem is None else str(problem)})
    else:
        output.lines(_tell(dry, output))
        if problem is not None:
            output.line(f"the submission itself could not be written: {printable(str(problem))}")
    if not allowed:
        return EXIT_TRY_AGAIN if ruling.unanswered else EXIT_REFUSED
    return EXIT_DONE if problem is None else problem.exit_code


def _tell(dry: DryRun, output: Output) -> Iterator[str]:
    spec, request = dry.draft.wish.spec, dry.draft.request
    site = spec.site
    yield output.paint("script", "bold")
    yield from (f"  {printable(line)}" for line in request.script.rstrip("\n").split("\n"))
    yield output.paint("options", "bold")
    argv = dry.argv
    yield f"  {printable(shlex.join(argv))}" if argv else "  this scheduler takes no command line"
    yield output.paint("cost", "bold")
    yield f"  {cost_words(spec, request.nodes)} (profile {site.profile}, partition {site.partition.name})"
    if spec.lanes:
        yield f"  and the same for each of {count(spec.lanes, 'lane')}, and again for every successor"
    yield output.paint("start", "bold")
    estimate = dry.estimate
    said = f": {printable(estimate.text)}" if estimate.text else ""
    if estimate.possible is None:
        yield f"  the scheduler gave no estimate{said}"
    elif not estimate.possible:
        yield f"  the scheduler would refuse it{said}"
    else:
        where = f" on {', '.join(estimate.nodes)}" if estimate.nodes else ""
        by = local_time(estimate.start_utc, site.time_zone)
        start = f"by {by}" if estimate.start_utc is not None else "at a time that it does not say"
        yield f"  the scheduler would start it {start}{where}"
    yield output.paint("guards", "bold")
    yield from decision_lines(dry.draft.ruling.as_json(), output)
    if dry.draft.ruling.unanswered:
        yield "nothing was submitted, and not every question had an answer; run the same command again"
    elif not dry.draft.ruling.allowed:
        yield "nothing was submitted, and it would be refused"
    elif estimate.possible is False:
        yield "nothing was submitted; every guard would allow it, and the scheduler would refuse it"
    else:
        yield "nothing was submitted; every guard would allow it"


SUBMIT = Command(
    path=("fleet", "submit"),
    summary="make a fleet of nodes that works on this spool, or show what it would be",
    description="Submit a job whose nodes each run a worker of this spool. The job ends by itself when no task is\n"
    "left and its workers were idle for a while. Every guard is asked first, and a refusal is final for this call.\n"
    "A submission whose answer was lost is looked up, never sent twice.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(
            line="fleetcraft fleet submit --profile local --time 1h --dry-run",
            what="Show the script, the cost, the start and the guards; submit nothing.",
        ),
        Example(
            line="fleetcraft fleet submit study1 --profile mysite --nodes 4 --time 12h --gpu-hours 400",
            what="Four nodes for twelve hours, and never more than 400 GPU-hours for the whole fleet.",
        ),
        Example(
            line="fleetcraft fleet submit study1 --profile mysite --shape big --partition large --nodes 8",
            what="A second shape of the same fleet: each node takes what fits it.",
        ),
        Example(
            line="fleetcraft fleet submit study1 --profile mysite --nodes 8 --lanes 2 --idle-exit 10m",
            what="Two sequences of 8-node jobs; `fleet renew` queues the successors.",
        ),
    ),
    exits={
        4: "a guard or the scheduler refused it; the reasons are shown",
        75: "the scheduler or the storage gave no answer; run the same command again",
    },
)
