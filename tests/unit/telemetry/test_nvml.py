"""NVIDIA's own binding over the mock of the driver's library, field by field and fault by fault."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fleetcraft.telemetry import nvml as nvml_module
from fleetcraft.telemetry.api import DeviceState, HostState, Reason
from fleetcraft.telemetry.fields import NAMES
from fleetcraft.telemetry.nvml import NvmlSensor
from fleetcraft.testing.clock import ManualClock
from tests.support.mock_nvml import MockNvml, build, uuid

pytestmark = pytest.mark.needs_command("gcc")

_GPM = "1:50,2:40,3:10,5:37.25,10:5,11:0,12:3,13:1"


@pytest.fixture
def mock(monkeypatch, tmp_path):
    made = MockNvml(monkeypatch, tmp_path)
    yield made
    made.release()


@pytest.fixture
def old_mock(monkeypatch, tmp_path):
    made = MockNvml(monkeypatch, tmp_path, "OLD_DRIVER")
    yield made
    made.release()


@pytest.fixture
def clock():
    return ManualClock()


def one(sensor, index=0):
    return sensor.read().readings[index]


def told(reading, *names):
    return [reading.values.get(name, reading.reasons.get(name)) for name in names]


def test_a_gpu_is_described_once(mock):
    mock.tell(gpus=2)
    first, second = mock.sensor().devices()
    assert (first.uuid, first.index, first.name) == (uuid(0), 0, "NVIDIA H100 80GB HBM3")
    assert (first.memory_bytes, first.bus_id, first.parent, first.vendor) == (
        80 * 2**30,
        "00000000:10:00.0",
        "",
        "nvidia",
    )
    assert (first.power_limit_w, first.multiprocessors, first.max_sm_clock_mhz) == (700.0, 132, 1980)
    assert (second.uuid, second.bus_id) == (uuid(1), "00000000:11:00.0")


def test_each_field_comes_from_its_own_call(mock):
    mock.tell(gpus=1, util="0:37", memory="0:512", energy="0:123456", ecc="0:3", rows="0:1:2:0:0", power="0:412340")
    reading = one(mock.sensor())
    expected = {
        "util_pct": 37.0, "memory_used_bytes": 512 * 2**20, "memory_total_bytes": 80 * 2**30,
        "memory_reserved_bytes": 308 * 2**20, "power_w": 412.34, "energy_mj": 123456, "temperature_c": 41,
        "sm_clock_mhz": 1755, "memory_clock_mhz": 2619, "throttle_mask": 4, "performance_state": 0,
        "ecc_corrected": 7, "ecc_uncorrected": 3, "remapped_rows": 3, "pcie_generation": 5, "pcie_width": 16,
        "nvlinks_up": 3, "xid_events": 0, "own_pids": 0, "foreign_pids": 0,
    }  # fmt: skip
    assert {name: reading.values[name] for name in expected} == expected
    assert reading.notes == ()
    assert told(reading, "xid", "tensor_pct", "power_averaged") == [
        Reason.NOT_FOUND, Reason.UNSUPPORTED, Reason.UNSUPPORTED,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "names"),
    (
        ("GetMemoryInfo", {"memory_used_bytes", "memory_total_bytes", "memory_reserved_bytes"}),
        ("GetUtilizationRates", {"util_pct"}),
        ("GetPowerUsage", {"power_w", "power_averaged", "power_scope"}),
        ("GetTotalEnergyConsumption", {"energy_mj"}),
        ("GetTemperature", {"temperature_c"}),
        ("GetSmClock", {"sm_clock_mhz"}),
        ("GetMemoryClock", {"memory_clock_mhz"}),
        ("GetCurrentClocksEventReasons", {"throttle_mask"}),
        ("GetPerformanceState", {"performance_state"}),
        ("GetCorrectedErrors", {"ecc_corrected"}),
        ("GetUncorrectedErrors", {"ecc_uncorrected"}),
        ("GetRemappedRows", {"remapped_rows"}),
        ("GetCurrPcieLinkGeneration", {"pcie_generation"}),
        ("GetCurrPcieLinkWidth", {"pcie_width"}),
        ("GetNvLinkState", {"nvlinks_up"}),
        ("GetComputeRunningProcesses", {"own_pids", "own_memory_bytes", "foreign_pids", "foreign_memory_bytes"}),
        ("RegisterEvents", {"xid", "xid_events"}),
        ("GpmSampleGet", {name for name in NAMES if name.endswith("_pct") and name != "util_pct"}),
    ),
)
@pytest.mark.parametrize(
    ("code", "reason"),
    ((4, Reason.NO_PERMISSION), (13, Reason.OLD_DRIVER), (999, Reason.ERROR), (10, Reason.HUNG)),
)
def test_a_call_that_fails_costs_its_own_fields_on_its_own_gpu(mock, clock, call, names, code, reason):
    mock.tell(gpus=2, gpm=_GPM)
    well, _other = _twice(mock.sensor(clock=clock), clock).readings
    mock.tell(fail=f"1:{call}={code}")
    sensor = mock.sensor(clock=clock)
    same, sick = _twice(sensor, clock).readings
    assert set(same.values) == set(well.values)
    assert set(well.values) - set(sick.values) == names & set(well.values)
    assert {sick.reasons[name] for name in names} == {reason}
    assert sick.state is DeviceState.OK


def _twice(sensor, clock):
    sensor.read()
    clock.advance(10.0)
    return sensor.read()


@pytest.mark.parametrize(
    ("code", "state", "reason"),
    ((15, DeviceState.LOST, Reason.LOST), (16, DeviceState.RESET_REQUIRED, Reason.RESET_REQUIRED)),
)
@pytest.mark.parametrize("call", ("GetMemoryInfo", "GetPowerUsage", "GetRemappedRows"))
def test_one_answer_can_speak_for_the_whole_gpu(mock, code, state, reason, call):
    mock.tell(gpus=2, fail=f"0:{call}={code}")
    sensor = mock.sensor()
    lost, well = sensor.read().readings
    assert lost.state is state
    assert reason in lost.reasons.values()
    assert well.state is DeviceState.OK


def test_a_gpu_that_cannot_be_opened_keeps_its_place_and_its_neighbours(mock):
    mock.tell(gpus=3, fail="1:GetHandleByIndex=15")
    sensor = mock.sensor()
    assert [device.uuid for device in sensor.devices()] == [uuid(0), uuid(2)]
    sweep = sensor.read()
    assert [(reading.uuid, reading.state) for reading in sweep.readings] == [
        (uuid(0), DeviceState.OK),
        ("unidentified-1", DeviceState.LOST),
        (uuid(2), DeviceState.OK),
    ]


def test_a_field_of_the_driver_that_stands_for_nothing_is_blank(mock):
    mock.tell(gpus=1, energy=f"0:{2**63 - 1}")
    assert told(one(mock.sensor()), "energy_mj") == [Reason.BLANK]


def test_reserved_memory_is_not_used_memory(mock):
    assert told(one(mock.sensor()), "memory_used_bytes", "memory_reserved_bytes") == [0, 308 * 2**20]


def test_an_old_driver_is_read_by_the_calls_that_it_has(old_mock):
    reading = one(old_mock.sensor())
    assert told(reading, "memory_used_bytes", "memory_reserved_bytes") == [308 * 2**20, Reason.OLD_DRIVER]
    assert told(reading, "temperature_c", "throttle_mask", "nvlinks_up") == [40, 8, 3]
    assert told(reading, "sm_active_pct", "tensor_pct") == [Reason.OLD_DRIVER] * 2
    assert told(reading, "power_w", "power_averaged", "power_scope") == [500.0, Reason.UNSUPPORTED, 0]
    assert "memory_used_with_reserved" in reading.notes
    assert reading.state is DeviceState.OK


@pytest.mark.parametrize(
    ("scope", "power", "averaged", "of", "module"),
    (
        ("0:185:0:300000,0:186:0:310000", 300.0, 1, 0, Reason.UNSUPPORTED),
        ("0:186:0:310000", 310.0, 0, 0, Reason.UNSUPPORTED),
        ("0:185:0:300000,0:185:1:512000", 300.0, 1, 0, 512.0),
        ("0:185:1:512000", 512.0, 1, 1, 512.0),
        ("0:186:1:498000", 498.0, 0, 1, 498.0),
        ("", 500.0, Reason.UNSUPPORTED, 0, Reason.UNSUPPORTED),
        ("0:185:0:2900000", Reason.IMPLAUSIBLE, 1, 0, Reason.UNSUPPORTED),
    ),
)
def test_power_says_of_what_and_over_what_it_is(mock, scope, power, averaged, of, module):
    mock.tell(scope=scope)
    reading = one(mock.sensor())
    assert told(reading, "power_w", "power_averaged", "power_scope", "module_power_w") == [power, averaged, of, module]


def test_unified_memory_needs_the_answer_and_the_name(mock):
    mock.tell(name="NVIDIA GB10", fail="0:GetMemoryInfo=3")
    sensor = mock.sensor()
    reading = one(sensor)
    assert told(reading, "memory_total_bytes", "memory_used_bytes") == [Reason.UNIFIED] * 2
    assert "unified_memory" in reading.notes
    assert sensor.devices()[0].memory_bytes is None
    assert sensor.occupancy(uuid(0)).used_bytes is None
    mock.tell(name="NVIDIA B200", fail="0:GetMemoryInfo=3")
    assert told(one(mock.sensor()), "memory_total_bytes") == [Reason.UNSUPPORTED]
    mock.tell(name="NVIDIA GB10", fail="0:GetMemoryInfo=999")
    assert told(one(mock.sensor()), "memory_total_bytes") == [Reason.ERROR]


def test_processes_are_ours_or_those_of_others(mock):
    mock.tell(procs="0:10:1000,0:11:2000,0:12:4000,0:99:1")
    sensor = mock.sensor(own={10: True, 11: True, 12: False}.get)
    sensor._all_pids = True
    for group in sensor._groups.values():
        group.gpu.owners._all_pids = True
    reading = one(sensor)
    assert told(reading, "own_pids", "own_memory_bytes", "foreign_pids", "foreign_memory_bytes") == [2, 3000, 1, 4000]
    assert [(process.pid, process.memory_bytes) for process in reading.processes][:2] == [(10, 1000), (11, 2000)]
    # 99 had ended between the list and the look, or is hidden: the second time it is the latter.
    assert told(one(sensor), "foreign_pids", "foreign_memory_bytes") == [2, 4001]


def test_inside_a_container_foreign_pids_are_not_guessed(mock, monkeypatch):
    monkeypatch.setattr("fleetcraft.telemetry.nvml_host.sees_all_pids", lambda: False)
    mock.tell(procs="0:10:1000,0:99:1")
    assert told(one(mock.sensor(own={10: True}.get)), "own_pids", "foreign_pids") == [Reason.UNTRUSTED] * 2
    mock.tell(procs="0:10:1000")
    assert told(one(mock.sensor(own={10: True}.get)), "own_pids", "foreign_pids") == [1, 0]


def test_a_memory_that_is_not_told_is_not_summed(mock):
    mock.tell(procs="0:10:1000,0:11:-1")
    reading = one(mock.sensor(own=lambda _pid: True))
    assert told(reading, "own_pids", "own_memory_bytes") == [2, Reason.UNSUPPORTED]
    assert [process.memory_bytes for process in reading.processes] == [1000, None]


@pytest.mark.parametrize(
    ("driver", "trusted"),
    (
        ("535.43.02", False),
        ("535.54.03", False),
        ("535.86.05", False),
        ("535.98", True),
        ("530.30.02", True),
        ("x", True),
    ),
)
def test_lists_of_processes_of_some_drivers_are_not_believed(mock, driver, trusted):
    mock.tell(driver=driver, procs="0:10:1000")
    sensor = mock.sensor(own=lambda _pid: True)
    reading = one(sensor)
    assert told(reading, "own_pids") == [1 if trusted else Reason.UNTRUSTED]
    assert ("process_list_untrusted" in reading.notes) is not trusted
    assert (reading.processes is None) is not trusted
    assert (sensor.occupancy(uuid(0)).pids is None) is not trusted
    assert reading.values["power_w"] == 500.0


def test_xids_are_counted_as_they_come_even_equal_ones(mock):
    mock.tell(gpus=2)
    sensor = mock.sensor()
    assert told(one(sensor), "xid", "xid_events") == [Reason.NOT_FOUND, 0]
    mock.tell(xid="0:31,0:31,1:79")
    assert told(one(sensor), "xid", "xid_events") == [31, 2]
    assert told(one(sensor, 1), "xid", "xid_events") == [79, 1]
    mock.tell(xid="0:31,0:31,1:79,0:31", fail="0:GetUUID=15")
    assert told(one(sensor), "xid", "xid_events") == [31, 3]


def test_remapped_rows_that_wait_for_a_reset_are_noted(mock):
    mock.tell(rows="0:1:2:1:1")
    assert {"row_remap_pending", "row_remap_failure"} <= set(one(mock.sensor()).notes)


def test_a_gpu_that_replaces_no_rows_is_asked_for_retired_pages(mock):
    mock.tell(gpus=2, pages="0:3:1:1", fail="0:GetRemappedRows=3,1:GetRemappedRows=3")
    sensor = mock.sensor()
    assert {"retired_pages:4", "page_retirement_pending"} <= set(one(sensor).notes)
    assert one(sensor).reasons["remapped_rows"] is Reason.UNSUPPORTED
    assert not [note for note in one(sensor, 1).notes if "page" in note]
    mock.tell(gpus=2, pages="0:3:1:1", fail="0:GetRemappedRows=3,0:GetRetiredPages=3")
    told = one(mock.sensor())
    assert told.state is DeviceState.OK
    assert not [note for note in told.notes if "page" in note]


def test_utilization_is_the_mean_of_the_drivers_samples_over_a_long_interval(mock, clock):
    mock.tell(util="0:100", samples="0:10,0:20,0:60")
    sensor = mock.sensor(clock=clock)
    assert told(one(sensor), "util_pct") == [100.0]  # the first look has no interval behind it
    clock.advance(10.0)
    assert told(one(sensor), "util_pct") == [30.0]
    clock.advance(1.0)
    assert told(one(sensor), "util_pct") == [100.0]  # a second is what one look covers anyhow
    clock.advance(10.0)
    mock.tell(samples="0:500")
    assert told(one(sensor), "util_pct") == [100.0]


def test_a_gpu_in_mig_mode_is_its_instances(mock, clock):
    mock.tell(gpus=2, mig="1:2", gpm=_GPM, memory="1.0:100,1.1:200", procs="1.1:10:1000")
    sensor = mock.sensor(clock=clock, own=lambda _pid: True)
    assert [(device.uuid, device.parent) for device in sensor.devices()] == [
        (uuid(0), ""), (uuid(1, 0), uuid(1)), (uuid(1, 1), uuid(1)),
    ]  # fmt: skip
    assert [device.uuid for device in sensor.inventory()] == [uuid(0), uuid(1), uuid(1, 0), uuid(1, 1)]
    assert sensor.devices()[1].multiprocessors == 60
    _gpu, parent, first, second = _twice(sensor, clock).readings
    assert told(parent, "util_pct", "power_w") == [Reason.MIG, 500.0]
    assert told(first, "util_pct", "memory_used_bytes", "own_pids", "tensor_pct") == [50.0, 100 * 2**20, 0, 37.25]
    assert told(second, "memory_used_bytes", "own_pids", "power_w") == [200 * 2**20, 1, Reason.SHARED]
    assert "util_from_gpm" in first.notes
    assert sensor.occupancy(uuid(1, 1)).pids == (10,)


@pytest.mark.parametrize(
    ("visible", "shown"),
    (
        (uuid(1, 1), [uuid(1, 1)]),
        (f"MIG-{uuid(1)}/2/0", [uuid(1, 1)]),
        (f"MIG-{uuid(1)}/5/0", []),
        (uuid(1), []),  # a GPU in MIG mode is no device of CUDA
        ("", []),
    ),
)
def test_an_instance_is_named_in_two_ways(mock, monkeypatch, visible, shown):
    mock.tell(gpus=2, mig="1:2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    sensor = mock.sensor()
    assert [device.uuid for device in sensor.devices()] == shown
    assert [reading.uuid for reading in sensor.read().readings] == ([uuid(1), *shown] if shown else [])


def test_what_slurm_gave_is_ours_where_nothing_hides_the_rest(mock, monkeypatch):
    mock.tell(gpus=4)
    monkeypatch.setenv("SLURM_JOB_GPUS", "2,3")
    assert [device.uuid for device in mock.sensor().devices()] == [uuid(2), uuid(3)]


def test_an_instance_without_counters_has_no_utilization(mock):
    mock.tell(mig="0:1", fail="0:GetMemoryInfo=4")
    parent, child = mock.sensor().read().readings
    assert told(parent, "util_pct", "memory_used_bytes", "memory_total_bytes") == [
        Reason.MIG, Reason.NO_PERMISSION, Reason.NO_PERMISSION,
    ]  # fmt: skip
    assert told(child, "util_pct", "memory_used_bytes") == [Reason.MIG, 0]


def test_gpm_covers_the_interval_between_two_readings(mock, clock):
    mock.tell(gpm=_GPM + ",5:37.25".replace(",5:37.25", ""))
    sensor = mock.sensor(clock=clock)
    assert told(one(sensor), "tensor_pct") == [Reason.TOO_SOON]
    clock.advance(0.04)
    assert told(one(sensor), "tensor_pct", "sm_active_pct") == [Reason.TOO_SOON] * 2
    clock.advance(0.07)  # 110 ms after the baseline, which was kept
    assert told(one(sensor), "tensor_pct", "sm_active_pct", "dram_pct") == [37.25, 40.0, 5.0]
    clock.advance(30.0)
    assert told(one(sensor), "sm_occupancy_pct", "fp16_pct", "fp32_pct", "fp64_pct") == [10.0, 1.0, 3.0, 0.0]


def test_gpm_that_is_no_number_is_none(mock, clock):
    mock.tell(gpm="1:50,2:nan,3:-1,5:37.25,10:100.4,11:250,12:0")
    reading = _twice(mock.sensor(clock=clock), clock).readings[0]
    assert told(reading, "sm_active_pct", "sm_occupancy_pct", "fp64_pct") == [Reason.NAN] * 3
    assert told(reading, "tensor_pct", "dram_pct", "fp32_pct", "fp16_pct") == [37.25, 100.0, 0.0, Reason.UNSUPPORTED]


def test_a_failed_sample_does_not_lose_the_baseline(mock, clock):
    mock.tell(gpm=_GPM)
    sensor = mock.sensor(clock=clock)
    sensor.read()
    clock.advance(10.0)
    mock.tell(fail="0:GpmSampleGet=999")
    assert told(one(sensor), "tensor_pct") == [Reason.ERROR]
    clock.advance(10.0)
    mock.tell(fail="")
    assert told(one(sensor), "tensor_pct") == [37.25]


@pytest.mark.parametrize(
    ("code", "has_driver", "state", "word"),
    (
        (18, True, HostState.BROKEN, "driver_library_mismatch"),
        (12, True, HostState.BROKEN, "libnvidia-ml.so.1"),
        (12, False, HostState.NO_GPU, "no NVIDIA driver"),
        (9, False, HostState.NO_GPU, "no NVIDIA driver"),
        (9, True, HostState.BROKEN, "not loaded"),
        (4, True, HostState.BROKEN, "no_permission"),
        (999, True, HostState.BROKEN, "does not serve us"),
    ),
)
def test_a_library_that_does_not_start_says_what_the_host_is(mock, tmp_path, code, has_driver, state, word):
    mock.tell(init=code)
    sensor = mock.sensor(signs=(str(tmp_path if has_driver else tmp_path / "none"),))
    sweep = sensor.read()
    assert (sweep.state, sweep.readings) == (state, ())
    assert word in sweep.reason
    assert sensor.devices() == []
    assert sensor.occupancy(uuid(0)).reason == sweep.reason


def test_a_driver_that_begins_to_serve_is_found_within_a_minute(mock, clock):
    mock.tell(init=18)
    sensor = mock.sensor(clock=clock)
    mock.tell(init="")
    clock.advance(30.0)
    assert sensor.read().state is HostState.BROKEN
    clock.advance(31.0)
    assert sensor.read().state is HostState.OK
    assert [device.uuid for device in sensor.devices()] == [uuid(0)]


def test_a_library_that_forgot_its_start_is_opened_anew(mock, clock):
    import pynvml

    sensor = mock.sensor(clock=clock)
    assert one(sensor).values["power_w"] == 500.0
    pynvml.nvmlShutdown()
    assert one(sensor).state is DeviceState.BROKEN
    clock.advance(61.0)
    assert one(sensor).values["power_w"] == 500.0


def test_a_driver_that_was_changed_under_us_breaks_the_host_and_forgets_no_gpu(mock, clock):
    import pynvml

    mock.tell(gpus=2)
    sensor = mock.sensor(clock=clock)
    sensor.read()
    pynvml.nvmlShutdown()
    mock.tell(init=18)
    sensor.read()
    clock.advance(61.0)
    sweep = sensor.read()
    assert sweep.state is HostState.BROKEN
    assert "driver_library_mismatch" in sweep.reason
    assert [reading.uuid for reading in sweep.readings] == [uuid(0), uuid(1)]
    assert {reason for reading in sweep.readings for reason in reading.reasons.values()} == {Reason.DRIVER_MISMATCH}
    mock.tell(init="")
    clock.advance(61.0)
    assert [reading.state for reading in sensor.read().readings] == [DeviceState.OK] * 2


def test_a_host_whose_driver_shows_no_gpu_has_none(mock, monkeypatch):
    mock.tell(gpus=1, absent=0)
    sweep = mock.sensor().read()
    assert (sweep.state, sweep.readings) == (HostState.NO_GPU, ())
    assert sweep.reason


def test_a_gpu_that_is_no_longer_counted_is_missing_and_the_others_keep_their_names(mock, clock):
    import pynvml

    mock.tell(gpus=4, power="0:100000,1:110000,2:120000,3:130000")
    sensor = mock.sensor(clock=clock)
    sensor.read()
    mock.tell(absent=1)
    pynvml.nvmlShutdown()  # as a driver does that was loaded anew
    sensor.read()
    clock.advance(61.0)
    seen = {reading.uuid: reading for reading in sensor.read().readings}
    assert len(seen) == 4
    assert seen[uuid(1)].state is DeviceState.LOST
    assert seen[uuid(1)].notes == ("missing",)
    assert [seen[uuid(n)].values["power_w"] for n in (0, 2, 3)] == [100.0, 120.0, 130.0]
    assert uuid(1) not in {device.uuid for device in sensor.devices()}


def test_a_lost_gpu_is_the_one_that_was_expected_at_its_place(mock):
    mock.tell(gpus=3)
    before = mock.sensor().devices()
    mock.tell(fail="1:GetHandleByIndex=15")
    sensor = mock.sensor()
    sensor.expect(before)
    assert [(reading.uuid, reading.state) for reading in sensor.read().readings] == [
        (uuid(0), DeviceState.OK), (uuid(1), DeviceState.LOST), (uuid(2), DeviceState.OK),
    ]  # fmt: skip


def test_where_indices_have_shifted_nobody_is_guessed(mock):
    mock.tell(gpus=4)
    before = mock.sensor().devices()
    mock.tell(absent=0, fail="1:GetHandleByIndex=15")  # what was GPU 1 is at place 0 now, and shut
    sensor = mock.sensor()
    sensor.expect(before)
    assert [(reading.uuid, reading.state.value) for reading in sensor.read().readings] == [
        ("unidentified-0", "lost"), (uuid(2), "ok"), (uuid(3), "ok"), (uuid(0), "lost"), (uuid(1), "lost"),
    ]  # fmt: skip


def test_a_shut_place_is_not_given_to_a_gpu_that_is_seen_elsewhere(mock):
    mock.tell(gpus=2)
    first, second = mock.sensor().devices()
    mock.tell(fail="1:GetHandleByIndex=15")
    sensor = mock.sensor()
    sensor.expect([replace(first, index=1), replace(second, index=0)])
    assert [(reading.uuid, reading.state.value) for reading in sensor.read().readings] == [
        (uuid(0), "ok"), ("unidentified-1", "lost"), (uuid(1), "lost"),
    ]  # fmt: skip


def test_only_visible_gpus_are_used_and_read(mock, monkeypatch):
    mock.tell(gpus=4)
    sensor = mock.sensor()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"3,{uuid(1)}")
    assert [device.uuid for device in sensor.devices()] == [uuid(3), uuid(1)]
    assert {reading.uuid for reading in sensor.read().readings} == {uuid(1), uuid(3)}


def test_a_start_that_hangs_is_a_hung_host_until_it_returns(mock):
    mock.tell(block="host:GetCount")
    sensor = mock.sensor(0.1)
    assert (sensor.state, sensor.reason) == (HostState.HUNG, "hung: no answer within 0.1 s")
    assert (sensor.read().state, sensor.devices()) == (HostState.HUNG, [])
    mock.release()
    from tests.support.waiting import wait_for

    wait_for(lambda: sensor.read().state is HostState.OK, "the driver serves again")
    assert [device.uuid for device in sensor.devices()] == [uuid(0)]


def test_a_list_that_hangs_later_costs_the_devices_nothing(mock, clock):
    mock.tell(gpus=2)
    sensor = mock.sensor(0.6, clock=clock)
    sensor.read()
    mock.tell(block="host:GetCount")
    for _ in range(2):
        clock.advance(301.0)
        sweep = sensor.read()
        assert sweep.state is HostState.OK
        assert [told(reading, "power_w", "xid") for reading in sweep.readings] == [[500.0, Reason.HUNG]] * 2
    mock.tell(block="", fail="host:GetCount=999")
    mock.release()
    clock.advance(301.0)
    assert one(sensor).values["power_w"] == 500.0


def test_events_that_hang_cost_the_xid_fields_only(mock):
    mock.tell(block="host:EventSetWait")
    reading = one(mock.sensor(0.5))
    assert told(reading, "xid", "xid_events", "power_w") == [Reason.HUNG, Reason.HUNG, 500.0]


def test_a_process_ends_while_the_driver_holds_a_call(tmp_path):
    environ = {
        **os.environ, "LD_LIBRARY_PATH": str(build()), "FLEETCRAFT_NVML": "1", "MOCK_GPUS": "2",
        "MOCK_BLOCK": "0:GetPowerUsage",
    }  # fmt: skip
    program = (
        "from fleetcraft.telemetry.nvml import NvmlSensor; sensor = NvmlSensor(0.5);"
        "print(*[reading.state.value for reading in sensor.read().readings])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stdout == "hung ok\n"


def test_without_a_driver_the_binding_is_not_even_loaded(monkeypatch, tmp_path):
    monkeypatch.delenv("FLEETCRAFT_NVML", raising=False)
    monkeypatch.setattr(nvml_module, "load_binding", lambda: pytest.fail("it was loaded"))
    sensor = NvmlSensor(signs=(str(tmp_path / "none"),))
    assert (sensor.state, sensor.reason) == (HostState.NO_GPU, "no NVIDIA driver is loaded on this host")


def test_another_package_of_that_name_is_told_in_one_line(monkeypatch):
    monkeypatch.setenv("FLEETCRAFT_NVML", "1")
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(__file__="/opt/pynvml.py", nvmlInit=lambda: None))
    sensor = NvmlSensor()
    assert sensor.state is HostState.BROKEN
    assert sensor.reason == (
        "the package `pynvml` in /opt/pynvml.py is not NVIDIA's binding: uninstall it and install nvidia-ml-py"
    )
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert NvmlSensor().reason == "the package nvidia-ml-py is not installed"


def test_what_is_asked_rarely_is_told_every_time(mock, clock):
    sensor = mock.sensor(clock=clock)
    assert told(one(sensor), "ecc_uncorrected") == [0]
    mock.tell(ecc="0:5")
    clock.advance(1.0)
    assert told(one(sensor), "ecc_uncorrected", "nvlinks_up", "pcie_width") == [0, 3, 16]
    clock.advance(9.0)
    assert told(one(sensor), "ecc_uncorrected") == [5]


def test_the_list_is_made_anew_now_and_then_without_losing_a_sample(mock, clock):
    mock.tell(gpm=_GPM)
    sensor = mock.sensor(clock=clock)
    sensor.read()
    clock.advance(301.0)
    mock.tell(mig="0:2")
    assert told(one(sensor), "tensor_pct") == [37.25]
    assert [device.uuid for device in sensor.devices()] == [uuid(0, 0), uuid(0, 1)]
