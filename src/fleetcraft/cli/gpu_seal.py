"""`gpu seal`: old telemetry as Parquet."""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import duration, spool_root
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED, UsageError
from fleetcraft.core.quantities import format_bytes

if TYPE_CHECKING:
    from fleetcraft.actions.gpu_seal import Sealed


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", metavar="PATH", nargs="*", help="telemetry folders or segments (default: the telemetry of the spool)"
    )
    parser.add_argument(
        "--older-than", metavar="TIME", type=duration("--older-than"), default=86_400.0,
        help="also seal what a crash left without an end, when it did not grow for so long (default: 1d)",
    )  # fmt: skip
    parser.add_argument(
        "--remove", action="store_true", help="remove each original after what was sealed was compared with it"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be sealed")


def _run(arguments: argparse.Namespace, output: Output) -> int:
    try:
        from fleetcraft.actions import gpu_seal as action
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Telemetry cannot be sealed here: there is no module {error.name}.",
            hint="The bundle has only the worker side; `pip install 'fleetcraft[analysis]'` has it all.",
        ) from error

    paths = arguments.paths or [os.path.join(spool_root(arguments), "telemetry")]
    done = list(
        action.seal(
            paths, now_utc=time.time(), older_s=action.older_s(arguments.older_than), remove=arguments.remove,
            dry_run=arguments.dry_run,
        )
    )  # fmt: skip
    failed = arguments.remove and any(one.detail for one in done)
    if output.json:
        output.document(SEAL.schema, {"dry_run": arguments.dry_run, "segments": [one.as_json() for one in done]})
    else:
        _tell(done, output, dry_run=arguments.dry_run)
    return EXIT_FAILED if failed else EXIT_DONE


def _tell(done: list[Sealed], output: Output, *, dry_run: bool) -> None:
    from fleetcraft.actions.gpu_seal import DONE

    sealed = [one for one in done if one.state == DONE]
    for one in done:
        if one.detail:
            output.line(f"{printable(one.path)}: {printable(one.detail)}")
    before, after = sum(one.bytes_before for one in sealed), sum(one.bytes_after for one in sealed)
    if dry_run:
        output.line(f"would seal {count(len(sealed), 'segment')}, {format_bytes(before)}")
    else:
        text = f"sealed {count(len(sealed), 'segment')}"
        output.line(f"{text}: {format_bytes(before)} became {format_bytes(after)}" if sealed else text)
        if removed := sum(one.removed for one in done):
            output.line(f"removed {count(removed, 'original')}")
    states = [one.state for one in done if one.state != DONE and not one.removed]
    for state in sorted(set(states)):
        output.line(f"{states.count(state)} {state}")


SEAL = Command(
    path=("gpu", "seal"),
    summary="turn old telemetry into Parquet, a fraction of the size",
    description="Write every segment that has ended as a Parquet file with a digest, beside it. Originals stay unless\n"
    "--remove is given, and then each goes only after what is on disk was compared with it. Sealed telemetry is read\n"
    "like any other. Needs polars: pip install 'fleetcraft[analysis]'.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft gpu seal --dry-run", what="Say what would be sealed."),
        Example(line="fleetcraft gpu seal --remove", what="Seal what has ended, and remove the originals."),
    ),
    exits={1: "with --remove: an original had to stay"},
)
