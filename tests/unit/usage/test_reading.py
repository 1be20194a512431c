"""Segments, roll-ups and spans: whatever way the samples are read, the same sums come out."""

from __future__ import annotations

import dataclasses
import json
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.actions.gpu_summary import Asked, answer, verify
from fleetcraft.core.errors import UsageError
from fleetcraft.telemetry import rollup
from fleetcraft.telemetry.segment import statement
from fleetcraft.telemetry.segment_read import Reader
from fleetcraft.usage.api import Gpu
from fleetcraft.usage.pieces import read_lines
from fleetcraft.usage.reading import Options, read, read_windows
from fleetcraft.usage.segmentread import stamp_of
from fleetcraft.usage.sources import find, within
from fleetcraft.usage.summary import summarize, tally
from fleetcraft.usage.windows import total
from tests.support.telemetry_files import START_MS, Values, steady, write_segment

GIB = 1 << 30


def gpu(host, number=0):
    return Gpu(host=host, uuid=f"GPU-{host}-{number}", index=number)


def random_rows(rng, ticks, gpus=2):
    rows: list[tuple[int, int, Values]] = []
    second, energy = 0, 0.0
    for _ in range(ticks):
        for number in range(gpus):
            values = {
                "util_pct": rng.choice([0, 50.5, 100]),
                "memory_used_bytes": rng.choice([0, 600 << 20, 70 * GIB]),
                "memory_total_bytes": 80 * GIB,
                "power_w": rng.uniform(50, 700),
                "energy_mj": round(energy),
                "own_pids": rng.choice([0, 1]),
            }
            rows.append((second, number, {key: value for key, value in values.items() if rng.random() > 0.03}))
        energy = 0.0 if rng.random() < 0.01 else energy + 5e6
        second += rng.choice([10] * 20 + [9, 11, 14, 40, 1000])
    return rows


def test_a_segment_becomes_a_series_for_each_gpu(tmp_path):
    rows: list[tuple[int, int, Values]] = [
        (0, 0, {"util_pct": 7.5}),
        (0, 1, {}),
        (10, 0, {"util_pct": 0}),
        (10, 1, {"util_pct": 3}),
    ]
    write_segment(tmp_path, "n1", rows, gpus=2, fleet="f")
    reading = read(find([str(tmp_path)]))
    first, second = reading.series
    assert (first.gpu, second.gpu) == (gpu("n1", 0), gpu("n1", 1))
    assert first.columns["util_pct"] == [7.5, 0.0]
    assert second.columns["util_pct"] == [None, 3.0]
    assert first.context.job == "7"
    assert first.context.fleet == "f"
    assert first.context.device_name == "NVIDIA H100"
    assert [(s.start_ms - START_MS, s.end_ms - START_MS, s.util_pct) for s in reading.stretches(gpu("n1"))] == [
        (0, 10_000, 7.5),
        (10_000, 20_000, 0.0),
    ]


def test_a_damaged_line_is_counted_and_the_others_are_read(tmp_path):
    path = write_segment(tmp_path, "n1", steady(range(0, 30, 10), {"util_pct": 50}))
    with path.open("a") as file:
        file.write("garbage\n\0\0\0\n#not json\n" + statement("gap", START_MS, why="x") + "\n4,18000")
    reading = read(find([str(tmp_path)]))
    assert len(reading.series[0].utc_ms) == 3
    assert [(problem.kind, problem.numbers["lines"]) for problem in reading.problems] == [("malformed", 3)]
    assert [one.kind for one in reading.statements] == ["gap"]


def test_a_cut_last_line_waits_for_its_end(tmp_path):
    path = write_segment(tmp_path, "n1", steady(range(0, 30, 10), {"util_pct": 50}))
    os.truncate(path, path.stat().st_size - 5)
    assert len(read(find([str(tmp_path)])).series[0].utc_ms) == 2


def test_an_empty_and_a_foreign_file_are_problems_and_end_nothing(tmp_path):
    write_segment(tmp_path, "n1", steady(range(0, 30, 10), {"util_pct": 50}))
    for host, text in (("n2", ""), ("n3", "#something else\nx\n")):
        (tmp_path / host).mkdir()
        (tmp_path / host / f"{START_MS}-abcdef12-7.csv").write_text(text)
    reading = read(find([str(tmp_path)]))
    problems = [(one.host, one.kind) for one in reading.problems]
    assert problems == [("n2", "empty"), ("n2", "no_data"), ("n3", "unreadable")]
    assert sorted(reading.hosts) == ["n1", "n2", "n3"]


