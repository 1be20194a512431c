"""The sensor that asks the `nvidia-smi` program: what it is asked, how it is refused, and what hangs."""

from __future__ import annotations

import time

import pytest

from fleetcraft.telemetry.api import DeviceState, HostState, Reason
from fleetcraft.telemetry.smi import SmiSensor
from fleetcraft.telemetry.smi_text import lost_bus_ids, processes_of, trouble_of
from tests.support.fake_smi import FakeSmi


@pytest.fixture
def fake(tmp_path):
    return FakeSmi(tmp_path, 3)


def sensor_of(fake, **more):
    return SmiSensor(
        more.pop("deadline_s", 20.0), program=fake.program, own=lambda pid: pid == 7, all_pids=True,
        env=more.pop("env", {}),
    )  # fmt: skip


def test_it_is_asked_without_units_and_without_a_locale(fake):
    sweep = sensor_of(fake).read()
    assert sweep.state is HostState.OK
    assert sweep.driver == "550.54.15"
    words, locale = fake.asked()[0]
    assert locale == "C"
    assert words[1] == "--format=csv,noheader,nounits"
    assert words[0].startswith("--query-gpu=uuid,index,")
    assert words[0].endswith(",driver_version,name")
    values = sweep.readings[0].values
    assert values["power_w"] == 71.23
    assert values["memory_total_bytes"] == 81559 << 20
    assert values["throttle_mask"] == 1
    assert values["power_averaged"] == 0


def test_a_name_with_a_comma_moves_nothing(fake):
    assert [device.name for device in sensor_of(fake).devices()] == ["NVIDIA H100 80GB HBM3, Rev 2"] * 3


def test_a_question_that_an_older_driver_does_not_know_costs_only_its_value(fake):
    fake.told["invalid"] = ["power.draw.instant", "memory.reserved"]
    fake.gpu("GPU-00000000-aaaa")["power.draw"] = "99.5"
    fake.write()
    reading = sensor_of(fake).read().readings[0]
    assert reading.values["power_w"] == 99.5
    assert "power_averaged" not in reading.values
    assert reading.reasons["memory_reserved_bytes"] is Reason.OLD_DRIVER
    assert reading.values["util_pct"] == 0


def test_processes_are_ours_or_of_others(fake):
    fake.gpu("GPU-00000001-aaaa")["processes"] = [[7, 500], [9, 300], [10, "[N/A]"]]
    fake.write()
    sensor = SmiSensor(20.0, program=fake.program, own={7: True, 9: False, 10: False}.get, all_pids=True, env={})
    reading = sensor.read().readings[1]
    assert (reading.values["own_pids"], reading.values["own_memory_bytes"]) == (1, 500 << 20)
    assert reading.values["foreign_pids"] == 2
    assert reading.reasons["foreign_memory_bytes"] is Reason.UNSUPPORTED
    assert sensor.occupancy("GPU-00000001-aaaa").pids == (7, 9, 10)


def test_a_program_that_hangs_is_told_as_hung_within_the_deadline_and_comes_back(fake):
    sensor = sensor_of(fake, deadline_s=2.0)
    assert sensor.read().state is HostState.OK
    fake.told["hang"] = True
    fake.write()
    began = time.monotonic()
    sweep = sensor.read()
    assert time.monotonic() - began < 4.0
    assert sweep.state is HostState.HUNG
    assert {reading.state for reading in sweep.readings} == {DeviceState.HUNG}
    assert len(sweep.readings) == 3
    fake.told["hang"] = False
    fake.write()
    until = time.monotonic() + 20.0
    while (sweep := sensor.read()).state is not HostState.OK:
        assert time.monotonic() < until, f"it answers again, and the host is still {sweep.state}: {sweep.reason}"


def test_utilization_of_a_gpu_in_mig_mode_is_not_zero(fake):
    parent = "GPU-00000000-aaaa"
    fake.gpu(parent).update(
        {"mig.mode.current": "Enabled", "utilization.gpu": 0, "instances": [["1g.10gb", 0, "MIG-1111-22"]]}
    )
    fake.write()
    sensor = sensor_of(fake)
    assert [device.uuid for device in sensor.devices()] == ["GPU-00000001-aaaa", "GPU-00000002-aaaa", "MIG-1111-22"]
    reading = next(one for one in sensor.read().readings if one.uuid == parent)
    assert "util_pct" not in reading.values
    assert reading.reasons["util_pct"] is Reason.MIG


def test_a_gpu_that_was_lost_before_the_first_look_hides_no_other(fake):
    fake.gpu("GPU-00000000-aaaa")["lost"] = True
    fake.write()
    sensor = sensor_of(fake)
    assert [device.index for device in sensor.devices()] == [1, 2]
    sweep = sensor.read()
    assert sweep.state is HostState.OK
    assert [reading.state for reading in sweep.readings] == [DeviceState.OK] * 2


def test_only_what_is_visible_is_told(fake):
    sensor = sensor_of(fake, env={"CUDA_VISIBLE_DEVICES": "2,GPU-00000000"})
    assert [device.index for device in sensor.devices()] == [2, 0]
    assert {reading.uuid for reading in sensor.read().readings} == {"GPU-00000000-aaaa", "GPU-00000002-aaaa"}


def test_without_the_program_there_is_a_reason(tmp_path):
    sensor = SmiSensor(5.0, program=str(tmp_path / "nothing"), env={})
    assert sensor.devices() == []
    assert sensor.read().state in (HostState.NO_GPU, HostState.BROKEN)
    assert sensor.reason


@pytest.mark.parametrize(
    ("text", "has_driver", "state", "reason"),
    (
        ("Failed to initialize NVML: Driver/library version mismatch", True, HostState.BROKEN, Reason.DRIVER_MISMATCH),
        ("No devices were found", True, HostState.NO_GPU, Reason.NOT_FOUND),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", False, HostState.NO_GPU,
         Reason.NO_DRIVER),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", True, HostState.BROKEN,
         Reason.NO_DRIVER),
        ("Failed to initialize NVML: Insufficient Permissions", True, HostState.BROKEN, Reason.NO_PERMISSION),
        ("Failed to initialize NVML: Unknown Error", True, HostState.BROKEN, Reason.ERROR),
    ),
)  # fmt: skip
def test_a_refusal_has_a_meaning(text, has_driver, state, reason):
    trouble = trouble_of(text, has_driver=has_driver)
    assert trouble is not None
    assert (trouble.state, trouble.reason) == (state, reason)


def test_a_bus_id_has_one_form():
    text = "Unable to determine the device handle for GPU 00000000:3B:00.0: GPU is lost.\n"
    assert lost_bus_ids(text) == ["0000:3b:00.0"]
    assert trouble_of("0, 5, 7", has_driver=True) is None
    assert processes_of("No running processes found\n") == {}
