"""The options of `task enqueue`, in the groups in which a person thinks of them."""

from __future__ import annotations

import argparse
import json
from typing import Any

from fleetcraft.cli.parser import duration, number
from fleetcraft.core.errors import UsageError

_FORMS = ("auto", "lines", "jsonl")


def _json(option: str) -> Any:
    def convert(text: str) -> Any:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{option} is not valid JSON: {error}.", hint="""Write it like '{"seed": 1}'.""") from None
        if not isinstance(value, dict):
            raise UsageError(f"{option} must be a JSON object of keyword arguments, such as '{{\"seed\": 1}}'.")
        return value

    return convert


def _flops(text: str) -> Any:
    """A number, or a formula as a JSON object; which formulas there are is known to those who enqueue."""
    try:
        return json.loads(text) if text.lstrip().startswith("{") else float(text)
    except ValueError:
        raise UsageError(
            f"--flops {text!r} is neither a number nor a JSON object.",
            hint="""Write 3.2e18, or '{"formula": "video_forward", ...}'.""",
        ) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them all."""
    parser.usage = "fleetcraft task enqueue [OPTIONS] -- COMMAND [ARGUMENT ...]\n" + " " * 7 + (
        "fleetcraft task enqueue [OPTIONS] --from FILE|-\n" + " " * 7
        + "fleetcraft task enqueue [OPTIONS] --call MODULE:FUNCTION"
    )  # fmt: skip
    _what_arguments(parser)
    _resource_arguments(parser)
    _work_arguments(parser)
    _order_arguments(parser)
    _failure_arguments(parser)
    _surrounding_arguments(parser)


def _what_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to run")
    group.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        help="a file of plain lines (for /bin/sh) or JSON lines; - is standard input",
    )
    group.add_argument(
        "--form",
        choices=_FORMS,
        default="auto",
        help="what the lines of --from are (default: JSON where a line begins with {)",
    )
    group.add_argument("--name", help="the task's name, unique in its spool (default: a digest of what it does)")
    group.add_argument(
        "--call", metavar="MODULE:FUNCTION", help="call a Python function in a resident worker instead of a command"
    )
    group.add_argument(
        "--args", type=_json("--args"), metavar="JSON", help="keyword arguments of the call, as a JSON object"
    )
    group.add_argument(
        "--setup", metavar="MODULE:FUNCTION", help="called once per resident; its result is handed to every call"
    )
    group.add_argument(
        "--setup-args", type=_json("--setup-args"), metavar="JSON", help="keyword arguments of the setup"
    )
    group.add_argument("--python", metavar="PATH", help="the Python that runs the calls (default: the worker's own)")
    group.add_argument(
        "--tag",
        dest="tags",
        action="append",
        metavar="TAG",
        help="a word to find the tasks by; may be given several times",
    )


def _resource_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what each task needs")
    group.add_argument("--gpus", metavar="N", help="whole GPUs, or a share of one such as 0.25")
    group.add_argument("--cpus", type=number, metavar="N", help="CPUs (default: 1)")
    group.add_argument("--vram", metavar="SIZE", help="GPU memory to reserve on each of its GPUs, such as 20G")
    group.add_argument("--node", action="store_true", default=None, help="the whole machine")
    group.add_argument(
        "--timed", action="store_true", default=None, help="the whole machine, alone, because the task measures time"
    )
    group.add_argument(
        "--needs", type=duration("--needs"), metavar="TIME", help="do not start it with less time left on the machine"
    )
    group.add_argument(
        "--uses", action="append", metavar="NAME[:N]", help="permits of a limited resource (see `spool limit`)"
    )
    group.add_argument(
        "--family", metavar="NAME", help="tasks of one kind, which may share a machine only up to a limit"
    )
    group.add_argument(
        "--calibrated", metavar="FILE",
        help="take {batch}, GPUs and GPU memory from the row of --family in this table (see `task calibrate`)",
    )  # fmt: skip
    group.add_argument("--device", metavar="NAME", help="with --calibrated: the row of this device")


def _work_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what work it is, for `gpu mfu`")
    group.add_argument(
        "--flops", type=_flops, metavar="FLOPS", help="FLOPs of each task: a number, or a formula as a JSON object"
    )
    group.add_argument("--precision", metavar="NAME", help="the precision of those FLOPs (default: bf16)")


def _order_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("when it runs")
    group.add_argument("--priority", type=number, metavar="N", help="0 to 999, higher first (default: 500)")
    group.add_argument(
        "--after", action="append", metavar="NAME", help="not before this task succeeded; batch:N is a whole batch"
    )


def _failure_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it ends")
    group.add_argument(
        "--output",
        dest="outputs",
        action="append",
        metavar="PATH",
        help="a file that it must leave; its size and digest are kept",
    )
    group.add_argument(
        "--validate", metavar="CMD", help="a shell line that must succeed, too, before the task counts as done"
    )
    group.add_argument("--timeout", type=duration("--timeout"), metavar="TIME", help="end an attempt that takes longer")
    group.add_argument(
        "--retries", type=number, metavar="N", help="how often it is tried again after a failure (default: 0)"
    )
    group.add_argument(
        "--backoff",
        type=duration("--backoff"),
        metavar="TIME",
        help="wait before the first retry; doubles (default: 0.5s)",
    )
    group.add_argument(
        "--checkpoint-signal", metavar="SIGNAL", help="sent when the machine goes away, such as USR1 (default: TERM)"
    )
    group.add_argument(
        "--checkpoint-grace",
        type=duration("--checkpoint-grace"),
        metavar="TIME",
        help="how long it may then save its state",
    )
    group.add_argument(
        "--resume-exit", type=number, metavar="N", help="the exit code that means: run me again (default: 75)"
    )
    group.add_argument("--notify", metavar="CMD", help="a shell line run when the task has ended for good")


def _surrounding_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("its surroundings")
    group.add_argument("--cwd", metavar="DIR", help="where it runs (default: the current directory)")
    group.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable; without =VALUE it is taken from here",
    )
    group.add_argument(
        "--env-file", action="append", default=[], metavar="FILE", help="variables from lines of NAME=VALUE"
    )
    group.add_argument(
        "--snapshot",
        action="append",
        default=[],
        metavar="PATH",
        help="freeze this script, so that an edit cannot change queued work",
    )
    group.add_argument(
        "--group",
        action="store_true",
        help="make a new spool writable by your group: its members can then run code as you",
    )
