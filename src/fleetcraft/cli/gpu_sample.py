"""`gpu sample`: measure the GPUs of this machine, once for a look or until told to end."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output
from fleetcraft.cli.parser import duration, is_spool_named, spool_root
from fleetcraft.core.errors import EXIT_DONE, UsageError

if TYPE_CHECKING:
    from fleetcraft.telemetry.api import Device, Reading, Sensor, Sweep

_HEADS = ("GPU", "UUID", "NAME", "STATE", "UTIL", "SM", "TENSOR", "MEMORY", "POWER", "TEMP", "OURS", "OTHERS", "ABSENT")
_GIB = 1 << 30


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to", metavar="DIR", help="a telemetry folder (default: the telemetry of the spool named by --spool)"
    )
    parser.add_argument(
        "--interval", metavar="TIME", type=duration("--interval"), default=10.0,
        help="how often, from 1s to 60s (default: 10s)",
    )  # fmt: skip
    parser.add_argument(
        "--gpus", metavar="WHICH", default="auto",
        help="auto: all that the driver shows (default); a number; or simulated:N, for trying things out",
    )  # fmt: skip
    parser.add_argument("--once", action="store_true", help="print what the GPUs do now, write nothing, and end")
    parser.add_argument(
        "--minded", action="store_true", help="end with the process that started this, for scripts of jobs"
    )


def _run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.once:
        return _once(arguments, output)
    from fleetcraft.telemetry.sampler import SamplerOptions, Waiter, run

    environment = os.environ
    if not arguments.to and (arguments.to is not None or not is_spool_named(arguments)):
        raise UsageError(
            "There is no place to write to.", hint="Name a folder with --to, or a spool; --once only shows a table."
        )
    spool = os.path.abspath(spool_root(arguments)) if arguments.to is None else ""
    options = SamplerOptions(
        root=os.path.abspath(arguments.to) if arguments.to is not None else os.path.join(spool, "telemetry"),
        interval_s=arguments.interval, gpus=arguments.gpus, spool=os.path.basename(spool),
        job=environment.get("SLURM_JOB_ID", environment.get("FLEETCRAFT_JOB_ID", "")),
        step=environment.get("SLURM_STEP_ID", ""), fleet=environment.get("FLEETCRAFT_FLEET", ""),
        minded=arguments.minded,
    )  # fmt: skip
    if spool and not os.path.exists(os.path.join(spool, "spool.json")):
        raise UsageError(f"There is no spool at {spool}.", hint="Name a folder of its own with --to.")
    # A script's sampler has no open standard input to mind; its parent is enough.
    with Waiter(minded=arguments.minded, mind_input=False) as waiter:
        code = run(options, wait=waiter, say=output.note, why_over=lambda: waiter.over or "asked to end")
    if output.json:
        output.document(SAMPLE.schema, {"root": options.root, "exit": code})
    return code


def _once(arguments: argparse.Namespace, output: Output) -> int:
    from fleetcraft.telemetry.energy import host_energy_uj
    from fleetcraft.telemetry.open import open_sensor

    sensor = open_sensor(arguments.gpus)
    sweep, devices = sensor.read(), {device.uuid: device for device in sensor.inventory()}
    if output.json:
        output.document(SAMPLE.schema, _as_json(sensor, sweep, devices))
        return EXIT_DONE
    from fleetcraft.cli.tables import table

    if sweep.reason or not sweep.readings:
        output.line(f"{sweep.state.value}: {sweep.reason or sensor.reason or 'no GPU can be used here'}")
    if sweep.readings:
        rows = [_cells(reading, devices.get(reading.uuid)) for reading in sweep.readings]
        output.lines(table(output, _HEADS, rows))
        for reading in sweep.readings:
            if reading.notes:
                output.line(f"{reading.uuid}: {', '.join(reading.notes)}")
        output.line(f"driver {sweep.driver or 'unknown'}, read by {sensor.name}")
        told = host_energy_uj()
        counter = f"its counter stands at {told / 1e6:,.0f} J" if isinstance(told, int) else f"not told ({told.value})"
        output.line(f"energy of the first processor: {counter}")
    return EXIT_DONE


def _as_json(sensor: Sensor, sweep: Sweep, devices: dict[str, Device]) -> dict[str, object]:
    from fleetcraft.telemetry.energy import host_energy_uj

    energy = host_energy_uj()
    return {
        "sensor": sensor.name,
        "state": sweep.state.value,
        "reason": sweep.reason,
        "driver": sweep.driver,
        "host_energy_uj": energy if isinstance(energy, int) else None,
        "host_energy_reason": None if isinstance(energy, int) else energy.value,
        "gpus": [
            {
                "uuid": reading.uuid,
                "index": devices[reading.uuid].index if reading.uuid in devices else None,
                "name": devices[reading.uuid].name if reading.uuid in devices else None,
                "state": reading.state.value,
                "values": dict(reading.values),
                "absent": {name: reason.value for name, reason in reading.reasons.items()},
                "notes": list(reading.notes),
            }
            for reading in sweep.readings
        ],
    }


def _cells(reading: Reading, device: Device | None) -> tuple[str, ...]:
    def shown(name: str, unit: str, scale: float = 1.0, digits: int = 0) -> str:
        value = reading.values.get(name)
        return "-" if value is None else f"{value / scale:,.{digits}f}{unit}"

    return (
        "?" if device is None else str(device.index),
        reading.uuid,
        "" if device is None else device.name,
        reading.state.value,
        shown("util_pct", " %"),
        shown("sm_active_pct", " %"),
        shown("tensor_pct", " %"),
        f"{shown('memory_used_bytes', '', _GIB, 1)} of {shown('memory_total_bytes', ' GiB', _GIB, 1)}",
        shown("power_w", " W"),
        shown("temperature_c", " C"),
        shown("own_pids", ""),
        shown("foreign_pids", ""),
        ", ".join(sorted({reason.value for reason in reading.reasons.values()})),
    )


SAMPLE = Command(
    path=("gpu", "sample"),
    summary="measure the GPUs of this machine, once or all the time",
    description="Append what every GPU does to a file of this machine, until Ctrl-C or SIGTERM. Workers do this by\n"
    "themselves; this is for machines without one. A value that cannot be read is absent, with its reason, never 0.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft gpu sample --once", what="What the GPUs do now, and write nothing."),
        Example(line="fleetcraft gpu sample --to telemetry --interval 5s", what="Measure every five seconds."),
        Example(line="fleetcraft gpu sample --once --gpus simulated:2 --json", what="Try it out without a GPU."),
    ),
    exits={75: "another sampler measures these GPUs, or the storage did not answer"},
)
