"""`fleet snapshot`: what you hold and wait for at a site, in nodes and in GPUs, and how much of it is heard of."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import fleet_argument, open_spool, whole_program
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.tables import table
from fleetcraft.core.errors import EXIT_DONE, EXIT_TRY_AGAIN
from fleetcraft.core.quantities import format_duration

if TYPE_CHECKING:
    from fleetcraft.readmodel.fleet_gpus import Measured, NodeView
    from fleetcraft.readmodel.fleet_snapshot import SnapshotView, Use
    from fleetcraft.spool.reading import SpoolFold
    from fleetcraft.spool.spool import Spool

_HEARTBEATS = "from the workers' heartbeats: working means that a running task holds it, not how busy it is"
_TELEMETRY = "from telemetry: working means that it was active within the last five minutes"


def _arguments(parser: argparse.ArgumentParser) -> None:
    fleet_argument(parser, what="whose site is asked (default: that of all fleets)")
    group = parser.add_argument_group("what to show")
    group.add_argument("--gpus", action="store_true", help="every node and every GPU, one by one")
    group.add_argument("--cluster", action="store_true", help="the partitions of the site and their idle nodes")
    group.add_argument("--profile", metavar="NAME", help="ask the site of this profile instead of a fleet's")
    group.add_argument("--partition", metavar="NAME", help="whose limits are shown; the site is then that of a profile")


def _run(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program():
        from fleetcraft.actions.fleet_ask import ask_site
        from fleetcraft.actions.fleet_look import read_states
        from fleetcraft.readmodel.fleet_snapshot import take_snapshot
        from fleetcraft.spool.reading import SpoolFold
    spool = open_spool(arguments)
    asked = ask_site(spool, arguments.fleet, profile=arguments.profile, partition=arguments.partition)
    reader = SpoolFold(spool)
    reader.refresh()
    view = take_snapshot(
        asked.mine, asked.limits, read_states(spool), reader, spool.clock.utc(),
        request=asked.request, cluster=arguments.cluster, measured=_measured(spool, reader),
    )  # fmt: skip
    if output.json:
        output.document(SNAPSHOT.schema, {"profile": asked.profile, **view.as_json(nodes=arguments.gpus)})
    else:
        output.lines(describe(view, output, gpus=arguments.gpus, cluster=arguments.cluster))
    return EXIT_DONE if view.answered and view.limits_answered else EXIT_TRY_AGAIN


def _measured(spool: Spool, reader: SpoolFold) -> dict[str, Measured]:
    """What telemetry says of the workers' GPUs."""
    from fleetcraft.readmodel.gpu_now import measured
    from fleetcraft.readmodel.gpu_queue import Served
    from fleetcraft.readmodel.gpu_sources import root_of
    from fleetcraft.readmodel.lives import read_workers

    served = [
        Served(worker=worker, beat=reader.lives[worker.life].heartbeat or {})
        for worker in read_workers(reader, spool.clock.utc())
    ]
    return measured(root_of(spool.layout.root), served)


def describe(view: SnapshotView, output: Output, *, gpus: bool, cluster: bool) -> Iterator[str]:
    """The snapshot for a person."""
    if not view.answered:
        age = "nothing was ever told" if view.age_s is None else f"{format_duration(view.age_s)} old"
        yield f"{output.paint('!', 'red', 'bold')} the scheduler did not answer; what is shown is on record, {age}"
    yield from _uses(view, output)
    yield ""
    yield from _waiting(view, output)
    yield ""
    yield from _limits(view, output)
    yield ""
    yield from _coverage(view, output)
    if gpus:
        yield from ["", *_nodes(view, output)]
    if cluster:
        yield from ["", *_cluster(view, output)]
    yield from (f"{output.paint('!', 'yellow', 'bold')} {printable(text)}" for text in view.problems)


def _number(use: Use, what: str) -> str:
    number, unknown = (use.gpus, use.jobs_of_unknown_gpus) if what == "gpus" else (use.nodes, use.jobs_of_unknown_nodes)
    return f"{number}+?" if unknown else str(number)


def _some(number: str, word: str) -> str:
    return f"{number} {word if number == '1' else word + 's'}"


def _uses(view: SnapshotView, output: Output) -> Iterator[str]:
    if not view.partitions:
        yield "no job of yours waits or runs" if view.answered else "no live job is on record"
        return
    heads = ("PARTITION", "ASSIGNED JOBS", "NODES", "GPUS", "PENDING JOBS", "NODES", "GPUS")
    rows = [
        (
            use.partition or "?",
            str(use.assigned.jobs), _number(use.assigned, "nodes"), _number(use.assigned, "gpus"),
            str(use.pending.jobs), _number(use.pending, "nodes"), _number(use.pending, "gpus"),
        )
        for use in view.partitions
    ]  # fmt: skip
    yield from table(output, heads, rows)


