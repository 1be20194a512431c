"""The numbers of a real archive of 76 logs: what is right, and what counting rows gives, each under its definition."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fleetcraft.actions.gpu_import import Asked, import_logs
from fleetcraft.usage.duplicates import first_of_ticks
from fleetcraft.usage.reading import Options, read
from fleetcraft.usage.sources import find
from fleetcraft.usage.summary import Summary, summarize, tally
from fleetcraft.usage.windows import cut
from tests.support.telemetry_files import ARCHIVE

pytestmark = pytest.mark.skipif(not ARCHIVE.is_dir(), reason="the telemetry archive is not beside this checkout")
GIB = 1 << 30


def summary(**options) -> Summary:
    asked = Options(**options)
    return summarize(tally(find([str(ARCHIVE)]), asked), options=asked)


@pytest.fixture(scope="module")
def right() -> Summary:
    return summary()


@pytest.fixture(scope="module")
def rows() -> Summary:
    return summary(definition="row")


@pytest.fixture(scope="module")
def reading():
    return read(find([str(ARCHIVE)]))


def test_the_right_totals(right):
    total = right.total.as_json()
    assert total["samples"] == 177_887
    assert total["gpu_hours"] == pytest.approx(1407.430, abs=0.0005)
    assert total["energy"]["held_kwh"] == pytest.approx(667.960, abs=0.0005)
    assert total["energy"]["counter_kwh"] is None
    assert total["utilization_pct"] == pytest.approx(59.7695, abs=0.00005)
    assert total["active_fraction"] == pytest.approx(0.610671, abs=5e-7)
    assert total["memory_mean_bytes"] / GIB == pytest.approx(48.2786, abs=0.00005)
    assert total["memory_fraction"] == pytest.approx(0.505127, abs=5e-7)
    assert total["utilization_weighted_gpu_hours"] == pytest.approx(841.213, abs=0.0005)
    assert total["active_gpu_hours"] == pytest.approx(859.476, abs=0.0005)
    assert total["inactive_gpu_hours"] == pytest.approx(547.954, abs=0.0005)
    assert total["reserved_idle_gpu_hours"] == pytest.approx(298.812, abs=0.0005)
    assert total["free_idle_gpu_hours"] == pytest.approx(249.142, abs=0.0005)
    assert total["power_mean_w"] == pytest.approx(474.595, abs=0.002)


def test_the_totals_of_counting_rows(rows):
    total = rows.total.as_json()
    assert total["gpu_hours"] == pytest.approx(1482.392, abs=0.0005)
    assert total["energy"]["held_kwh"] == pytest.approx(706.844, abs=0.0005)
    assert total["utilization_pct"] == pytest.approx(60.0426, abs=0.00005)
    assert total["active_fraction"] == pytest.approx(0.613322, abs=5e-7)
    assert total["memory_mean_bytes"] / GIB == pytest.approx(48.3991, abs=0.00005)
    assert total["memory_fraction"] == pytest.approx(0.506388, abs=5e-7)
    assert rows.coverage.hosts_with_data == 75


def test_second_loggers_are_found_and_named(right):
    doubled = {one.host: one.numbers for one in right.problems if one.kind == "doubled"}
    assert {host: int(numbers["extra_samples"]) for host, numbers in doubled.items()} == {
        "host04": 5463, "host06": 1678, "host23": 600, "host29": 409, "host52": 959,
    }  # fmt: skip
    assert sum(numbers["doubled_gpu_hours"] for numbers in doubled.values()) == pytest.approx(75.908, abs=0.0005)


def test_a_host_without_data_is_counted_and_named(right):
    assert (right.coverage.hosts, right.coverage.hosts_with_data) == (76, 75)
    assert [one.host for one in right.problems if one.kind == "no_data"] == ["host76"]
    row = next(row for row in right.rows if row.name == "host76")
    assert row.sums.samples == 0
    assert row.as_json()["utilization_pct"] is None


def test_coverage_is_what_gaps_leave(right):
    # First to last of each host, with the last sample's interval.
    assert right.coverage.expected_ms / 3.6e6 == pytest.approx(3074.555 + 75 * 30 / 3600, abs=0.002)


@pytest.mark.parametrize(
    ("host", "count", "hours", "util", "active", "memory", "kwh"),
    (
        ("host01", 2728, 22.752, 91.447, 0.9322, 64.804, 15.550),
        ("host04", 10928, 45.573, 67.633, 0.6876, 64.967, 23.993),
        ("host14", 1, 0.008, 0.0, 0.0, 0.001, 0.001),
        ("host23", 1201, 5.012, 63.347, 0.6456, 18.125, 2.822),
        ("host52", 1919, 8.005, 74.377, 0.7563, 21.025, 5.099),
        ("host70", 5076, 42.329, 78.743, 0.8058, 59.881, 24.782),
        ("host73", 5076, 42.328, 0.605, 0.0077, 0.176, 3.757),
    ),
)
def test_hosts(right, host, count, hours, util, active, memory, kwh):
    body = next(row for row in right.rows if row.name == host).as_json()
    assert body["samples"] == count
    assert body["gpu_hours"] == pytest.approx(hours, abs=0.0006)
    assert body["utilization_pct"] == pytest.approx(util, abs=0.0006)
    assert body["active_fraction"] == pytest.approx(active, abs=0.00006)
    assert body["memory_mean_bytes"] / GIB == pytest.approx(memory, abs=0.0006)
    assert body["energy"]["held_kwh"] == pytest.approx(kwh, abs=0.0006)


@pytest.mark.parametrize(
    ("since", "until", "hosts", "count", "hours", "util", "active", "memory", "kwh"),
    (
        ("2026-07-10T19:40", "2026-07-10T23:30", 12, 5591, 39.977, 28.261, 0.2916, 16.062, 11.432),
        ("2026-07-11T04:00", "2026-07-11T23:50", 24, 30593, 228.117, 68.343, 0.6960, 35.613, 127.434),
        ("2026-07-16T08:40", "2026-07-18T03:30", 20, 106597, 846.570, 57.961, 0.5928, 54.196, 385.420),
        ("2026-07-19T04:00", "2026-07-19T15:00", 6, 7560, 63.045, 89.079, 0.9060, 70.189, 42.068),
        ("2026-07-19T16:45", "2026-07-19T16:50", 10, 10, 0.083, 0.0, 0.0, 0.001, 0.007),
        ("2026-07-19T21:50", "2026-07-20T21:00", 10, 27284, 227.536, 55.521, 0.5674, 38.886, 100.861),
        ("2026-07-21T02:00", "2026-07-21T03:00", 4, 252, 2.101, 40.124, 0.4564, 13.495, 0.738),
    ),
)
def test_windows_of_the_fleet(since, until, hosts, count, hours, util, active, memory, kwh):
    since_ms, until_ms = (
        round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000) for text in (since, until)
    )
    found = summary(since_ms=since_ms, until_ms=until_ms)
    body = found.total.as_json()
    assert found.coverage.hosts_with_data == hosts
    assert found.coverage.hosts == 76
    assert body["samples"] == count
    assert body["gpu_hours"] == pytest.approx(hours, abs=0.0006)
    assert body["utilization_pct"] == pytest.approx(util, abs=0.0006)
    assert body["active_fraction"] == pytest.approx(active, abs=0.00006)
    assert body["memory_mean_bytes"] / GIB == pytest.approx(memory, abs=0.0006)
    assert body["energy"]["held_kwh"] == pytest.approx(kwh, abs=0.0006)


def test_five_minute_windows_of_the_first_sample_of_a_tick(reading):
    """Stamps rounded down to five minutes; any activity is work, the largest memory decides between the idle ones."""
    working = reserved = free = 0
    for series in reading.series:
        for window in cut(first_of_ticks(series), 300_000, split=False):
            if window.active_ms:
                working += window.observed_ms
            elif (window.memory_max_bytes or 0) >= 500 << 20:
                reserved += window.observed_ms
            else:
                free += window.observed_ms
    hours = [value / 3.6e6 for value in (working, reserved, free)]
    assert hours == pytest.approx([902.83, 265.66, 238.94], abs=0.006)


def test_the_first_samples_of_ticks_alone(reading):
    ticks = [first_of_ticks(series) for series in reading.series]
    assert sum(len(series.utc_ms) for series in ticks) == 168_778
    assert sum(sum(series.held_ms) for series in ticks) / 3.6e6 == pytest.approx(1407.430, abs=0.0005)


@pytest.mark.slow
def test_the_imported_archive_gives_the_same_numbers_from_its_rollups(tmp_path, right):
    list(import_logs(Asked(paths=[str(ARCHIVE)], root=str(tmp_path)), now_ms=right.total.sums.last_ms))
    asked = Options()
    tallied = tally(find([str(tmp_path)]), asked)
    found = summarize(tallied, options=asked)
    assert sum(path.endswith(".rollup.csv") for path, *_ in tallied.pieces) == 75
    for name, value in right.total.as_json().items():
        if isinstance(value, (int, float)):
            assert found.total.as_json()[name] == pytest.approx(value, rel=1e-6), name
    assert found.coverage == right.coverage
    assert [(one.kind, one.host) for one in found.problems] == [(one.kind, one.host) for one in right.problems]


def test_stretches_and_windows_add_up_to_the_same_hours(reading):
    hours = sum(stretch.end_ms - stretch.start_ms for gpu in reading.gpus for stretch in reading.stretches(gpu)) / 3.6e6
    assert hours == pytest.approx(1407.430, abs=0.0005)
    assert sum(window.observed_ms for window in reading.windows()) / 3.6e6 == pytest.approx(hours, abs=1e-6)
