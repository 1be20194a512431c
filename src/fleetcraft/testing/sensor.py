"""A sensor that tells what a test wrote into it: devices, figures, and every way in which they can be absent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fleetcraft.core.clock import Clock
from fleetcraft.telemetry.api import Device, DeviceState, GpuProcess, HostState, Occupancy, Reading, Reason, Sweep
from fleetcraft.telemetry.fields import NAMES

_GONE = {
    DeviceState.LOST: Reason.LOST,
    DeviceState.HUNG: Reason.HUNG,
    DeviceState.RESET_REQUIRED: Reason.RESET_REQUIRED,
    DeviceState.BROKEN: Reason.ERROR,
}


class FakeSensor:
    """Write into `values`, `reasons`, `states`, `processes`, `host`, `reason`; energy follows power and clock."""

    name = "fake"

    def __init__(self, count: int, clock: Clock, memory_bytes: int = 80 * 1024**3) -> None:
        self.reason = ""
        self.driver = "1.0"
        self.host = HostState.OK if count else HostState.NO_GPU
        self._clock = clock
        self._devices = [
            Device(uuid=f"FAKE-{index}", index=index, name="fake GPU", memory_bytes=memory_bytes, power_limit_w=700.0)
            for index in range(count)
        ]
        self.values: dict[str, dict[str, float]] = {
            device.uuid: {"util_pct": 0.0, "memory_used_bytes": 0, "memory_total_bytes": memory_bytes, "power_w": 80.0}
            for device in self._devices
        }
        self.reasons: dict[str, dict[str, Reason]] = {device.uuid: {} for device in self._devices}
        self.states: dict[str, DeviceState] = {device.uuid: DeviceState.OK for device in self._devices}
        self.processes: dict[str, tuple[GpuProcess, ...]] = {device.uuid: () for device in self._devices}
        self.notes: dict[str, tuple[str, ...]] = {}
        self.reads = 0
        self._energy_mj = dict.fromkeys(self.values, 0.0)
        self._read_mono = clock.mono()
        self._hung_utc: dict[str, float] = {}

    def devices(self) -> list[Device]:
        """See `Sensor.devices`."""
        return [device for device in self._devices if self.states[device.uuid] is not DeviceState.LOST]

    def inventory(self) -> list[Device]:
        """See `Sensor.inventory`."""
        return list(self._devices)

    def expect(self, devices: Iterable[Device]) -> None:
        """See `Sensor.expect`."""
        for device in devices:
            if device.uuid not in self.states:
                self._devices.append(device)
                self.states[device.uuid] = DeviceState.LOST
                self.notes[device.uuid] = ("missing",)

    def reset_energy(self, uuid: str) -> None:
        """Begin a new epoch of the counter, as a driver does that was loaded anew."""
        self._energy_mj[uuid] = 0.0

    def occupancy(self, uuid: str) -> Occupancy:
        """See `Sensor.occupancy`."""
        state = self.states.get(uuid)
        if state is None or state is not DeviceState.OK:
            return Occupancy(used_bytes=None, pids=None, reason=str(state or f"there is no device {uuid}"))
        used = None if "memory_used_bytes" in self.reasons[uuid] else self.values[uuid].get("memory_used_bytes")
        return Occupancy(
            used_bytes=None if used is None else int(used),
            pids=tuple(process.pid for process in self.processes[uuid]),
            reason="" if used is not None else "not reported",
        )

    def read(self) -> Sweep:
        """See `Sensor.read`."""
        self.reads += 1
        now = self._clock.mono()
        since, self._read_mono = self._read_mono, now
        for uuid, values in self.values.items():
            self._energy_mj[uuid] += max(0.0, now - since) * values.get("power_w", 0.0) * 1000
        if self.host is HostState.NO_GPU and not self._devices:
            return Sweep(state=self.host, reason=self.reason or "no GPU", driver=self.driver)
        if self.host is not HostState.OK:
            blame = Reason.HUNG if self.host is HostState.HUNG else Reason.NO_DRIVER
            state = DeviceState.HUNG if self.host is HostState.HUNG else DeviceState.BROKEN
            gone = tuple(self._absent(device.uuid, state, blame) for device in self._devices)
            return Sweep(state=self.host, readings=gone, reason=self.reason or str(self.host), driver=self.driver)
        readings = tuple(self._reading(device.uuid) for device in self._devices)
        if all(reading.state is DeviceState.HUNG for reading in readings):
            return Sweep(state=HostState.HUNG, readings=readings, reason="hung: no device answers", driver=self.driver)
        return Sweep(state=HostState.OK, readings=readings, driver=self.driver)

    def _absent(self, uuid: str, state: DeviceState, reason: Reason) -> Reading:
        return Reading(uuid=uuid, state=state, reasons=dict.fromkeys(NAMES, reason), notes=self.notes.get(uuid, ()))

    def _reading(self, uuid: str) -> Reading:
        state = self.states[uuid]
        if state is not DeviceState.OK:
            if state is DeviceState.HUNG:
                self._hung_utc.setdefault(uuid, self._clock.utc())
            return self._absent(uuid, state, _GONE[state])
        processes = self.processes[uuid]
        values = {
            "energy_mj": round(self._energy_mj[uuid]),
            "own_pids": len(processes),
            "own_memory_bytes": sum(process.memory_bytes or 0 for process in processes),
            "foreign_pids": 0,
            "foreign_memory_bytes": 0,
        } | self.values[uuid]
        reasons = {name: Reason.UNSUPPORTED for name in NAMES if name not in values} | self.reasons[uuid]
        for name in self.reasons[uuid]:
            values.pop(name, None)
        reading = Reading(
            uuid=uuid, values=values, reasons=reasons, processes=processes, notes=self.notes.get(uuid, ())
        )
        since = self._hung_utc.pop(uuid, None)
        if since is None:
            return reading
        return replace(reading, notes=(*reading.notes, f"resumed_after:{self._clock.utc() - since:.0f}s"))