def test_two_segments_of_one_gpu_at_once_share_the_time(tmp_path):
    rows = steady(range(0, 600, 10), {"util_pct": 50})
    write_segment(tmp_path, "n1", rows, job="7")
    write_segment(tmp_path, "n1", rows, job="8", start_ms=START_MS + 300)
    tallied = tally(find([str(tmp_path)]), Options())
    assert sum(one.window.observed_ms for one in tallied.tallies) == 600_300
    assert [one.kind for one in tallied.problems] == ["doubled"]


def test_a_clock_that_was_set_does_not_change_durations(tmp_path):
    path = write_segment(tmp_path, "n1", steady(range(0, 60, 10), {"util_pct": 50}))
    lines = path.read_text().split("\n")
    for at in (5, 6, 7):  # the last three samples: their wall clock was set an hour on
        cells = lines[at].split(",")
        cells[1] = str(int(cells[1]) + 3_600_000)
        lines[at] = ",".join(cells)
    path.write_text("\n".join(lines))
    reading = read(find([str(tmp_path)]))
    assert sum(reading.series[0].held_ms) == 60_000
    assert [one.kind for one in reading.problems] == ["clock"]


@pytest.mark.parametrize("seed", range(6))
def test_rollups_and_samples_give_the_same_sums(tmp_path, seed):
    rng = random.Random(seed)
    for number in range(2):
        start = START_MS + rng.randrange(300_000) + number * 10_000_000
        path = write_segment(tmp_path, "n1", random_rows(rng, rng.randrange(20, 500)), gpus=2, start_ms=start)
        rollup.refresh(str(path), whole=rng.random() < 0.7)
    sources = find([str(tmp_path)])
    assert all(source.rollup for source in sources)
    for _ in range(6):
        since = rng.choice([None, START_MS + rng.randrange(6_000_000), START_MS + rng.randrange(20) * 300_000])
        until = rng.choice([None, (since or START_MS) + rng.randrange(1, 15_000_000)])
        options = Options(since_ms=since, until_ms=until)
        windows = read(sources, options).windows()
        for one in tally(sources, options).tallies:
            detail = total([window for window in windows if window.gpu == one.window.gpu], one.window.gpu)
            for field in dataclasses.fields(detail):
                # What a span cuts in two may grow its counter on either side; the rest must be equal.
                if field.name in ("gpu", "start_ms", "length_ms", "expected_ms") or field.name.startswith("counter"):
                    continue
                mine, theirs = getattr(one.window, field.name) or 0, getattr(detail, field.name) or 0
                if field.name.startswith("extra") or field.name == "memory_fraction_sum":
                    continue
                assert mine == pytest.approx(theirs, rel=1e-6, abs=1), (field.name, since, until)


# A roll-up takes the size of a memory from samples that tell its use too; here samples lack values at random.
_APART = (
    "gpu",
    "start_ms",
    "length_ms",
    "expected_ms",
    "extra_samples",
    "extra_ms",
    "memory_fraction_sum",
    "memory_total_bytes",
)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=3),
    rolled=st.lists(st.sampled_from(["whole", "part", "none"]), min_size=3, max_size=3),
    since=st.none() | st.integers(-600, 9_000),
    span=st.none() | st.integers(1, 12_000),
    times=st.sampled_from([1, 2, 12]),
)
def test_windows_of_rollups_are_those_of_samples(tmp_path_factory, seed, lengths, rolled, since, span, times):
    rng, root, start_ms = random.Random(seed), tmp_path_factory.mktemp("t"), START_MS
    for ticks, how in zip(lengths, rolled, strict=False):
        rows = random_rows(rng, ticks)
        start_ms += rng.randrange(30_000, 900_000)
        path = write_segment(root, "n1", rows, gpus=2, start_ms=start_ms)
        start_ms += rows[-1][0] * 1000
        if how != "none":
            rollup.refresh(str(path), whole=how == "whole")
    since_ms = None if since is None else START_MS + since * 1000
    until_ms = None if span is None else (since_ms or START_MS) + span * 1000
    options = Options(since_ms=since_ms, until_ms=until_ms)
    sources, length_ms = find([str(root)]), times * 300_000
    detail = {(one.gpu, one.start_ms): one for one in read(sources, options).windows(length_ms)}
    found = {(one.gpu, one.start_ms): one for one in read_windows(sources, options, length_ms)}
    assert list(found) == sorted(detail)
    for key, window in found.items():
        assert window.length_ms == length_ms
        for field in dataclasses.fields(window):
            # What a span cuts in two may grow its counter on either side; the rest must be equal.
            if field.name in _APART or field.name.startswith("counter"):
                continue
            mine, theirs = getattr(window, field.name) or 0, getattr(detail[key], field.name) or 0
            assert mine == pytest.approx(theirs, rel=1e-6, abs=1), (field.name, key)


