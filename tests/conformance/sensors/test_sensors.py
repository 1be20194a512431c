"""What every sensor promises behind the seam, shown on each that can be run here."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from fleetcraft.telemetry.api import DeviceState, HostState, Reason
from fleetcraft.telemetry.fields import NAMES


def needs(what):
    return pytest.mark.needs(what)


def by_uuid(sweep):
    return {reading.uuid: reading for reading in sweep.readings}


def test_devices_are_told_by_uuid_and_every_one_of_them_is_read(rig):
    devices = rig.sensor.devices()
    uuids = [device.uuid for device in devices]
    assert len(devices) >= 2
    assert len(set(uuids)) == len(uuids)
    assert all(device.uuid and device.name for device in devices)
    told = [device.uuid for device in rig.sensor.inventory()]
    assert set(uuids) <= set(told)
    for sweep in rig.sweeps():
        assert [reading.uuid for reading in sweep.readings] == told


def test_every_field_is_a_number_or_a_reason_and_never_both(rig):
    for sweep in rig.sweeps():
        assert sweep.state is HostState.OK
        assert sweep.reason == ""
        for reading in sweep.readings:
            assert set(reading.values) | set(reading.reasons) == set(NAMES)
            assert not set(reading.values) & set(reading.reasons)
            assert all(isinstance(reason, Reason) for reason in reading.reasons.values())


def test_numbers_are_possible_ones(rig):
    for sweep in rig.sweeps():
        for reading in sweep.readings:
            assert reading.state is DeviceState.OK
            assert reading.values
            assert all(math.isfinite(value) and value >= 0 for value in reading.values.values())
            assert all(value <= 100 for name, value in reading.values.items() if name.endswith("_pct"))
            assert reading.values["memory_used_bytes"] <= reading.values["memory_total_bytes"]


def test_a_device_that_is_not_there_holds_nothing_for_a_reason(rig):
    seen = rig.sensor.occupancy("GPU-of-somebody-else")
    assert (seen.used_bytes, seen.pids) == (None, None)
    assert seen.reason
    mine = rig.sensor.occupancy(rig.sensor.devices()[0].uuid)
    assert mine.used_bytes is not None
    assert mine.reason == ""


@needs("load")
def test_load_shows_on_its_device_and_on_no_other(rig):
    busy, idle = (device.uuid for device in rig.sensor.devices()[:2])
    rig.load(busy)
    rig.sensor.read()
    rig.advance(10.0)
    seen = by_uuid(rig.sensor.read())
    assert seen[busy].values["util_pct"] == 90.0
    assert seen[busy].values["memory_used_bytes"] >= 2**30
    assert (seen[busy].values["own_pids"], seen[busy].values["foreign_pids"]) == (1, 0)
    assert [process.pid for process in seen[busy].processes] == [4242]
    assert (seen[idle].values["util_pct"], seen[idle].values["own_pids"]) == (0.0, 0)


@needs("energy")
def test_the_energy_counter_grows_with_power_and_time(rig):
    first, second = rig.sweeps()
    for before, after in zip(first.readings, second.readings, strict=True):
        grown_j = (after.values["energy_mj"] - before.values["energy_mj"]) / 1000
        assert grown_j == pytest.approx(before.values["power_w"] * 10.0, rel=1e-3)


@needs("lose")
def test_a_lost_device_stays_in_the_sweep_and_the_others_go_on(rig):
    first = rig.sensor.read()
    gone = first.readings[1].uuid
    rig.lose(gone)
    rig.advance(10.0)
    sweep = rig.sensor.read()
    assert [reading.uuid for reading in sweep.readings] == [reading.uuid for reading in first.readings]
    seen = by_uuid(sweep)
    assert seen.pop(gone).state is DeviceState.LOST
    assert by_uuid(sweep)[gone].reasons["power_w"] is Reason.LOST
    assert {reading.state for reading in seen.values()} == {DeviceState.OK}
    assert sweep.state is HostState.OK


@needs("hang")
def test_a_hung_device_costs_the_others_nothing_and_comes_back(rig):
    uuids = [reading.uuid for reading in rig.sensor.read().readings]
    rig.hang(uuids[0])
    rig.advance(10.0)
    sweeps = [rig.sensor.read()]
    began = time.monotonic()
    for _ in range(20):
        rig.advance(10.0)
        sweeps.append(rig.sensor.read())
    # Nobody waits for it again while it is out.
    assert time.monotonic() - began < 2.0
    for sweep in sweeps:
        seen = by_uuid(sweep)
        assert seen[uuids[0]].state is DeviceState.HUNG
        assert set(seen[uuids[0]].reasons.values()) == {Reason.HUNG}
        assert [seen[uuid].state for uuid in uuids[1:]] == [DeviceState.OK] * (len(uuids) - 1)
        assert all(seen[uuid].values["power_w"] > 0 for uuid in uuids[1:])
    rig.back()
    until = time.monotonic() + 10.0
    reading = by_uuid(rig.sensor.read())[uuids[0]]
    while reading.state is DeviceState.HUNG:
        assert time.monotonic() < until, "the call returned, and the device is still told as hung"
        reading = by_uuid(rig.sensor.read())[uuids[0]]
    assert reading.state is DeviceState.OK
    assert [note for note in reading.notes if note.startswith("resumed_after:")]


@needs("hang")
def test_a_host_is_hung_when_all_of_its_devices_are(rig):
    uuids = [reading.uuid for reading in rig.sensor.read().readings]
    sweep = rig.sensor.read()
    for count, uuid in enumerate(uuids, start=1):
        rig.hang(uuid)
        sweep = rig.sensor.read()
        hung = sum(reading.state is DeviceState.HUNG for reading in sweep.readings)
        assert hung == count
        assert sweep.state is (HostState.HUNG if count == len(uuids) else HostState.OK)
    assert sweep.reason.startswith("hung")
    rig.back()


@needs("fail")
def test_a_failed_field_costs_no_other_field(rig):
    before = rig.sensor.read()
    uuid = before.readings[0].uuid
    rig.fail(uuid)
    rig.advance(10.0)
    reading = by_uuid(rig.sensor.read())[uuid]
    assert reading.state is DeviceState.OK
    assert reading.reasons["power_w"] is Reason.NO_PERMISSION
    assert set(before.readings[0].values) - {"power_w", "power_averaged", "power_scope"} <= set(reading.values)
    assert {"util_pct", "memory_used_bytes"} <= set(reading.values)


def test_a_device_that_was_here_before_and_is_missing_comes_as_lost(rig):
    here = rig.sensor.devices()
    away = replace(here[0], uuid="GPU-that-was-here", index=7)
    rig.sensor.expect([*here, away])
    sweep = rig.sensor.read()
    assert [reading.uuid for reading in sweep.readings] == [*(device.uuid for device in here), away.uuid]
    assert sweep.readings[-1].state is DeviceState.LOST
    assert "missing" in sweep.readings[-1].notes
    assert away in rig.sensor.inventory()
    assert away not in rig.sensor.devices()


@needs("break")
def test_a_broken_driver_is_a_state_of_the_host_with_a_reason(rig):
    rig.break_host()
    sweep = rig.again().read()
    assert sweep.state is HostState.BROKEN
    assert sweep.reason
    assert all(reading.values == {} for reading in sweep.readings)
