"""Which sensor the word of `--gpus` means, and what is tried where the first one does not serve."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterable
from dataclasses import replace

from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.core.errors import UsageError
from fleetcraft.telemetry.api import Device, HostState, Occupancy, Sensor, Sweep
from fleetcraft.telemetry.nvml import NvmlSensor
from fleetcraft.telemetry.simulated import SimulatedSensor

_DEADLINE_S = 10.0
_AMD_SIGN = "/dev/kfd"


def open_sensor(gpus: str, *, clock: Clock | None = None, deadline_s: float = _DEADLINE_S, lives: str = "") -> Sensor:
    """The sensor for `auto`, `none`, a number, or `simulated:N`.

    `lives` is the folder of the worker lives whose tasks simulated devices follow; without it, those of all spools.
    Raises UsageError when a number of GPUs was asked for and fewer are there.
    """
    clock = clock or SystemClock()
    host = socket.gethostname() or "host"
    if gpus.startswith("simulated:"):
        return SimulatedSensor(_number(gpus.partition(":")[2], gpus), host, clock=clock, lives=lives)
    if gpus in ("none", "0"):
        return SimulatedSensor(0, host, clock=clock)
    if gpus == "auto":
        return find_sensor(clock, deadline_s)
    count = _number(gpus, gpus)
    sensor = find_sensor(clock, deadline_s)
    found = sensor.devices()
    if len(found) < count:
        reason = f" ({sensor.reason})" if sensor.reason else ""
        raise UsageError(
            f"--gpus {gpus} was asked for, but {len(found)} can be used here{reason}.",
            hint="Use --gpus auto, or --gpus simulated:N to try things out. `fleetcraft doctor` looks closer.",
        )
    return FirstOf(sensor, count)


def find_sensor(clock: Clock, deadline_s: float) -> Sensor:
    """The driver's library; else `nvidia-smi` where only the package for it is missing, else AMD's tools."""
    nvml = NvmlSensor(deadline_s, clock=clock)
    other: Sensor
    if nvml.lacks_binding and shutil.which("nvidia-smi"):
        from fleetcraft.telemetry.smi import SmiSensor

        other = SmiSensor(deadline_s, clock=clock)
    elif nvml.state is HostState.NO_GPU and os.path.exists(_AMD_SIGN):
        from fleetcraft.telemetry.amd import AmdSensor

        other = AmdSensor(deadline_s, clock=clock)
    else:
        return nvml
    # Neither serves: what the library said is nearer to the cause.
    return other if other.devices() or other.reason.startswith("hung") else nvml


class FirstOf:
    """The first few devices of another sensor, and what belongs to them."""

    def __init__(self, sensor: Sensor, count: int) -> None:
        self._sensor = sensor
        self.name = sensor.name
        self.reason = sensor.reason
        self._told: set[str] = set()
        self._tell(sensor.devices()[:count])

    def _tell(self, devices: Iterable[Device]) -> None:
        self._told.update(uuid for device in devices for uuid in (device.uuid, device.parent) if uuid)

    def devices(self) -> list[Device]:
        """See `Sensor.devices`. The choice is made once: a GPU that is lost is not replaced by somebody else's."""
        found = self._sensor.devices()
        self.reason = self._sensor.reason
        return [device for device in found if device.uuid in self._told]

    def inventory(self) -> list[Device]:
        """See `Sensor.inventory`."""
        return [device for device in self._sensor.inventory() if device.uuid in self._told]

    def expect(self, devices: Iterable[Device]) -> None:
        """See `Sensor.expect`."""
        known = list(devices)
        self._sensor.expect(known)
        self._tell(known)

    def occupancy(self, uuid: str) -> Occupancy:
        """See `Sensor.occupancy`."""
        return self._sensor.occupancy(uuid)

    def read(self) -> Sweep:
        """See `Sensor.read`."""
        sweep = self._sensor.read()
        self.reason = self._sensor.reason
        return replace(sweep, readings=tuple(reading for reading in sweep.readings if reading.uuid in self._told))


def _number(text: str, word: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"--gpus {word} is not understood.", hint="Give auto, none, a number, or simulated:N with a number for N."
        )
    return int(text)
