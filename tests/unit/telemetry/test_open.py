"""The word of `--gpus`: which sensor serves, and what is tried next."""

from __future__ import annotations

import sys

import pytest

from fleetcraft.core.errors import UsageError
from fleetcraft.telemetry import open as open_module
from fleetcraft.telemetry.api import DeviceState, HostState
from fleetcraft.telemetry.nvml import NvmlSensor
from fleetcraft.telemetry.open import FirstOf, open_sensor
from fleetcraft.testing.clock import ManualClock
from fleetcraft.testing.sensor import FakeSensor
from tests.support.mock_nvml import MockNvml, uuid

needs_gcc = pytest.mark.needs_command("gcc")


@pytest.fixture
def mock(monkeypatch, tmp_path):
    made = MockNvml(monkeypatch, tmp_path)
    yield made
    made.release()


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A host without any driver and without any program."""
    monkeypatch.delenv("FLEETCRAFT_NVML", raising=False)

    monkeypatch.setattr(NvmlSensor, "_has_driver", lambda _self: False)
    monkeypatch.setattr(open_module, "_AMD_SIGN", str(tmp_path / "kfd"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_simulated_and_none_need_nothing(bare):
    devices = open_sensor("simulated:4").devices()
    assert len(devices) == 4
    assert all(device.uuid.startswith("SIM-") for device in devices)
    assert open_sensor("none").devices() == open_sensor("0").devices() == []
    assert open_sensor("none").read().state is HostState.NO_GPU


@pytest.mark.parametrize("word", ("simulated:many", "simulated:", "some", "-1", "1.5", "", "²"))
def test_other_words_are_refused(word):
    with pytest.raises(UsageError, match="not understood"):
        open_sensor(word)


def test_a_bare_host_has_no_gpu_and_says_so(bare):
    sensor = open_sensor("auto")
    assert (sensor.name, sensor.devices()) == ("nvml", [])
    assert sensor.reason == "no NVIDIA driver is loaded on this host"
    with pytest.raises(UsageError, match=r"--gpus 2 was asked for, but 0 can be used here \(no NVIDIA driver"):
        open_sensor("2")


@needs_gcc
def test_a_number_takes_the_first_ones_and_no_others(mock):
    mock.tell(gpus=3)
    sensor = open_sensor("2")
    assert [device.uuid for device in sensor.devices()] == [uuid(0), uuid(1)]
    assert [device.uuid for device in sensor.inventory()] == [uuid(0), uuid(1)]
    assert [reading.uuid for reading in sensor.read().readings] == [uuid(0), uuid(1)]
    assert sensor.occupancy(uuid(1)).used_bytes == 0
    assert len(open_sensor("auto").devices()) == 3
    with pytest.raises(UsageError, match="--gpus 4 was asked for, but 3 can be used here"):
        open_sensor("4")


@needs_gcc
def test_a_number_counts_instances_and_keeps_their_gpu_in_the_account(mock):
    mock.tell(mig="0:3")
    sensor = open_sensor("2")
    assert [device.uuid for device in sensor.devices()] == [uuid(0, 0), uuid(0, 1)]
    assert [reading.uuid for reading in sensor.read().readings] == [uuid(0), uuid(0, 0), uuid(0, 1)]


def test_a_lost_gpu_of_the_first_ones_is_not_replaced():
    fake = FakeSensor(3, ManualClock())
    sensor = FirstOf(fake, 2)
    fake.states["FAKE-0"] = DeviceState.LOST
    assert [device.uuid for device in sensor.devices()] == ["FAKE-1"]
    assert [reading.uuid for reading in sensor.read().readings] == ["FAKE-0", "FAKE-1"]


def test_without_the_package_the_program_is_asked(bare, monkeypatch):
    monkeypatch.setenv("FLEETCRAFT_NVML", "1")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_sensor("auto").reason == "the package nvidia-ml-py is not installed"
    program = bare / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    # It serves no better, and the sentence that helps is the first one.
    assert open_sensor("auto").reason == "the package nvidia-ml-py is not installed"
    monkeypatch.setattr("fleetcraft.telemetry.smi.SmiSensor", lambda *_args, **_more: FakeSensor(1, ManualClock()))
    assert open_sensor("auto").name == "fake"


def test_amd_is_asked_where_its_driver_is_and_nvidias_is_not(bare, monkeypatch):
    monkeypatch.setattr("fleetcraft.telemetry.amd.AmdSensor", lambda *_args, **_more: FakeSensor(1, ManualClock()))
    assert open_sensor("auto").name == "nvml"
    (bare / "kfd").touch()
    assert open_sensor("auto").name == "fake"
