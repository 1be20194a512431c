"""The sensors that the suite runs over; a new one joins with a function here that yields its rig."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetcraft.telemetry.amd import AmdSensor
from fleetcraft.telemetry.api import DeviceState, GpuProcess, HostState, Reason, Sensor
from fleetcraft.telemetry.simulated import SimulatedSensor
from fleetcraft.telemetry.simulated_load import Seen
from fleetcraft.telemetry.smi import SmiSensor
from fleetcraft.testing.clock import ManualClock
from fleetcraft.testing.sensor import FakeSensor
from tests.conformance.sensors.rigs import Rig
from tests.support.fake_amdsmi import FakeAmdsmi
from tests.support.fake_smi import FakeSmi
from tests.support.mock_nvml import MockNvml

_GPUS = 3
_CAN = {
    "simulated": frozenset({"load", "energy"}),
    "fake": frozenset({"load", "energy", "lose", "hang", "fail", "break"}),
    "nvml": frozenset({"load", "energy", "lose", "hang", "fail", "break"}),
    "nvml-old": frozenset({"load", "energy", "lose", "hang", "fail", "break"}),
    # One program speaks of all GPUs: it hangs for all of them, which tests/unit/telemetry/test_smi.py looks at.
    "amd": frozenset({"energy", "lose", "break"}),
    "nvidia-smi": frozenset({"load", "lose", "fail", "break"}),
}


def simulated_rig(tmp_path, monkeypatch) -> Iterator[Rig]:
    clock = ManualClock()
    running: list[Seen] = []
    yield Rig(
        name="simulated",
        sensor=SimulatedSensor(_GPUS, "here", clock=clock, processes=lambda: list(running)),
        can=_CAN["simulated"],
        advance=clock.advance,
        load=lambda uuid: running.append(Seen(pid=4242, mark="a", uuids=(uuid,))),
    )


def fake_rig(tmp_path, monkeypatch) -> Iterator[Rig]:
    clock = ManualClock()
    sensor = FakeSensor(_GPUS, clock)

    def load(uuid: str) -> None:
        sensor.values[uuid].update(util_pct=90.0, power_w=600.0, memory_used_bytes=2**30)
        sensor.processes[uuid] = (GpuProcess(pid=4242, memory_bytes=2**30),)

    def back() -> None:
        sensor.states = dict.fromkeys(sensor.states, DeviceState.OK)

    def break_host() -> None:
        sensor.host = HostState.BROKEN

    yield Rig(
        name="fake",
        sensor=sensor,
        can=_CAN["fake"],
        advance=clock.advance,
        load=load,
        lose=lambda uuid: sensor.states.update({uuid: DeviceState.LOST}),
        hang=lambda uuid: sensor.states.update({uuid: DeviceState.HUNG}),
        back=back,
        fail=lambda uuid: sensor.reasons[uuid].update(power_w=Reason.NO_PERMISSION),
        break_host=break_host,
        again=lambda: sensor,
    )


def _nvml(name: str, tmp_path, monkeypatch, *defines: str) -> Iterator[Rig]:
    mock = MockNvml(monkeypatch, tmp_path, *defines)
    mock.tell(gpus=_GPUS, gpm="1:50,2:40,3:10,5:37.25,10:5,11:0,12:3,13:1")
    clock = ManualClock()

    def build() -> Sensor:
        return mock.sensor(0.6, clock=clock, own=lambda pid: pid == 4242)

    sensor = build()
    energy = dict.fromkeys(range(_GPUS), 1_000_000)
    index_of = {device.uuid: device.index for device in sensor.devices()}

    def advance(seconds: float) -> None:
        clock.advance(seconds)
        for index in energy:
            energy[index] += round(seconds * 500_000)
        mock.tell(energy=",".join(f"{index}:{value}" for index, value in energy.items()))

    def load(uuid: str) -> None:
        index = index_of[uuid]
        mock.tell(util=f"{index}:90", memory=f"{index}:1024", procs=f"{index}:4242:{2**30}")

    advance(0.0)
    yield Rig(
        name=name,
        sensor=sensor,
        can=_CAN[name],
        advance=advance,
        load=load,
        lose=lambda uuid: mock.tell(fail=f"{index_of[uuid]}:GetMemoryInfo=15"),
        hang=lambda uuid: mock.tell(block=f"{index_of[uuid]}:GetTotalEnergyConsumption"),
        back=mock.release,
        fail=lambda uuid: mock.tell(fail=f"{index_of[uuid]}:GetPowerUsage=4"),
        break_host=lambda: mock.tell(init=18),
        again=build,
    )
    mock.release()


def nvml_rig(tmp_path, monkeypatch) -> Iterator[Rig]:
    yield from _nvml("nvml", tmp_path, monkeypatch)


def nvml_old_rig(tmp_path, monkeypatch) -> Iterator[Rig]:
    yield from _nvml("nvml-old", tmp_path, monkeypatch, "OLD_DRIVER")


def smi_rig(tmp_path, monkeypatch) -> Iterator[Rig]:
    fake = FakeSmi(tmp_path, _GPUS)
    clock = ManualClock()

    def build() -> Sensor:
        return SmiSensor(
            20.0, clock=clock, program=fake.program, own=lambda pid: pid == 4242, all_pids=True, env={}
        )  # fmt: skip

    def change(uuid: str, **told: object) -> None:
        fake.gpu(uuid).update(told)
        fake.write()

    def break_host() -> None:
        fake.told["fails"] = ["Failed to initialize NVML: Driver/library version mismatch\n", 18]
        fake.write()

    yield Rig(
        name="nvidia-smi",
        sensor=build(),
        can=_CAN["nvidia-smi"],
        advance=clock.advance,
        load=lambda uuid: change(uuid, **{"utilization.gpu": 90, "memory.used": 1024, "processes": [[4242, 1024]]}),
        lose=lambda uuid: change(uuid, lost=True),
        fail=lambda uuid: change(uuid, **{"power.draw.instant": "[Insufficient Permissions]"}),
        break_host=break_host,
        again=build,
    )


def amd_rig(tmp_path, monkeypatch) -> Iterator[Rig]:
    fake = FakeAmdsmi(_GPUS)
    clock = ManualClock()

    def build() -> Sensor:
        return AmdSensor(clock=clock, binding=lambda: fake, env={})

    def advance(seconds: float) -> None:
        clock.advance(seconds)
        fake.draw(seconds)

    sensor = build()
    sensor.devices()
    yield Rig(
        name="amd",
        sensor=sensor,
        can=_CAN["amd"],
        advance=advance,
        lose=fake.lose,
        break_host=fake.break_all,
        again=lambda: sensor,
    )


_RIGS = {
    "amd": amd_rig,
    "simulated": simulated_rig,
    "fake": fake_rig,
    "nvml": nvml_rig,
    "nvml-old": nvml_old_rig,
    "nvidia-smi": smi_rig,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test over all sensors that can do what it needs."""
    if "rig" not in metafunc.fixturenames:
        return
    needed = {mark.args[0] for mark in metafunc.definition.iter_markers("needs")}
    metafunc.parametrize(
        "rig",
        [
            pytest.param(name, marks=[pytest.mark.needs_command("gcc")] if name.startswith("nvml") else [])
            for name in _RIGS
            if needed <= _CAN[name]
        ],
        indirect=True,
    )


@pytest.fixture
def rig(request, tmp_path, monkeypatch) -> Iterator[Rig]:
    yield from _RIGS[request.param](tmp_path, monkeypatch)
