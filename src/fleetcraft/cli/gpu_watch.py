"""`gpu watch`: tell once what somebody should hear about the GPUs, and when it is over."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import whole_program
from fleetcraft.cli.gpu_classify import look_arguments, looker
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import duration
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED, FleetcraftError, UsageError
from fleetcraft.core.quantities import format_duration
from fleetcraft.readmodel.words import local_time

if TYPE_CHECKING:
    from fleetcraft.wiring.gpu_watch import Watch, Watched

_INTERVAL_S = 30.0
_LEAST_S = 1.0


def _arguments(parser: argparse.ArgumentParser) -> None:
    look_arguments(parser)
    group = parser.add_argument_group("how to watch")
    group.add_argument("--once", action="store_true", help="look once; what was told before is not told again")
    group.add_argument(
        "--interval", metavar="SPAN", type=duration("--interval"), default=_INTERVAL_S,
        help=f"time between looks (default: {_INTERVAL_S:g}s)",
    )  # fmt: skip
    group.add_argument("--state", metavar="FILE", help="what was told (default: a file in the telemetry folder)")
    tell = parser.add_argument_group("whom to tell")
    tell.add_argument("--command", metavar="CMD", help="run this for each event, which it finds on its standard input")
    tell.add_argument("--webhook", metavar="URL", help="post each event there as JSON; redirects are not followed")
    free = parser.add_argument_group("what to give back")
    free.add_argument(
        "--release", action="store_true",
        help="end jobs of this spool's fleets whose GPUs were all free for the whole of release_s, after two warnings",
    )  # fmt: skip


def _run(arguments: argparse.Namespace, output: Output) -> int:
    watch = _open(arguments)
    if arguments.once:
        watched = watch.step()
        _tell(watched, output, once=True)
        return EXIT_FAILED if watched.active else EXIT_DONE
    if arguments.interval < _LEAST_S:
        raise UsageError("--interval must be at least 1s.", hint="Files are read at each look.")
    while True:
        try:
            _tell(watch.step(), output, once=False)
        except (FleetcraftError, OSError) as error:
            output.note(f"this look failed, the next is in {arguments.interval:g} s: {error}")
        output.flush()
        time.sleep(arguments.interval)


def _open(arguments: argparse.Namespace) -> Watch:
    with whole_program("GPUs"):
        from fleetcraft.usage.thresholds import Thresholds
        from fleetcraft.wiring.gpu_watch import Watch, default_state_path, parse_channels
    limits = Thresholds().replaced(arguments.threshold)
    channels = parse_channels(arguments.command, arguments.webhook)
    deep_s = max(limits.nudge_free_s, limits.nudge_reserved_s, limits.release_s if arguments.release else 0.0)
    made = looker(arguments, deep_s=deep_s)
    if arguments.release and made.spool is None:
        raise UsageError(
            "--release needs a spool: only jobs of its fleets are ever ended.", hint="Name it with --spool."
        )
    if arguments.release and arguments.no_ask:
        raise UsageError("--release asks the scheduler, and --no-ask forbids it.", hint="Give one of them.")
    return Watch(made, arguments.state or default_state_path(made), channels, release=arguments.release)


def _tell(watched: Watched, output: Output, *, once: bool) -> None:
    if output.json:
        if once or watched.events or watched.said:
            output.document(WATCH.schema, watched.as_json())
        return
    for event in watched.events:
        when = local_time(event.at_utc)
        if event.what == "begin":
            since_s = event.at_utc - event.since_utc
            age = f" (for {format_duration(since_s)})" if since_s >= 1 else ""
            output.line(f"{when}  {output.paint('ALERT', 'red', 'bold')}  {event.kind}: {printable(event.text)}{age}")
        else:
            lasted = format_duration(max(0.0, event.at_utc - event.since_utc))
            output.line(
                f"{when}  {output.paint('over ', 'green')}  {event.kind}: {printable(event.text)} (after {lasted})"
            )
    output.lines(f"{output.paint('!', 'yellow', 'bold')} {printable(text)}" for text in watched.said)
    if not once:
        return
    told = {event.text for event in watched.events if event.what == "begin"}
    still = [(kind, text) for kind, text in watched.active if text not in told]
    output.lines(f"told before  {kind}: {printable(text)}" for kind, text in still)
    if not watched.active:
        totals = watched.picture.totals()
        output.line(
            f"nothing to tell: {totals['reporting_gpus']} of {count(totals['gpus'], 'GPU')} on "
            f"{count(totals['hosts'], 'host')} report"
        )
    for job, ruling in watched.rulings.items():
        output.line(f"release  job {printable(job)}: {ruling.step.value}, {printable(ruling.why)}")
    output.lines(f"{output.paint('!', 'yellow', 'bold')} {printable(text)}" for text in watched.picture.problems)


WATCH = Command(
    path=("gpu", "watch"),
    summary="tell what is wrong with the GPUs: idle while work waits, silent, hung, throttled, errors, disk",
    description="Look at the GPUs again and again and tell each alert once, and its end once: idle while work waits\n"
    "that they could run, idle for too long (15 min free, 60 min with memory held), silent hosts, lost and hung GPUs,\n"
    "missing ones, throttling, memory errors and Xids, a storage that fills. Nothing is ever ended, unless --release\n"
    "was given: then jobs whose GPUs were all free for the whole limit are drained and cancelled, after two warnings.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft gpu watch", what="In a terminal, every 30 seconds."),
        Example(line="fleetcraft gpu watch --once --webhook https://example.org/hook", what="From cron; tells once."),
        Example(line="fleetcraft gpu watch --command 'mail -s gpus me'", what="A mail for each event."),
        Example(line="fleetcraft gpu watch --threshold nudge_free_s=300", what="Sooner about free GPUs."),
    ),
    exits={1: "with --once: an alert holds", 130: "interrupted"},
)
