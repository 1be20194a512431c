"""Which sensor a worker uses, and what strangers hold on a device, read at most once a second."""

from __future__ import annotations

import os

from fleetcraft.core.clock import Clock
from fleetcraft.core.errors import UsageError
from fleetcraft.spool.host import host_name
from fleetcraft.telemetry.api import Device, Sensor
from fleetcraft.telemetry.nvml import NvmlSensor
from fleetcraft.telemetry.simulated import SimulatedSensor

_FRESH_S = 1.0


def open_sensor(gpus: str) -> Sensor:
    """The sensor for `auto`, `none`, a number, or `simulated:N`.

    Raises UsageError when a number of GPUs was asked for and fewer are there.
    """
    if gpus.startswith("simulated:"):
        return SimulatedSensor(int(gpus.partition(":")[2]), host_name())
    if gpus in ("none", "0"):
        return SimulatedSensor(0, host_name())
    sensor = NvmlSensor()
    if gpus == "auto":
        return sensor
    found = sensor.devices()
    if len(found) < int(gpus):
        reason = f" ({sensor.reason})" if sensor.reason else ""
        raise UsageError(
            f"--gpus {gpus} was asked for, but {len(found)} can be used here{reason}.",
            hint="Use --gpus auto, or --gpus simulated:N to try things out. `fleetcraft doctor` looks closer.",
        )
    return _FirstOf(sensor, int(gpus))


class _FirstOf(NvmlSensor):
    """The first few devices of another sensor."""

    def __init__(self, sensor: NvmlSensor, count: int) -> None:
        self.__dict__.update(sensor.__dict__)
        self._count = count

    def devices(self) -> list[Device]:
        """See `Sensor.devices`."""
        return super().devices()[: self._count]


class ForeignMemory:
    """Bytes that processes which are not ours hold on a device; None when the driver does not say.

    Memory is reported per device, not per process, so a device on which any process of ours runs counts as
    free of strangers: what ours hold is covered by their reservations.
    """

    def __init__(self, sensor: Sensor, clock: Clock) -> None:
        self._sensor = sensor
        self._clock = clock
        self._known: dict[str, tuple[float, int | None]] = {}

    def __call__(self, uuid: str) -> int | None:
        """What strangers hold now."""
        now = self._clock.mono()
        known = self._known.get(uuid)
        if known is not None and now - known[0] < _FRESH_S:
            return known[1]
        occupancy = self._sensor.occupancy(uuid)
        value = occupancy.used_bytes
        if occupancy.pids and any(_is_ours(pid) for pid in occupancy.pids):
            value = 0
        self._known[uuid] = (now, value)
        return value


class DeviceWatch:
    """Whether a device still shows a process of an attempt that has ended: only then its slot is not free yet."""

    def __init__(self, sensor: Sensor) -> None:
        self._sensor = sensor

    def lingers(self, uuids: tuple[str, ...]) -> bool:
        """True when the driver lists a process that is gone already: its memory is still being given back."""
        for uuid in uuids:
            pids = self._sensor.occupancy(uuid).pids or ()
            if any(not os.path.exists(f"/proc/{pid}") for pid in pids):
                return True
        return False


def _is_ours(pid: int) -> bool:
    if not os.path.exists(f"/proc/{pid}"):
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as source:
            return b"FLEETCRAFT_LIFE=" in source.read()
    except OSError:
        return False