def test_windows_that_no_rollup_fits_come_from_samples(tmp_path):
    path = write_segment(tmp_path, "n1", steady(range(0, 3600, 10), {"util_pct": 50}), end="over")
    rollup.refresh(str(path), whole=True)
    sources = find([str(tmp_path)])
    assert {one.observed_ms for one in read_windows(sources, length_ms=60_000)} == {60_000}
    by_rollups = read(sources, Options(use_rollups=True, keep_windows=True))
    assert by_rollups.series == []
    assert {one.observed_ms for one in by_rollups.windows()} == {300_000}
    with pytest.raises(ValueError, match="roll-ups"):
        by_rollups.windows(60_000)


def test_rollups_save_the_reading_of_what_they_cover(tmp_path):
    path = write_segment(tmp_path, "n1", steady(range(0, 40_000, 10), {"util_pct": 50}))
    rollup.refresh(str(path), whole=False)
    read_bytes = sum(end - start for _, start, end, _ in tally(find([str(tmp_path)]), Options()).pieces)
    assert path.stat().st_size > 250_000
    assert read_bytes < path.stat().st_size / 4


def test_a_rollup_of_another_segment_is_passed_over(tmp_path):
    path = write_segment(tmp_path, "n1", steady(range(0, 3000, 10), {"util_pct": 50}))
    rollup.refresh(str(path))
    beside = rollup.rollup_path(str(path))
    with open(beside) as file:
        text = file.read()
    with open(beside, "w") as file:
        file.write(text.replace(path.name, "another.csv"))
    tallied = tally(find([str(tmp_path)]), Options())
    assert [one.kind for one in tallied.problems] == ["rollup"]
    assert tallied.tallies[0].window.observed_ms == 3_000_000


def test_only_the_lines_of_a_span_are_read(tmp_path):
    path = write_segment(tmp_path, "n1", steady(range(0, 86_400, 10), {"util_pct": 50}))
    since = START_MS + 80_000_000
    part = read_lines(str(path), stamp_of, since, since + 100_000)
    stamps = [int(line.split(b",")[1]) for line in part.body.splitlines()]
    assert stamps[0] < since
    assert stamps[-1] >= since + 100_000
    assert len(part.body) < 40_000
    data = path.read_bytes()
    assert data[part.pieces[1].start : part.pieces[1].end] == part.body
    assert part.head == data[: part.pieces[0].end]


def test_old_segments_are_passed_over_by_name_and_age(tmp_path):
    day = 86_400_000
    paths = [
        write_segment(tmp_path, "n1", steady(range(0, 30, 10), {"util_pct": 1}), start_ms=START_MS + at * day)
        for at in range(5)
    ]
    other = write_segment(tmp_path, "n1", steady(range(0, 30, 10), {"util_pct": 1}), job="9", start_ms=START_MS + day)
    os.utime(other, ((START_MS + day) / 1000,) * 2)
    sources = find([str(tmp_path)])
    chosen = within(sources, START_MS + 4 * day + 3_600_000, None)
    assert [source.path for source in chosen] == [str(paths[4])]
    assert within(sources, None, None) == sources
    early = within(sources, None, START_MS + day)
    assert [source.path for source in early] == [str(paths[0])]


def test_what_is_no_telemetry_is_an_error_with_the_way_on(tmp_path):
    with pytest.raises(UsageError, match="no file or folder"):
        find([str(tmp_path / "none")])
    with pytest.raises(UsageError, match="no telemetry"):
        find([str(tmp_path)])


