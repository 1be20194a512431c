"""Field cases of area 7 (telemetry) about values, time and identity, each as a test of its kind."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from fleetcraft.actions.gpu_import import Asked, import_logs
from fleetcraft.telemetry.foreign import parse_log
from fleetcraft.telemetry.smi import SmiSensor
from fleetcraft.usage.reading import read
from fleetcraft.usage.sources import find
from fleetcraft.usage.windows import add_up
from tests.support.fake_smi import FakeSmi

CHANGES = ("2026-03-29T00:30:00", "2026-10-25T00:30:00", "2026-11-01T04:00:00", "2026-11-01T06:30:00")
ZONES = ("Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "America/Chicago", "UTC")


def local_log(zone: str, first_s: int, count: int) -> bytes:
    """What a logger writes that knows the local time only."""
    stamps = (datetime.fromtimestamp(first_s + at, UTC).astimezone(ZoneInfo(zone)) for at in range(count))
    lines = [f"{stamp:%Y/%m/%d %H:%M:%S}.000,5,97871,0,80.5" for stamp in stamps]
    return "\n".join(["timestamp,mem_used_mib,mem_total_mib,util_pct,power_w", *lines, ""]).encode()


def test_unknown_utilization_is_nowhere_zero(tmp_path):
    lines = [
        f"2026/07/19 22:{minute:02d}:{second:02d}.000,71680,97871,[N/A],400"
        for minute in range(10)
        for second in (0, 30)
    ]
    path = tmp_path / "n1.csv"
    path.write_text("\n".join(["timestamp,mem_used_mib,mem_total_mib,util_pct,power_w", *lines, ""]))
    list(import_logs(Asked(paths=[str(path)], root=str(tmp_path / "root")), now_ms=2**42))
    for source in (path, tmp_path / "root"):
        (series,) = read(find([str(source)])).series
        window = add_up(series)
        assert set(series.columns.get("util_pct", [None])) == {None}
        assert window.observed_ms == 600_000
        # Neither active nor idle: nobody knows.
        assert (window.util_ms, window.active_ms, window.reserved_ms, window.free_ms) == (0, 0, 0, 0)
        assert window.power_sum / window.power_ms == 400


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("change", CHANGES)
def test_seconds_over_a_change_of_the_clock_stay_as_many(zone, change):
    first_s = int(datetime.fromisoformat(change).replace(tzinfo=UTC).timestamp())
    log = parse_log(local_log(zone, first_s, 7200), zone=ZoneInfo(zone))
    assert log.utc_ms == [(first_s + at) * 1000 for at in range(7200)]
    assert log.malformed == 0


@pytest.mark.parametrize("zone", ("Europe/Berlin", "America/Chicago", "Asia/Kathmandu"))
def test_the_zone_of_the_machine_that_reads_changes_nothing(monkeypatch, zone):
    import time

    data = local_log("Europe/Berlin", 1_784_498_400, 10)
    usual = parse_log(data)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert parse_log(data).utc_ms == usual.utc_ms
        assert parse_log(data, zone=ZoneInfo("Europe/Berlin")).utc_ms[0] == 1_784_498_400_000
    finally:
        monkeypatch.undo()
        time.tzset()
    assert not usual.zone_known


VISIBLE = {
    "2,0": [2, 0], "GPU-00000001-aaaa": [1], "GPU-00000001,GPU-00000002": [1, 2], "GPU-0000000": [], "": [], "-1": [],
    "0,9,1": [0], "1,1,2": [1],
}  # fmt: skip


@pytest.mark.parametrize("visible", VISIBLE)
def test_what_is_visible_is_resolved_to_uuids(tmp_path, visible):
    fake = FakeSmi(tmp_path, 3)
    # The driver's order is not that of the bus.
    for gpu in fake.told["gpus"]:
        gpu["pci.bus_id"] = f"00000000:{9 - gpu['index']:02X}:00.0"
    fake.write()
    sensor = SmiSensor(20.0, program=fake.program, env={"CUDA_VISIBLE_DEVICES": visible})
    assert [device.uuid for device in sensor.devices()] == [f"GPU-0000000{index}-aaaa" for index in VISIBLE[visible]]


def test_a_change_of_the_order_mixes_no_series(tmp_path):
    fake = FakeSmi(tmp_path, 3)
    for gpu in fake.told["gpus"]:
        gpu["utilization.gpu"] = gpu["index"] * 10
    fake.write()
    sensor = SmiSensor(20.0, program=fake.program, env={})
    before = {reading.uuid: reading.values["util_pct"] for reading in sensor.read().readings}
    gpus = fake.told["gpus"]
    gpus[0]["index"], gpus[2]["index"] = 2, 0
    gpus.reverse()
    fake.write()
    sweep = sensor.read()
    assert {reading.uuid: reading.values["util_pct"] for reading in sweep.readings} == before
    assert {device.uuid: device.index for device in sensor.devices()}["GPU-00000000-aaaa"] == 2
