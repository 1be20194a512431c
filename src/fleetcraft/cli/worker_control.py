"""`worker list` and `worker drain`: which workers there are, and asking one to leave."""

from __future__ import annotations

import argparse

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output, count
from fleetcraft.cli.parser import spool_root
from fleetcraft.cli.tables import table
from fleetcraft.core.errors import EXIT_DONE, UsageError
from fleetcraft.core.quantities import format_duration
from fleetcraft.readmodel.lives import WorkerView, read_workers
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool


def _workers(spool: Spool) -> list[WorkerView]:
    reader = SpoolFold(spool)
    reader.refresh()
    return read_workers(reader, spool.clock.utc())


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("which workers").add_argument("--all", action="store_true", help="those that ended, too")


def _list(arguments: argparse.Namespace, output: Output) -> int:
    workers = [worker for worker in _workers(Spool.open(spool_root(arguments))) if arguments.all or not worker.buried]
    if output.json:
        output.document(LIST.schema, {"workers": [worker.as_json() for worker in workers]})
        return EXIT_DONE
    if not workers:
        output.line("no worker is up")
        return EXIT_DONE
    rows = [
        (
            worker.life,
            worker.state.value,
            f"{worker.running:,}",
            f"{worker.done:,}",
            "?" if worker.cpus is None else str(worker.cpus),
            "?" if worker.gpus is None else str(worker.gpus),
            "" if worker.age_s is None else format_duration(worker.age_s),
            worker.job_id or "",
            "; ".join(text for text in (worker.reason, worker.unmeasured) if text),
        )
        for worker in workers
    ]
    heads = ("WORKER", "STATE", "RUNNING", "DONE", "CPUS", "GPUS", "HEARD", "JOB", "ABOUT")
    output.lines(table(output, heads, rows, styled=1))
    return EXIT_DONE


def _drain_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which workers")
    group.add_argument(
        "worker", metavar="WORKER", nargs="*", help="ids as `worker list` shows them; their begin is enough"
    )
    group.add_argument(
        "--all", action="store_true", help="every worker that is up now; those that come later are not meant"
    )
    group.add_argument("--reason", default="", metavar="TEXT", help="kept with the request")


def _drain(arguments: argparse.Namespace, output: Output) -> int:
    if bool(arguments.worker) == arguments.all:
        raise UsageError("Name the workers to drain, or give --all.", hint="See `fleetcraft worker list`.")
    spool = Spool.open(spool_root(arguments))
    wanted = arguments.worker or [worker.life for worker in _workers(spool) if worker.is_running]
    if not wanted:
        raise UsageError("No worker is up.", hint="See `fleetcraft worker list --all`.")
    from fleetcraft.actions.requests import drain

    lives = drain(spool, wanted, reason=arguments.reason)
    if output.json:
        output.document(DRAIN.schema, {"workers": lives})
    else:
        output.line(f"asked {count(len(lives), 'worker')} to drain: {', '.join(lives)}")
    return EXIT_DONE


LIST = Command(
    path=("worker", "list"),
    summary="which workers are up, and what each of them does",
    description="List the workers of a spool. stale means silent and unproven; lost means that there is proof.",
    arguments=_list_arguments,
    run=_list,
    examples=(
        Example(line="fleetcraft worker list", what="The workers that are up, or whose tasks are being taken over."),
        Example(line="fleetcraft worker list --all --json", what="Every worker that this spool remembers."),
    ),
)
DRAIN = Command(
    path=("worker", "drain"),
    summary="ask workers to start nothing new and leave",
    description="Ask workers to leave: running tasks get their checkpoint signal and their grace, and what is\n"
    "unfinished goes back.",
    arguments=_drain_arguments,
    run=_drain,
    examples=(
        Example(line="fleetcraft worker drain node17-4242", what="Drain the worker whose id begins so."),
        Example(line="fleetcraft worker drain --all", what="Drain every worker that is up now."),
    ),
)
