"""The options with which a person says what a fleet shall be, in the groups in which one thinks of them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fleetcraft.cli.parser import duration, number
from fleetcraft.core.errors import UsageError
from fleetcraft.core.quantities import parse_duration_s, parse_size_bytes

if TYPE_CHECKING:
    from fleetcraft.actions.fleet_options import FleetOptions


def _memory(text: str) -> int:
    return 0 if text == "all" else parse_size_bytes(text, "--memory")


def _hours(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours above zero")
    return value


def _time_limit(text: str) -> float:
    value = parse_duration_s(text, "--time")
    if value <= 0:
        raise UsageError(f"--time {text} leaves a job no time.", hint="Leave it away for the profile's time limit.")
    return value


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """Where it runs."""
    group = parser.add_argument_group("where")
    group.add_argument(
        "--profile", metavar="NAME",
        help="the site profile, by name or file (default: $FLEETCRAFT_PROFILE, else the only one of yours)",
    )  # fmt: skip
    group.add_argument("--partition", metavar="NAME", help="a partition of the profile (default: the profile's)")
    group.add_argument("--account", metavar="NAME", help="whom the site charges")
    group.add_argument("--qos", metavar="NAME", help="the quality of service to ask for")
    group.add_argument("--reservation", metavar="NAME", help="nodes that the site keeps for you")
    group.add_argument("--constraint", metavar="FEATURES", help="features that the nodes must have")
    group.add_argument(
        "--preemptible", action="store_true",
        help="where nodes may be taken away at any time; alone, the partition that the profile calls so",
    )  # fmt: skip
    group.add_argument("--exclude", metavar="NODES", help="nodes to leave out, separated by commas")
    group.add_argument("--nodelist", metavar="NODES", help="nodes that must be among them, separated by commas")
    group.add_argument(
        "--option", action="append", default=[], metavar="WORD",
        help="a further option for the scheduler, such as --option=--licenses=lic:1, where the profile allows it",
    )  # fmt: skip


def add_shape_arguments(parser: argparse.ArgumentParser) -> None:
    """How large one job is, and how long it may run."""
    group = parser.add_argument_group("shape of one job")
    group.add_argument("--nodes", type=number, metavar="N", help="nodes of one job (default: 1)")
    group.add_argument("--gpus-per-node", type=number, metavar="N", help="(default: all that the profile knows)")
    group.add_argument("--cpus-per-node", type=number, metavar="N", help="(default: all that the profile knows)")
    group.add_argument("--memory", type=_memory, metavar="SIZE", help="memory of a node to ask for, or all")
    group.add_argument("--time", type=_time_limit, metavar="TIME", help="time limit (default: the profile's)")


def add_fleet_arguments(parser: argparse.ArgumentParser) -> None:
    """How the fleet grows, shrinks and ends."""
    group = parser.add_argument_group("growing and ending")
    group.add_argument(
        "--shape", metavar="NAME",
        help="a name for this shape, where one fleet has jobs of several shapes (default: main)",
    )  # fmt: skip
    group.add_argument(
        "--lanes", type=number, metavar="N",
        help="keep so many sequences of successors of exactly this shape (default: 0, at most 4)",
    )  # fmt: skip
    group.add_argument("--min-nodes", type=number, metavar="N", help="keep so many nodes even without work")
    group.add_argument("--max-nodes", type=number, metavar="N", help="never more nodes than this at once")
    group.add_argument(
        "--idle-exit", metavar="TIME",
        help="a worker leaves after being idle so long, and its node goes back (default: 5m); or never",
    )  # fmt: skip
    group.add_argument("--gpu-hours", type=_hours, metavar="H", help="the fleet may never use more than this")
    group.add_argument("--node-hours", type=_hours, metavar="H", help="the same in nodes")
    group.add_argument(
        "--notify", metavar="WHERE",
        help="tell an http(s) address, or run a command, when the fleet drained, is done, or failed",
    )  # fmt: skip


def add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    """In which surroundings tasks run."""
    group = parser.add_argument_group("surroundings of the tasks")
    group.add_argument("--container", metavar="IMAGE", help="run workers and tasks in this image")
    group.add_argument(
        "--module", action="append", default=[], metavar="NAME", help="load this module for tasks and worker"
    )
    group.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="set this for the tasks; may be repeated"
    )
    group.add_argument("--pass-env", action="append", default=[], metavar="NAME", help="as for `worker run`")
    group.add_argument("--worker-gpus", metavar="WHICH", help="as --gpus of `worker run` (default: auto)")
    group.add_argument("--worker-cpus", type=number, metavar="N", help="as --cpus of `worker run`")
    group.add_argument(
        "--telemetry", metavar="HOW", help="how GPUs are measured: on, off, or how often (default: on, every 10 s)"
    )
    group.add_argument("--drain-before", type=duration("--drain-before"), metavar="TIME", help="as for `worker run`")
    group.add_argument(
        "--bundle", action="store_true", help="ship the worker as one file, for nodes without this program"
    )
    group.add_argument("--job-name", metavar="NAME", help="what others see in the queue (default: the fleet's name)")


def read_options(arguments: argparse.Namespace) -> FleetOptions:
    """Everything that was said. Raises UsageError."""
    from fleetcraft.actions.fleet_options import FleetOptions

    said: dict[str, Any] = vars(arguments)
    spec = {
        "nodes": said.get("nodes"),
        "gpus_per_node": said.get("gpus_per_node"),
        "cpus_per_node": said.get("cpus_per_node"),
        "memory_bytes": said.get("memory"),
        "lanes": said.get("lanes"),
        "min_nodes": said.get("min_nodes"),
        "max_nodes": said.get("max_nodes"),
        "gpu_hour_cap": said.get("gpu_hours"),
        "node_hour_cap": said.get("node_hours"),
        "job_name": said.get("job_name"),
        "exclude": _names(said.get("exclude")),
        "nodelist": _names(said.get("nodelist")),
        "env": _env(said.get("env") or []),
    }
    values = {name: value for name, value in spec.items() if value is not None}
    if said.get("idle_exit") is not None:
        from fleetcraft.workers.options import parse_idle_exit_s

        values["idle_exit_s"] = parse_idle_exit_s(said["idle_exit"])
    return FleetOptions(
        profile=said.get("profile"),
        partition=said.get("partition"),
        account=said.get("account"),
        qos=said.get("qos"),
        reservation=said.get("reservation"),
        constraint=said.get("constraint"),
        time_limit_s=said.get("time"),
        preemptible=bool(said.get("preemptible")),
        container=said.get("container"),
        modules=tuple(said.get("module") or ()),
        notify=said.get("notify"),
        options=tuple(said.get("option") or ()),
        bundle=bool(said.get("bundle")),
        shape=_shape(said.get("shape")),
        spec=values,
        worker={
            "gpus": said.get("worker_gpus"),
            "cpus": said.get("worker_cpus"),
            "drain_before_s": said.get("drain_before"),
            "telemetry": said.get("telemetry"),
            "pass_env": tuple(said.get("pass_env") or ()) or None,
        },
    )


def _shape(name: str | None) -> str:
    from fleetcraft.fleet.spec import DEVNODE, MAIN, SMOKE_CHECK

    if name in (DEVNODE, SMOKE_CHECK):
        raise UsageError(f"The shape {name} is for `fleetcraft fleet {name}`.", hint="Give the shape another name.")
    return name or MAIN


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name for name in text.split(",") if name)


def _env(pairs: list[str]) -> dict[str, str] | None:
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise UsageError(f"--env {pair!r} is not of the form NAME=VALUE.")
        found[name] = value
    return found or None
