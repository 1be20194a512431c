"""Simulated GPUs for machines without one: slots behave as on a real node, and say that they are simulated."""

from __future__ import annotations

from fleetcraft.telemetry.api import Device, Occupancy

_MEMORY_BYTES = 80 * 1024**3


class SimulatedSensor:
    """`count` devices whose UUIDs begin with SIM, so that nobody takes them for real."""

    name = "simulated"
    reason = ""

    def __init__(self, count: int, host: str, memory_bytes: int = _MEMORY_BYTES) -> None:
        self._devices = [
            Device(uuid=f"SIM-{host}-{index}", index=index, name="simulated GPU", memory_bytes=memory_bytes)
            for index in range(count)
        ]
        self.used_bytes: dict[str, int] = {}

    def devices(self) -> list[Device]:
        """See `Sensor.devices`."""
        return list(self._devices)

    def occupancy(self, uuid: str) -> Occupancy:
        """See `Sensor.occupancy`; foreign use is whatever a test puts into `used_bytes`."""
        return Occupancy(used_bytes=self.used_bytes.get(uuid, 0), pids=())