def _waiting(view: SnapshotView, output: Output) -> Iterator[str]:
    yield output.paint("waiting", "bold")
    if not view.waiting:
        yield "  nothing"
    for one in view.waiting:
        nodes, gpus = _number(one.use, "nodes"), _number(one.use, "gpus")
        size = f"{count(one.use.jobs, 'job')}, {_some(nodes, 'node')}, {_some(gpus, 'GPU')}"
        yield f"  {one.partition or '?'}: {size}: {printable(one.reason)}"


def _limits(view: SnapshotView, output: Output) -> Iterator[str]:
    yield output.paint("limits", "bold")
    if not view.limits_answered:
        yield "  not answered"
    elif not view.limits:
        yield "  the site tells none"
    for limit in view.limits:
        if limit.limit == "time limit":
            yield f"  {limit.where}: time limit {format_duration(limit.value)}"
        elif limit.limit == "nodes per job":
            yield f"  {limit.where}: {_some(f'{limit.value:g}', 'node')} per job"
        else:
            yield f"  {limit.where}: {limit.limit} {limit.value:g}, {limit.used:g} used, {limit.left:g} left"


def _coverage(view: SnapshotView, output: Output) -> Iterator[str]:
    yield output.paint("coverage", "bold")
    cover = view.coverage
    gpus = "an unknown number of GPUs" if cover.gpus is None else count(cover.gpus, "GPU")
    percent = "" if cover.percent is None else f" ({cover.percent:g} %)"
    nodes = f"{cover.reporting_nodes} of {count(cover.nodes, 'node')}"
    yield f"  {nodes}, {cover.reporting_gpus} of {gpus} are heard of{percent}"
    states = ", ".join(f"{number} {state}" for state, number in view.gpu_states.items() if number)
    if states:
        yield f"  GPUs: {states}"
        ways = {gpu.measured for node in view.nodes for gpu in node.gpus}
        yield from (f"  {text}" for way, text in ((True, _TELEMETRY), (False, _HEARTBEATS)) if way in ways)


def _nodes(view: SnapshotView, output: Output) -> Iterator[str]:
    heads = ("NODE", "JOB", "GPU", "STATE", "TYPE", "ABOUT")
    rows: list[tuple[str, ...]] = []
    for node in view.nodes:
        rows += _rows(node)
    yield from table(output, heads, rows, styled=3) if rows else ["no node is held"]


def _rows(node: NodeView) -> list[tuple[str, ...]]:
    if not node.gpus:
        state = "reports" if node.reports else "silent"
        return [(node.node, node.job, "none", state, "", node.reason)]
    return [(node.node, node.job, str(gpu.index), gpu.state.value, gpu.name or "?", gpu.reason) for gpu in node.gpus]


def _cluster(view: SnapshotView, output: Output) -> Iterator[str]:
    def text(value: Any) -> str:
        return "?" if value is None else str(value)

    heads = ("PARTITION", "STATE", "NODES", "IDLE", "GPUS/NODE", "TYPES", "TIME")
    rows = [
        (
            part.name, part.state.lower() or "?", text(part.nodes), text(part.idle_nodes), text(part.gpus_per_node),
            ",".join(part.gpu_types), "" if part.time_limit_s is None else format_duration(part.time_limit_s),
        )
        for part in view.cluster
    ]  # fmt: skip
    yield from table(output, heads, rows) if rows else ["the site told no partition"]


SNAPSHOT = Command(
    path=("fleet", "snapshot"),
    summary="what you hold and wait for at the site: nodes, GPUs, reasons, limits, coverage",
    description="Ask the site once for all of your jobs, ours or not, and for its limits, and join that with what the\n"
    "workers of this spool say. No node is left out: one that nobody heard of is shown with the reason. When the\n"
    "scheduler does not answer, what is on record is shown with its age, and the exit code is 75.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft fleet snapshot", what="Nodes and GPUs by partition, reasons, limits, coverage."),
        Example(line="fleetcraft fleet snapshot study1 --gpus --cluster", what="Also every GPU, and the idle nodes."),
        Example(line="fleetcraft fleet snapshot --profile mysite --json", what="Without a fleet, as one JSON object."),
    ),
    exits={75: "the scheduler or the storage did not answer; what is on record is shown"},
)
