"""`bundle`: the worker side in one file, for machines without an environment of ours."""

from __future__ import annotations

import argparse

from fleetcraft.actions.bundle import write_bundle
from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output
from fleetcraft.core.errors import EXIT_DONE
from fleetcraft.core.quantities import format_bytes


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", metavar="FILE", default="fleetcraft.pyz", help="where to write it (default: fleetcraft.pyz)"
    )


def _run(arguments: argparse.Namespace, output: Output) -> int:
    made = write_bundle(arguments.output)
    if output.json:
        body = {"path": made.path, "size_bytes": made.size_bytes, "sha256": made.sha256, "modules": made.modules}
        output.document(BUNDLE.schema, body)
    else:
        output.line(
            f"wrote {made.path}: {made.modules} modules, {format_bytes(made.size_bytes)}, sha256 {made.sha256[:16]}"
        )
    return EXIT_DONE


BUNDLE = Command(
    path=("bundle",),
    summary="write the worker side as one file that any Python 3.11 runs",
    description="Write one file that holds all that a machine needs to run a worker. It needs Python 3.11 and\n"
    "nothing else, and equal sources make equal bytes.",
    arguments=_arguments,
    run=_run,
    uses_spool=False,
    examples=(
        Example(line="fleetcraft bundle --output fleetcraft.pyz", what="Write it."),
        Example(
            line="fleetcraft bundle --output /tmp/fleetcraft.pyz && python3 /tmp/fleetcraft.pyz --version",
            what="Write it and run it.",
        ),
    ),
    exits={75: "the storage is full or did not answer; run the same command again"},
)
