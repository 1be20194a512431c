"""Summaries: rows, coverage, energy two ways, and problems with their names."""

from __future__ import annotations

import pytest

from fleetcraft.usage.reading import Options
from fleetcraft.usage.sources import find
from fleetcraft.usage.summary import summarize, tally
from tests.support.telemetry_files import START_MS, steady, write_segment


def summary(root, *, by="host", expected=None, **options):
    asked = Options(**options)
    return summarize(tally(find([str(root)]), asked, expected), by=by, options=asked)


def test_rows_and_total_add_up(tmp_path):
    write_segment(tmp_path, "n1", steady(range(0, 3600, 10), {"util_pct": 100, "power_w": 500}))
    write_segment(tmp_path, "n2", steady(range(0, 7200, 10), {"util_pct": 0, "power_w": 100}))
    found = summary(tmp_path)
    assert [(row.name, row.gpu_hours) for row in found.rows] == [("n1", 1.0), ("n2", 2.0)]
    body = found.total.as_json()
    assert body["gpu_hours"] == 3.0
    assert body["utilization_pct"] == pytest.approx(100 / 3)
    assert body["active_fraction"] == pytest.approx(1 / 3)
    assert body["energy"]["held_kwh"] == pytest.approx(0.7)
    assert body["energy"]["counter_kwh"] is None
    assert body["memory_mean_bytes"] is None  # no sample had it: unknown, not 0
    assert body["reserved_idle_gpu_hours"] is None


@pytest.mark.parametrize(("by", "names"), (
    ("gpu", ["n1/0 GPU-n1-0", "n1/1 GPU-n1-1"]), ("job", ["7"]), ("fleet", ["(no fleet)"]), ("host", ["n1"]),
))  # fmt: skip
def test_rows_by(tmp_path, by, names):
    rows = steady(range(0, 60, 10), {"util_pct": 50}) + steady(range(0, 60, 10), {"util_pct": 50}, gpu=1)
    write_segment(tmp_path, "n1", sorted(rows, key=lambda row: row[:2]), gpus=2)
    assert [row.name for row in summary(tmp_path, by=by).rows] == names


def test_only_one_job(tmp_path):
    write_segment(tmp_path, "n1", steady(range(0, 60, 10), {"util_pct": 50}), job="7")
    write_segment(tmp_path, "n2", steady(range(0, 60, 10), {"util_pct": 50}), job="8")
    found = summary(tmp_path, job="8")
    assert [row.name for row in found.rows] == ["n2"]
    assert found.coverage.hosts == 1


def test_a_silent_host_lowers_coverage_while_its_sampler_may_be_there(tmp_path):
    write_segment(tmp_path, "n1", steady(range(0, 600, 10), {"util_pct": 50}))
    write_segment(tmp_path, "n2", steady(range(0, 300, 10), {"util_pct": 50}))
    write_segment(tmp_path, "n3", steady(range(0, 300, 10), {"util_pct": 50}), end="drained")
    until = START_MS + 600_000
    found = summary(tmp_path, since_ms=until - 200_000, until_ms=until, now_ms=until)
    cover = found.coverage
    assert (cover.hosts, cover.hosts_with_data, cover.gpus, cover.gpus_with_data) == (2, 1, 2, 1)
    assert (cover.observed_ms, cover.expected_ms) == (200_000, 400_000)
    assert [(row.name, row.coverage) for row in found.rows] == [("n1", 1.0), ("n2", 0.0)]


def test_who_was_not_heard_for_a_day_is_not_waited_for(tmp_path):
    write_segment(tmp_path, "n1", steady(range(0, 600, 10), {"util_pct": 50}))
    until = START_MS + 3 * 86_400_000
    found = summary(tmp_path, since_ms=until - 300_000, until_ms=until, now_ms=until)
    assert found.coverage.hosts == 0


def test_a_host_that_should_have_telemetry_and_has_none_is_counted(tmp_path):
    write_segment(tmp_path, "n1", steady(range(0, 60, 10), {"util_pct": 50}))
    found = summary(tmp_path, expected={"n1": 1, "n9": 8})
    assert (found.coverage.hosts, found.coverage.hosts_with_data) == (2, 1)
    assert (found.coverage.gpus, found.coverage.gpus_with_data) == (9, 1)
    assert [(one.kind, one.host) for one in found.problems] == [("no_data", "n9")]


def test_energies_that_are_apart_are_flagged(tmp_path):
    rows = [(second, 0, {"power_w": 100, "energy_mj": second * 150_000}) for second in range(0, 3600, 10)]
    write_segment(tmp_path, "n1", rows)
    energy = summary(tmp_path).total.energy
    assert energy.held_kwh == pytest.approx(0.1)
    assert energy.counter_kwh == pytest.approx(0.15 * 3590 / 3600)
    assert energy.apart == pytest.approx(1 / 3)
    assert energy.is_apart


def test_energies_that_agree_are_not(tmp_path):
    rows = [(second, 0, {"power_w": 100, "energy_mj": second * 109_000}) for second in range(0, 3600, 10)]
    write_segment(tmp_path, "n1", rows)
    assert not summary(tmp_path).total.energy.is_apart


def test_stamps_of_the_future_are_flagged(tmp_path):
    write_segment(tmp_path, "n1", steady(range(0, 600, 10), {"util_pct": 50}))
    found = summary(tmp_path, now_ms=START_MS + 300_000)
    assert [(one.kind, one.numbers["samples"]) for one in found.problems] == [("future", 28)]


def test_counting_rows_is_there_for_comparison(tmp_path):
    rows = [(second + part, 0, {"util_pct": 50}) for second in range(0, 600, 10) for part in (0, 1)]
    write_segment(tmp_path, "n1", rows)
    held, row = summary(tmp_path), summary(tmp_path, definition="row")
    assert held.total.gpu_hours == pytest.approx(601 / 3600)
    assert row.total.gpu_hours == pytest.approx(1200 / 3600)
    assert row.definition.startswith("row: ")
    doubled = [one for one in held.problems if one.kind == "doubled"]
    assert [(one.host, one.numbers["extra_samples"]) for one in doubled] == [("n1", 60)]


def test_many_hosts_are_read_by_several_processes_with_the_same_result(tmp_path, monkeypatch):
    for number in range(40):
        write_segment(tmp_path, f"n{number:02d}", steady(range(0, 600, 10), {"util_pct": number}))
    monkeypatch.setattr("fleetcraft.usage.summary.processes_for", lambda *_, **__: 3)
    several = summary(tmp_path).as_json()
    monkeypatch.setattr("fleetcraft.usage.summary.processes_for", lambda *_, **__: 1)
    assert several == summary(tmp_path).as_json()
    assert len(several["rows"]) == 40
