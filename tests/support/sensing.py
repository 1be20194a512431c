"""A sensor that says what a test tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fleetcraft.telemetry.api import Device, HostState, Occupancy, Reading, Sweep


class ScriptedSensor:
    """`count` devices; `speak(tick)` gives the sweep of a tick, by default everything is idle and well."""

    name = "scripted"
    reason = ""

    def __init__(self, count: int = 2, speak: Callable[[int], Sweep] | None = None) -> None:
        self.listed = [device(n) for n in range(count)]
        self.reads = 0
        self.expected: list[Device] = []
        self.speak = speak or (lambda _tick: Sweep(state=HostState.OK, readings=self.idle()))

    def idle(self) -> tuple[Reading, ...]:
        return tuple(
            Reading(uuid=one.uuid, values={"util_pct": 0.0, "memory_used_bytes": 0.0, "own_pids": 0, "foreign_pids": 0})
            for one in self.listed
        )

    def devices(self) -> list[Device]:
        return list(self.listed)

    def inventory(self) -> list[Device]:
        return list(self.listed)

    def expect(self, devices: Iterable[Device]) -> None:
        self.expected += devices

    def occupancy(self, uuid: str) -> Occupancy:
        return Occupancy(used_bytes=0, pids=())

    def read(self) -> Sweep:
        self.reads += 1
        return self.speak(self.reads - 1)


def device(n: int) -> Device:
    return Device(uuid=f"GPU-{n:08d}", index=n, name="a GPU of a test", memory_bytes=80 << 30)
