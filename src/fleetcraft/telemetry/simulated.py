"""Simulated GPUs for machines without one: they do what the tasks on their slots do, and say that they are simulated.

Nothing is drawn at random: the same tasks and the same clock give the same figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.telemetry.api import Device, DeviceState, GpuProcess, HostState, Occupancy, Reading, Reason, Sweep
from fleetcraft.telemetry.fields import NAMES
from fleetcraft.telemetry.simulated_load import Load, Loads, Seen, own_processes

_MEMORY_BYTES = 80 * 1024**3
IDLE_W = 80.0
W_PER_PCT = 6.2
_LIMIT_W = 700.0
_CLOCK_MHZ = 1980
_IDLE_CLOCK_MHZ = 345
_PREFIX = "SIM-"
# What the counters of a real GPU would show beside the share of busy time.
_SHARES = {"sm_active_pct": 0.85, "sm_occupancy_pct": 0.4, "tensor_pct": 0.5, "dram_pct": 0.35, "fp16_pct": 0.1}


class SimulatedSensor:
    """`count` devices whose UUIDs begin with SIM, so that nobody takes them for real."""

    name = "simulated"

    def __init__(
        self,
        count: int,
        host: str,
        memory_bytes: int = _MEMORY_BYTES,
        *,
        clock: Clock | None = None,
        processes: Callable[[], Iterable[Seen]] | None = None,
        lives: str = "",
    ) -> None:
        self.reason = ""
        self._clock = clock or SystemClock()
        self._memory_bytes = memory_bytes
        self._devices = [
            Device(
                uuid=f"{_PREFIX}{host}-{index}",
                index=index,
                name="simulated GPU",
                memory_bytes=memory_bytes,
                vendor="simulated",
                power_limit_w=_LIMIT_W,
                multiprocessors=132,
                max_sm_clock_mhz=_CLOCK_MHZ,
            )
            for index in range(count)
        ]
        self._expected: dict[str, Device] = {}
        self._loads = Loads(memory_bytes, processes or (lambda: own_processes(f"{_PREFIX}{host}-", lives)))
        self._read_mono = self._clock.mono()
        self._power_w = {device.uuid: IDLE_W for device in self._devices}
        self._energy_mj = {device.uuid: 0.0 for device in self._devices}
        self.used_bytes: dict[str, int] = {}

    def devices(self) -> list[Device]:
        """See `Sensor.devices`."""
        return list(self._devices)

    def inventory(self) -> list[Device]:
        """See `Sensor.inventory`."""
        return [*self._devices, *self._expected.values()]

    def expect(self, devices: Iterable[Device]) -> None:
        """See `Sensor.expect`."""
        here = {device.uuid for device in self._devices}
        self._expected.update((device.uuid, device) for device in devices if device.uuid not in here)

    def occupancy(self, uuid: str) -> Occupancy:
        """See `Sensor.occupancy`; foreign use is whatever a test puts into `used_bytes`.

        Tasks of ours are left out: a worker asks at the end of every attempt, and a look over /proc each time would
        cost more than short tasks do. What they hold is covered by their reservations.
        """
        if all(uuid != device.uuid for device in self._devices):
            return Occupancy(used_bytes=None, pids=None, reason=f"there is no device {uuid}")
        return Occupancy(used_bytes=self.used_bytes.get(uuid, 0), pids=())

    def read(self) -> Sweep:
        """See `Sensor.read`."""
        now = self._clock.mono()
        since, self._read_mono = self._read_mono, now
        loads = self._loads.now() if self._devices else {}
        readings = []
        for device in self._devices:
            # As a counter does: what was drawn since the last reading was drawn at the power told then.
            self._energy_mj[device.uuid] += max(0.0, now - since) * self._power_w[device.uuid] * 1000
            readings.append(self._reading(device, loads.get(device.uuid, [])))
        readings += [
            Reading(uuid=uuid, state=DeviceState.LOST, reasons=dict.fromkeys(NAMES, Reason.LOST), notes=("missing",))
            for uuid in self._expected
        ]
        if not readings:
            return Sweep(state=HostState.NO_GPU, reason="no GPU was asked for", driver=self.name)
        return Sweep(state=HostState.OK, readings=tuple(readings), driver=self.name)

    def _reading(self, device: Device, loads: list[Load]) -> Reading:
        util = min(100.0, sum(load.util_pct for load in loads))
        foreign = self.used_bytes.get(device.uuid, 0)
        own = min(sum(load.memory_bytes for load in loads), max(0, self._memory_bytes - foreign))
        power = IDLE_W + W_PER_PCT * util
        self._power_w[device.uuid] = power
        values: dict[str, float] = {
            "util_pct": util,
            "memory_used_bytes": own + foreign,
            "memory_total_bytes": self._memory_bytes,
            "memory_reserved_bytes": 0,
            "power_w": round(power, 2),
            "power_averaged": 0,
            "power_scope": 0,
            "energy_mj": round(self._energy_mj[device.uuid]),
            "temperature_c": round(30 + 0.45 * util),
            "sm_clock_mhz": _CLOCK_MHZ if util else _IDLE_CLOCK_MHZ,
            "memory_clock_mhz": 2619 if util else 1593,
            "throttle_mask": 0 if util else 1,  # bit 0: nothing to do
            "performance_state": 0 if util else 8,
            "ecc_corrected": 0,
            "ecc_uncorrected": 0,
            "remapped_rows": 0,
            "xid_events": 0,
            "own_pids": sum(len(load.pids) for load in loads),
            "own_memory_bytes": own,
            "foreign_pids": 0,
            "foreign_memory_bytes": foreign,
        }
        values.update((name, round(util * share, 2)) for name, share in _SHARES.items())
        reasons = {name: Reason.UNSUPPORTED for name in NAMES if name not in values}
        reasons["xid"] = Reason.NOT_FOUND
        # A whole attempt's memory is told at its first process, as a context has one owner.
        processes = tuple(
            GpuProcess(pid=pid, memory_bytes=0 if place else load.memory_bytes)
            for load in loads
            for place, pid in enumerate(load.pids)
        )
        return Reading(uuid=device.uuid, values=values, reasons=reasons, processes=processes)
