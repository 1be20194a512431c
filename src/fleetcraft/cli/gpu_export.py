"""`gpu export`: GPUs as OpenMetrics, in a file or over HTTP, or as series of an experiment tracker."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.fleet_door import whole_program
from fleetcraft.cli.gpu_classify import look_arguments, looker
from fleetcraft.cli.output import Output
from fleetcraft.cli.parser import duration
from fleetcraft.core.errors import EXIT_DONE, FleetcraftError, UsageError

if TYPE_CHECKING:
    from fleetcraft.surfaces.gpu_forward import Forwarder
    from fleetcraft.wiring.gpu_look import Looker

_INTERVAL_S = 30.0
_LEAST_S = 1.0


def _arguments(parser: argparse.ArgumentParser) -> None:
    look_arguments(parser)
    group = parser.add_argument_group("where to")
    group.add_argument(
        "--to", metavar="FILE", help="a text file, replaced whole; without any of these: standard output"
    )
    group.add_argument(
        "--listen", metavar="ADDRESS:PORT", help="answer on http://ADDRESS:PORT/metrics until interrupted"
    )
    group.add_argument("--wandb", metavar="PROJECT", help="a run of this W&B project, by its library")
    group.add_argument("--mlflow", metavar="EXPERIMENT", help="a run of this MLflow experiment, by its library")
    group.add_argument(
        "--interval", metavar="SPAN", type=duration("--interval"),
        help=f"time between looks (default: W&B and MLflow {_INTERVAL_S:g}s; a file is written once without this)",
    )  # fmt: skip
    group.add_argument("--once", action="store_true", help="with --wandb or --mlflow: send once, and end")


def _run(arguments: argparse.Namespace, output: Output) -> int:
    chosen = [name for name in ("to", "listen", "wandb", "mlflow") if getattr(arguments, name)]
    if len(chosen) > 1:
        raise UsageError(f"--{chosen[0]} and --{chosen[1]} are two places.", hint="Run the command once for each.")
    if arguments.interval is not None and arguments.interval < _LEAST_S:
        raise UsageError("--interval must be at least 1s.", hint="Files are read at each look.")
    with whole_program("GPUs"):
        from fleetcraft.surfaces import gpu_export as action
    made = looker(arguments)
    if arguments.listen:
        return _listen(arguments, made, output)
    if arguments.wandb or arguments.mlflow:
        return _forward(arguments, made, output)
    if not arguments.to:
        output.stdout.write(action.render(made.look()).decode())
        return EXIT_DONE
    while True:
        action.write_file(arguments.to, made.look())
        if arguments.interval is None:
            return EXIT_DONE
        time.sleep(arguments.interval)


def _listen(arguments: argparse.Namespace, made: Looker, output: Output) -> int:
    from fleetcraft.surfaces import gpu_export as action

    address = action.parse_listen(arguments.listen)
    server = action.make_server(address, action.Served(made.look, arguments.interval or 5.0))
    host, port = server.server_address[:2]
    output.note(f"metrics on http://{host!s}:{port}/metrics; interrupt to end")
    try:
        server.serve_forever()
    finally:
        server.server_close()
    return EXIT_DONE


def _forward(arguments: argparse.Namespace, made: Looker, output: Output) -> int:
    from fleetcraft.surfaces import gpu_forward as action

    config = {"spool": made.spool.layout.root if made.spool else "", **made.options.thresholds.as_json()}
    forwarder: Forwarder = (
        action.WandbForwarder(arguments.wandb, config)
        if arguments.wandb
        else action.MlflowForwarder(arguments.mlflow, config)
    )
    step = 0
    try:
        while True:
            try:
                forwarder.send(action.values_of(made.look()), step)
            except (FleetcraftError, OSError) as error:
                if arguments.once:
                    raise
                output.note(f"this picture was not sent: {error}")
            step += 1
            if arguments.once:
                return EXIT_DONE
            time.sleep(arguments.interval or _INTERVAL_S)
    finally:
        forwarder.close()


EXPORT = Command(
    path=("gpu", "export"),
    summary="GPUs as OpenMetrics in a file or over HTTP, or to W&B and MLflow",
    description="Write what is known of every GPU now as OpenMetrics text. A value that is not known has no sample,\n"
    "and never a 0. No port is opened without --listen. W&B and MLflow take part through their own libraries.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft gpu export", what="Once, on standard output."),
        Example(
            line="fleetcraft gpu export --to gpu.prom --interval 30s",
            what="For a text file collector.",
        ),
        Example(line="fleetcraft gpu export --listen 127.0.0.1:9877", what="To be scraped, from this host alone."),
        Example(line="fleetcraft gpu export --wandb my-project", what="As a run of W&B, every 30 seconds."),
    ),
    exits={130: "interrupted"},
)
