"""What strangers hold on a device, read at most once a second, and whether an ended attempt still holds one."""

from __future__ import annotations

import os

from fleetcraft.core.clock import Clock
from fleetcraft.telemetry.api import Sensor
from fleetcraft.telemetry.open import open_sensor

__all__ = ["DeviceWatch", "ForeignMemory", "open_sensor"]

_FRESH_S = 1.0


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