def test_devices_that_come_later_are_known_and_those_that_left_stay_known(tmp_path):
    path = write_segment(tmp_path, "n1", steady(range(0, 30, 10), {"util_pct": 50}))
    row = path.read_text().splitlines()[-1].split(",")
    row[0:6] = ["9", str(START_MS + 30_000), "35000", "", "1", "ok"]
    devices = [{"n": 1, "uuid": "GPU-late", "index": 1, "name": "NVIDIA H200"}]
    with path.open("a") as file:
        file.write(statement("devices", START_MS + 30_000, devices=devices) + "\n" + ",".join(row) + "\n")
    reading = read(find([str(tmp_path)]))
    assert [one.gpu.uuid for one in reading.series] == ["GPU-late", "GPU-n1-0"]
    assert reading.series[0].context.device_name == "NVIDIA H200"


def test_a_pipe_among_the_segments_is_named_and_never_waited_for(tmp_path):
    path = write_segment(tmp_path, "n1", steady(range(0, 100, 10), {"util_pct": 50}))
    os.mkfifo(path.with_name(f"{START_MS + 5}-abcdef12-7.csv"))
    os.mkfifo(path.with_suffix(".rollup.csv"))
    os.mkfifo(tmp_path / "n1" / f"{START_MS + 9}-abcdef12-7.rollup.csv")
    found = tally(find([str(tmp_path)]), Options())
    assert [problem.text.endswith("it is no file") for problem in found.problems] == [True, True]
    assert read(find([str(tmp_path)])).series[0].columns["util_pct"] == [50.0] * 10
    (sick,) = [source for source in find([str(tmp_path)]) if source.start_ms == START_MS + 5]
    assert Reader(sick.path).read().rows == []


@pytest.mark.parametrize("cell", ("nan", "inf", "-inf", "1e308", "1e400", "x"))
@pytest.mark.parametrize("way", ("lines", "frames"))
def test_a_cell_that_no_gpu_could_tell_is_absent(tmp_path, monkeypatch, cell, way):
    path = write_segment(tmp_path, "n1", steady(range(0, 100, 10), {"util_pct": 50, "power_w": 300}))
    lines = path.read_text().splitlines()
    lines[4] = lines[4].replace(",50,", f",{cell},")
    path.write_text("\n".join(lines) + "\n")
    if way == "frames":
        pytest.importorskip("polars", reason="polars is not installed")
        monkeypatch.setattr("fleetcraft.usage.frames.WORTH_BYTES", 1)
    found = summarize(tally(find([str(tmp_path)]), Options()), by="host", options=Options())
    row = json.loads(json.dumps(found.as_json(), allow_nan=False))["rows"][0]
    assert (row["utilization_pct"], row["power_mean_w"]) == (50.0, 300.0)
    assert row["samples"] == 10


@pytest.mark.parametrize(
    "head",
    (
        "null", "[]", "5", "{", '{"host": 5}', '{"host": "n1", "devices": 5}',
        '{"host": "n1", "devices": [5, {"n": []}]}',
        '{"host": "n1", "interval_s": NaN}', '{"host": "n1", "interval_s": "x"}', '{"host": "n1", "interval_s": -1}',
        '{"host": "n1", "devices": [{"n": 0, "memory_bytes": [1], "baseline_bytes": 1e400, "index": "x", "uuid": {}}]}',
    ),
)  # fmt: skip
def test_a_head_of_nonsense_ends_no_reading(tmp_path, head):
    path = write_segment(tmp_path, "n1", steady(range(0, 100, 10), {"util_pct": 50}))
    write_segment(tmp_path, "n2", steady(range(0, 100, 10), {"util_pct": 50}))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].partition(" ")[0] + " " + head, *lines[1:]]) + "\n")
    found = tally(find([str(tmp_path)]), Options())
    assert {one.window.gpu.host for one in found.tallies} >= {"n2"}
    assert any(one.window.gpu.host == "n1" for one in found.tallies) or [one.host for one in found.problems] == ["n1"]
    assert Reader(str(path)).read() is not None


