"""Sums by polars equal those of the careful reading, from segments and sealed ones; the odd is left to that."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import sys

import pytest

from fleetcraft.actions.gpu_seal import seal as seal_all
from fleetcraft.actions.gpu_summary import Asked, answer
from fleetcraft.core.errors import UsageError
from fleetcraft.usage.frames import sum_host
from fleetcraft.usage.reading import Options, read
from fleetcraft.usage.sources import find
from fleetcraft.usage.summary import summarize, tally
from tests.support.telemetry_files import START_MS, steady, write_segment

pl = pytest.importorskip("polars", reason="the extra `analysis` is not installed")
GIB = 1 << 30


def rows_of(rng, ticks, *, gaps=True, whole=False):
    rows, second, energy = [], 0, 0
    for _ in range(ticks):
        for number in range(3):
            values = {
                "util_pct": rng.choice([0, 4.9, 5, 100]),
                "memory_used_bytes": rng.choice([0, 524288000, 70 * GIB]),
                "memory_total_bytes": 80 * GIB,
                "power_w": round(rng.uniform(50, 700), 2),
                "energy_mj": energy,
                "own_pids": rng.choice([0, 1]),
                "own_memory_bytes": rng.choice([0, GIB]),
                "tensor_pct": rng.choice([0.25, 80]),
            }
            lost = set() if whole else {key for key in values if rng.random() < 0.1} - {"memory_total_bytes"}
            rows.append((second, number, {key: value for key, value in values.items() if key not in lost}))
        energy = 0 if rng.random() < 0.05 else energy + rng.randrange(10**7)
        second += rng.choice([10, 10, 10, 11, 14, 40, 600] if gaps else [10])
    return rows


def seal(path):
    with path.open() as source:
        head = json.loads(source.readline().partition(" ")[2])
    frame = pl.read_csv(path, comment_prefix="#", infer_schema_length=None)
    empty = [name for name in frame.columns if frame[name].null_count() == frame.height]
    frame.with_columns(pl.col(name).cast(pl.Float64) for name in empty).write_parquet(path.with_suffix(".parquet"))
    path.with_suffix(".sealed.json").write_text(json.dumps({"head": head, "statements": []}))
    path.unlink()


def assert_same(folder, since, until):
    sources = find([str(folder)])
    found = sum_host(sources, since, until)
    assert found is not None
    careful = {one.window.gpu: one.window for one in tally(sources, Options(since_ms=since, until_ms=until)).tallies}
    merged = summarize_frames(found)
    assert {gpu for gpu, window in careful.items() if window.observed_ms + window.bad_ms} == set(merged)
    for gpu, window in merged.items():
        for field in dataclasses.fields(window):
            if field.name in ("gpu", "start_ms", "length_ms", "expected_ms", "counter_resets"):
                continue
            mine, theirs = getattr(window, field.name) or 0, getattr(careful[gpu], field.name) or 0
            assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-3), (field.name, since, until)


def summarize_frames(found):
    from fleetcraft.usage.windows import total

    windows = [window for _, by_gpu, _ in found for window in by_gpu.values()]
    return {gpu: total([one for one in windows if one.gpu == gpu], gpu) for gpu in {one.gpu for one in windows}}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sealed", (False, True), ids=("csv", "sealed"))
def test_sums_are_equal(tmp_path, seed, sealed):
    rng = random.Random(seed)
    whole = seed % 2 == 0
    paths = [
        write_segment(
            tmp_path, "n1", rows_of(rng, 120, whole=whole), gpus=3, baseline_bytes=0, start_ms=START_MS + at * 10**8,
            lost=() if whole else (5, 6, 40),
        )
        for at in range(1 if whole else 2)
    ]  # fmt: skip
    if sealed:
        for path in paths:
            seal(path)
            os.utime(path.with_suffix(".parquet"), (START_MS / 1000 + 10**6,) * 2)
    assert_same(tmp_path, None, None)
    for _ in range(4):
        since = START_MS + rng.randrange(4_000_000)
        assert_same(tmp_path, since, since + rng.randrange(1, 120_000_000))


def test_two_loggers_are_left_to_the_careful_reading(tmp_path):
    rows = sorted(steady(range(0, 600, 10), {"util_pct": 50}) + steady(range(1, 600, 10), {"util_pct": 50}))
    write_segment(tmp_path, "n1", rows)
    assert sum_host(find([str(tmp_path)]), None, None) is None


def test_a_damaged_segment_is_left_to_the_careful_reading(tmp_path):
    path = write_segment(tmp_path, "n1", steady(range(0, 600, 10), {"util_pct": 50}))
    with path.open("a") as file:
        file.write("garbage\n")
    assert sum_host(find([str(tmp_path)]), None, None) is None
    path.write_text("nothing of ours\n")
    assert sum_host(find([str(tmp_path)]), None, None) is None


def test_large_trees_are_summed_by_polars(tmp_path, monkeypatch):
    rows = rows_of(random.Random(1), 200, gaps=False)
    for number in range(3):
        write_segment(tmp_path, f"n{number}", rows, gpus=3, end="drained" if number == 1 else "")
    careful = summarize(tally(find([str(tmp_path)]), Options())).as_json()
    calls = []
    monkeypatch.setattr("fleetcraft.usage.frames.WORTH_BYTES", 1)

    def watched(*given):
        calls.append(given)
        return sum_host(*given)

    monkeypatch.setattr("fleetcraft.usage.frames.sum_host", watched)
    fast = summarize(tally(find([str(tmp_path)]), Options())).as_json()
    assert len(calls) == 3
    assert fast["total"].keys() == careful["total"].keys()
    for name, value in careful["total"].items():
        if isinstance(value, (int, float)):
            assert fast["total"][name] == pytest.approx(value), name
    assert fast["coverage"] == careful["coverage"]


def test_a_sealed_segment_is_read_in_detail(tmp_path):
    rows = steady(range(0, 600, 10), {"util_pct": 50, "power_w": 99.5})
    seal(write_segment(tmp_path, "n1", rows))
    (series,) = read(find([str(tmp_path)]), Options(since_ms=START_MS + 300_000)).series
    assert series.columns["power_w"] == [99.5] * 30
    assert sum(series.held_ms) == 300_000
    assert series.columns["memory_total_bytes"][0] == 80 * GIB


def test_sealed_telemetry_without_polars_says_what_to_install(tmp_path, monkeypatch):
    seal(write_segment(tmp_path, "n1", steady(range(0, 60, 10), {"util_pct": 50})))
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(UsageError, match=r"fleetcraft\[analysis\]"):
        tally(find([str(tmp_path)]), Options())


def test_what_cannot_be_read_beside_what_can_is_a_gap_with_a_name(tmp_path, monkeypatch):
    path = write_segment(tmp_path, "n1", steady(range(0, 600, 10), {"util_pct": 50}), end="over")
    list(seal_all([str(tmp_path)], now_utc=path.stat().st_mtime + 60, remove=True))
    path.with_suffix(".rollup.csv").unlink()
    write_segment(tmp_path, "n2", steady(range(0, 600, 10), {"util_pct": 50}), end="over")
    monkeypatch.setitem(sys.modules, "polars", None)
    sources = find([str(tmp_path)])
    found = summarize(tally(sources, Options()))
    assert (found.coverage.hosts, found.coverage.hosts_with_data) == (2, 1)
    assert (found.coverage.gpus, found.coverage.gpus_with_data) == (2, 1)
    assert found.coverage.observed_ms == 600_000
    assert found.coverage.expected_ms == 600_000 + 590_000
    (problem,) = found.problems
    assert (problem.kind, problem.host) == ("not_installed", "n1")
    assert "fleetcraft[analysis]" in problem.text
    with pytest.raises(UsageError, match=r"fleetcraft\[analysis\]"):
        read(sources)  # detail has no place for a gap
    with pytest.raises(UsageError, match="not frozen"):
        answer(Asked(now_ms=START_MS + 600_000), sources, {}, str(tmp_path / "frozen.json"))


def test_what_gpu_seal_makes_is_read_as_before(tmp_path):
    rows = rows_of(random.Random(3), 150, gaps=False)
    path = write_segment(tmp_path, "n1", rows, gpus=3, end="drained")
    before = summarize(tally(find([str(tmp_path)]), Options())).as_json()
    (sealed,) = seal_all([str(tmp_path)], now_utc=path.stat().st_mtime + 60, remove=True)
    assert sealed.removed
    (source,) = find([str(tmp_path)])
    assert source.kind == "sealed"
    after = summarize(tally([source], Options())).as_json()
    assert after["total"]["energy"]["counter_kwh"] == pytest.approx(before["total"]["energy"]["counter_kwh"], rel=1e-6)
    for name, value in before["total"].items():
        if isinstance(value, (int, float)):
            assert after["total"][name] == pytest.approx(value, rel=1e-6), name


def test_a_sealed_segment_with_a_whole_rollup_needs_no_polars(tmp_path, monkeypatch):
    path = write_segment(tmp_path, "n1", steady(range(0, 600, 10), {"util_pct": 50}), end="drained")
    list(seal_all([str(tmp_path)], now_utc=path.stat().st_mtime + 60, remove=True))
    monkeypatch.setitem(sys.modules, "polars", None)
    tallied = tally(find([str(tmp_path)]), Options())
    assert tallied.problems == []
    assert tallied.tallies[0].window.observed_ms == 600_000
