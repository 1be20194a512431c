"""`task calibrate`: which batch size, and how many at once on a GPU, measured by whole runs and frozen in a table."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import whole_program
from fleetcraft.cli.output import Output, printable
from fleetcraft.cli.parser import duration, number
from fleetcraft.cli.tables import table
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED, UsageError
from fleetcraft.core.quantities import format_bytes

if TYPE_CHECKING:
    from fleetcraft.usage.calibration import Trial


def _sizes(option: str) -> Any:
    def convert(text: str) -> list[int]:
        words = text.split(",")
        if not all(word.isascii() and word.isdigit() and 0 < int(word) < 10**9 for word in words):
            raise UsageError(f"{option} {text!r} must be whole numbers above 0 with commas, such as 1,2,4.")
        return [int(word) for word in words]

    return convert


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "fleetcraft task calibrate FAMILY --batches N,N,... [OPTIONS] -- COMMAND with {batch}"
    parser.add_argument("family", metavar="FAMILY", help="the kind of tasks that the row is for")
    what = parser.add_argument_group("what to try")
    what.add_argument(
        "--batches", type=_sizes("--batches"), required=True, metavar="N,N,...",
        help="batch sizes; larger ones are left out after one that was out of memory",
    )  # fmt: skip
    what.add_argument(
        "--per-gpu", type=_sizes("--per-gpu"), default=[1], metavar="N,N,...",
        help="how many commands at once on the GPU (default: 1)",
    )  # fmt: skip
    what.add_argument("--cycles", type=number, default=2, metavar="N", help="whole runs of each (default and least: 2)")
    what.add_argument("--gpus", default="1", metavar="WORD", help="1 (default), or simulated:1 for trying things out")
    what.add_argument(
        "--timeout", type=duration("--timeout"), default=3600.0, metavar="TIME", help="end a longer run (default: 1h)"
    )
    pick = parser.add_argument_group("what is picked and frozen")
    pick.add_argument(
        "--headroom", type=float, default=10.0, metavar="PERCENT",
        help="the share of the GPU's memory that must stay free (default: 10)",
    )  # fmt: skip
    pick.add_argument(
        "--table", default="calibration.json", metavar="FILE", help="where the row goes (default: calibration.json)"
    )
    pick.add_argument("--replace", action="store_true", help="replace a row of the same key; its digest is kept")
    pick.add_argument(
        "--code", action="append", default=[], metavar="PATH",
        help="a file or folder whose change makes the row void; may be given several times",
    )  # fmt: skip
    pick.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help="what else the row holds for, in words"
    )
    pick.add_argument("--keep", action="store_true", help="leave the spools of the trials, and say where they are")


def _run(arguments: argparse.Namespace, output: Output) -> int:
    with whole_program("GPUs"):
        from fleetcraft.actions.calibrate import Asked, calibrate, check, parse_parameters
        from fleetcraft.actions.environment import record_environment

    asked = Asked(
        family=arguments.family, command=arguments.tail or [], batches=arguments.batches, per_gpu=arguments.per_gpu,
        cycles=arguments.cycles, headroom_pct=arguments.headroom, gpus=arguments.gpus, code=arguments.code,
        parameters=parse_parameters(arguments.param), timeout_s=arguments.timeout, cwd=os.getcwd(),
        env=record_environment(os.environ), table=arguments.table, replaces=arguments.replace,
    )  # fmt: skip
    check(asked)
    folder = tempfile.mkdtemp(prefix="fleetcraft-calibrate-")
    try:
        row, frozen = calibrate(asked, folder, told=lambda trial: output.note(_sentence(trial)), at_utc=time.time())
    finally:
        if arguments.keep:
            output.note(f"the spools of the trials are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if output.json:
        output.document(CALIBRATE.schema, {"table": arguments.table, "frozen": frozen, "row": row})
    else:
        output.lines(_lines(row, arguments.table, output, frozen=frozen))
    return EXIT_DONE if frozen else EXIT_FAILED


def _sentence(trial: Trial) -> str:
    why = f": {trial.error}" if trial.error else ""
    return f"batch {trial.batch}, {trial.per_gpu} at once: {trial.state.replace('_', ' ')}{why}"


def _lines(row: Mapping[str, Any], place: str, output: Output, *, frozen: bool) -> Iterator[str]:
    heads = ("BATCH", "PER GPU", "STATE", "ITEMS/S", "GPU PEAK", "HOST PEAK", "WHY")
    yield from table(output, heads, [_cells(one) for one in row["trials"]])
    for trial in row["trials"]:
        phases = {name: peak for name, peak in (trial["gpu_bytes"] or {}).items() if name != "whole"}
        if phases:
            told = ", ".join(f"{printable(name)} {format_bytes(peak)}" for name, peak in phases.items())
            yield f"batch {trial['batch']}, {trial['per_gpu']} at once, GPU peak by phase: {told}"
    key, pick = row["key"], row["pick"]
    yield ""
    size = "of unknown size" if row["device_bytes"] is None else f"of {format_bytes(row['device_bytes'])}"
    device, driver = (printable(str(key[name] or "unknown")) for name in ("device", "driver"))
    yield f"device  {device} {size}, driver {driver}"
    if pick["batch"] is None:
        yield f"pick    none: {pick['reason']}; nothing was frozen"
        return
    free = "" if pick["free_pct"] is None else f", {pick['free_pct']:.1f} % free"
    yield f"pick    batch {pick['batch']}, {pick['per_gpu']} at once{free}: {pick['reason']}"
    if frozen:
        use = f"fleetcraft task enqueue --calibrated {printable(place)} --family {printable(key['family'])}"
        yield f"frozen  in {printable(place)}; use it: {use}"


def _cells(trial: Mapping[str, Any]) -> tuple[str, ...]:
    peak = max(trial["gpu_bytes"].values()) if trial["gpu_bytes"] else None
    why = trial["error"] or (trial["gpu_reason"] if peak is None else "") or ""
    return (
        str(trial["batch"]), str(trial["per_gpu"]), trial["state"],
        "none" if trial["items_per_s"] is None else f"{trial['items_per_s']:.4g}",
        "none" if peak is None else format_bytes(peak),
        "none" if trial["host_bytes"] is None else format_bytes(trial["host_bytes"]), why,
    )  # fmt: skip


CALIBRATE = Command(
    path=("task", "calibrate"),
    summary="find the batch size for a GPU by whole runs, and freeze it in a table",
    description="Run a command with several batch sizes on one GPU of this machine, and pick the fastest that leaves "
    "memory free.\nThe trials run by workers in spools of their own; {batch} in the command is replaced.",
    arguments=_arguments,
    run=_run,
    takes_command=True,
    uses_spool=False,
    examples=(
        Example(
            line="fleetcraft task calibrate decode --batches 1,2,4,8 --code decode.py -- python decode.py {batch}",
            what="Four batch sizes, two whole runs of each.",
        ),
        Example(
            line="fleetcraft task calibrate score --batches 8,16 --per-gpu 1,2 -- python score.py {batch}",
            what="One and two commands at once on the GPU.",
        ),
    ),
    exits={
        0: "a point was picked, and its row is frozen",
        1: "no point was picked; nothing was frozen",
        2: "wrong usage, or the table was edited",
        4: "the table has such a row already, and --replace was not given",
        75: "the storage is full or did not answer; run the same command again",
    },
)