@pytest.mark.parametrize("cell", ("nan", "inf", "x", "1e999"))
def test_a_damaged_rollup_gives_way_to_the_samples(tmp_path, cell):
    path = write_segment(tmp_path, "n1", steady(range(0, 1200, 10), {"util_pct": 50}), end="done")
    rollup.refresh(str(path))
    before = tally(find([str(tmp_path)]), Options())
    told = tmp_path / "n1" / path.name.replace(".csv", ".rollup.csv")
    lines = told.read_text().splitlines()
    place = lines[1].split(",").index("util_sum")
    cells = lines[3].split(",")
    lines[3] = ",".join([*cells[:place], cell, *cells[place + 1 :]])
    told.write_text("\n".join(lines) + "\n")
    after = tally(find([str(tmp_path)]), Options())
    assert [problem.kind for problem in after.problems] == ["rollup"]
    assert [one.window.util_sum for one in after.tallies] == [one.window.util_sum for one in before.tallies]


@pytest.mark.skipif(os.geteuid() == 0, reason="the super-user may read everything")
def test_a_host_that_may_not_be_read_is_named_and_the_others_are_read(tmp_path):
    check_closed_host(tmp_path, lambda: (tmp_path / "n1").chmod(0))
    (tmp_path / "n1").chmod(0o700)


def test_a_host_whose_folder_does_not_open_is_named_and_the_others_are_read(tmp_path, monkeypatch):
    closed, opened, listed = str(tmp_path / "n1"), os.open, os.listdir

    def refuse(path, *rest, ask=opened):
        if path == closed:
            raise PermissionError(13, "Permission denied", path)
        return ask(path, *rest)

    def close():
        monkeypatch.setattr("os.open", refuse)
        monkeypatch.setattr("os.listdir", lambda path: refuse(path, ask=listed))

    check_closed_host(tmp_path, close)


def check_closed_host(tmp_path, close):
    for host in ("n1", "n2"):
        write_segment(tmp_path, host, steady(range(0, 100, 10), {"util_pct": 50}))
    close()
    found = tally(find([str(tmp_path)]), Options())
    assert [(one.host, "Permission denied" in one.text) for one in found.problems] == [("n1", True)]
    assert [one.window.gpu.host for one in found.tallies] == ["n2"]


@pytest.mark.parametrize("later_s", (91, 95, 99, 100, 101, 104, 105, 106, 140))
@pytest.mark.parametrize("which", ("both", "first", "second"))
def test_the_last_sample_of_a_rolled_segment_holds_until_the_next_segment(tmp_path, later_s, which):
    first = write_segment(tmp_path, "n1", steady(range(0, 100, 10), {"util_pct": 50, "power_w": 100}), end="done")
    rows = steady(range(0, 100, 10), {"util_pct": 100, "power_w": 200})
    second = write_segment(tmp_path, "n1", rows, start_ms=START_MS + later_s * 1000, job="8", end="done")
    expected = read(find([str(tmp_path)])).windows()
    for path, name in ((first, "first"), (second, "second")):
        if which in (name, "both"):
            rollup.refresh(str(path))
    found = tally(find([str(tmp_path)]), Options())
    assert sum(one.window.observed_ms for one in found.tallies) == sum(one.observed_ms for one in expected)
    assert sum(one.window.util_sum for one in found.tallies) == sum(one.util_sum for one in expected)
    frozen = answer(Asked(now_ms=START_MS + 10**6), find([str(tmp_path)]), {}, str(tmp_path / "e.json"))
    assert frozen.total.sums.observed_ms == sum(one.observed_ms for one in expected)
    assert verify(str(tmp_path / "e.json")).holds


def test_a_sampler_that_was_killed_is_not_waited_for_once_another_measured(tmp_path):
    write_segment(tmp_path, "n1", steady(range(0, 100, 10), {"util_pct": 50}))
    options = Options(since_ms=START_MS, until_ms=START_MS + 1_000_000)
    (alone,) = tally(find([str(tmp_path)]), options).tallies
    assert alone.window.expected_ms == 1_000_000  # it may still write, and is silent
    rows = steady(range(0, 100, 10), {"util_pct": 50})
    write_segment(tmp_path, "n1", rows, start_ms=START_MS + 200_000, end="done")
    (both,) = tally(find([str(tmp_path)]), options).tallies
    assert both.window.expected_ms == 300_000
