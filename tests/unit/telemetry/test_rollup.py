"""Roll-ups say what the windows of `usage` say, and one that does not fit its segment is never believed."""

from __future__ import annotations

import os
import random
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.store.files import Files
from fleetcraft.telemetry import rollup
from fleetcraft.telemetry.api import Device, DeviceState, Reading
from fleetcraft.telemetry.segment import COLUMN_LINE, Header, Slot, encode_row
from fleetcraft.usage import holding
from fleetcraft.usage.api import Context, Gpu, Window
from fleetcraft.usage.series import Series, hold_all
from fleetcraft.usage.windows import cut

_START_MS = 1_800_000_000_000


def test_it_has_the_sums_of_a_window():
    of_window = {field.name for field in fields(Window)} - {"gpu", "expected_ms"}
    assert set(rollup.SUMS) == of_window
    assert (rollup.ACTIVE_PCT, rollup.RESERVED_BYTES, rollup.WINDOW_MS, rollup.CAP) == (
        holding.ACTIVE_PCT, holding.RESERVED_BYTES, holding.WINDOW_MS, holding.CAP,
    )  # fmt: skip


def _loaded(*words):
    found = rollup.load(*words)
    assert found is not None
    return found


def _maybe(values):
    return st.none() | values


_SAMPLE = st.fixed_dictionaries(
    {
        "util_pct": _maybe(st.sampled_from((0.0, 4.9, 5.0, 60.0, 100.0))),
        "memory_used_bytes": _maybe(st.sampled_from((0.0, float(499 << 20), float(500 << 20), float(60 << 30)))),
        "memory_total_bytes": st.just(float(80 << 30)),
        "power_w": _maybe(st.floats(0, 700)),
        "energy_mj": _maybe(st.integers(0, 10**9).map(float)),
        "sm_active_pct": _maybe(st.floats(0, 100)),
        "own_pids": _maybe(st.sampled_from((0.0, 2.0))),
    }
)
_STEPS = st.lists(
    st.tuples(
        st.sampled_from((10_000, 10_000, 10_000, 9_000, 14_999, 15_000, 15_001, 40_000, 290_000, 700_000)),
        _SAMPLE,
        st.sampled_from(("ok", "ok", "ok", "hung")),
    ),
    min_size=1,
    max_size=60,
)


@given(_STEPS, st.integers(0, 299_999))
def test_windows_are_those_of_usage(steps, phase):
    gpu = Gpu(host="h", uuid="GPU-0")
    at, stamps = _START_MS + phase, []
    for delta, _, _ in steps:
        stamps.append(at)
        at += delta
    roller = rollup.Roller(10_000, {0: 0.0})
    for place, (stamp, (_, values, state)) in enumerate(zip(stamps, steps, strict=True)):
        roller.add(0, stamp, state, values, place)
    rolled = roller.take() + roller.close(len(steps))
    names = list(steps[0][1])
    series = Series(
        gpu=gpu, context=Context(), path="", interval_ms=10_000, utc_ms=list(stamps),
        columns={name: [values[name] for _, values, _ in steps] for name in names},
        states=[state for _, _, state in steps],
    )  # fmt: skip
    windows = cut(hold_all([series])[0])
    assert [one.sums["start_ms"] for one in rolled] == [window.start_ms for window in windows]
    for one, window in zip(rolled, windows, strict=True):
        for name in set(rollup.SUMS) - {"extra_samples", "extra_ms"}:
            mine, theirs = one.sums[name], getattr(window, name)
            if name == "counter_mj" and not window.counter_ms:
                mine, theirs = mine or 0.0, theirs or 0.0  # a counter that never grew, or was not there
            assert mine == (None if theirs is None else pytest.approx(theirs, rel=1e-9, abs=1e-6)), name


def _write(path, ticks, devices=2, interval_ms=10_000, seed=1, hung=()):
    dice = random.Random(seed)
    slots = tuple(
        Slot(n=n, device=Device(uuid=f"GPU-{n}", index=n, name="", memory_bytes=80 << 30), baseline_bytes=0)
        for n in range(devices)
    )
    header = Header(host="h", interval_s=interval_ms / 1000, started_utc_ms=_START_MS, slots=slots)
    lines = [header.line(), COLUMN_LINE]
    for tick in range(ticks):
        for n in range(devices):
            values = {
                "util_pct": float(dice.choice((0, 3, 50, 100))), "memory_used_bytes": float(dice.choice((0, 1 << 34))),
                "power_w": dice.uniform(50, 700), "energy_mj": 1000.0 * tick + n,
            }  # fmt: skip
            state = DeviceState.HUNG if (tick, n) in hung else DeviceState.OK
            reading = Reading(uuid=f"GPU-{n}", values={} if (tick, n) in hung else values, state=state)
            lines.append(encode_row(tick, _START_MS + tick * interval_ms, tick * interval_ms, interval_ms, n, reading))
    with open(path, "w") as target:
        target.write("\n".join(lines) + "\n")
    return len("\n".join(lines)) + 1


@pytest.fixture
def segment(tmp_path):
    path = str(tmp_path / "1800000000000-abc-none.csv")
    _write(path, 100, hung={(30, 1), (31, 1)})
    return path


def test_it_is_made_where_it_is_missing_and_then_found(segment):
    made = rollup.refresh(segment)
    assert len(made.windows) == 8
    assert made.windows == _loaded(rollup.rollup_path(segment)).windows
    before = os.stat(rollup.rollup_path(segment)).st_ino
    assert rollup.refresh(segment) == made
    assert os.stat(rollup.rollup_path(segment)).st_ino == before
    assert sum(one.sums["bad_ms"] for one in made.windows) == 20_000
    assert sum(one.sums["observed_ms"] for one in made.windows) == 2 * 1_000_000 - 20_000


@pytest.mark.parametrize(
    "damage",
    (
        lambda text, _: text.replace('"window_ms":300000', '"window_ms":600000'),
        lambda text, _: text.replace('"active_pct":5.0', '"active_pct":1.0'),
        lambda text, _: text.replace("rollup/1", "rollup/2"),
        lambda text, _: text.replace("none.csv", "other.csv"),
        lambda text, _: text + "1,2,3\n",
        lambda text, _: text + "\0\0\0\n",
        lambda text, size: text + text.splitlines()[-1].replace(str(size), str(size + 1), 1) + "\n",
        lambda _text, _: "",
        lambda _text, _: "#fleetcraft.telemetry.rollup/1 {\n\n",
    ),
    ids=("window", "threshold", "version", "segment", "short line", "zeros", "ahead", "empty", "no json"),
)
def test_one_that_does_not_fit_is_made_anew(segment, damage):
    made = rollup.refresh(segment)
    path, size = rollup.rollup_path(segment), os.path.getsize(segment)
    with open(path) as source:
        text = source.read()
    changed = damage(text, size)
    assert changed != text
    with open(path, "w") as target:
        target.write(changed)
    assert rollup.load(path, os.path.basename(segment), size) is None
    assert rollup.refresh(segment) == made


def test_a_cut_line_costs_only_its_window(segment):
    made = rollup.refresh(segment)
    path = rollup.rollup_path(segment)
    with open(path, "r+b") as target:
        target.truncate(os.path.getsize(path) - 5)
    assert _loaded(path, os.path.basename(segment), os.path.getsize(segment)).windows == made.windows[:-1]


def test_the_segment_is_read_on_from_the_offset(segment):
    """What lies behind a roll-up comes out the same, read from its offset alone."""
    whole = rollup.build(segment)
    for edge in sorted({one.sums["start_ms"] for one in whole})[:-1]:
        last = [one for one in whole if one.sums["start_ms"] == edge]
        with open(segment, "rb") as source:
            head = b"".join(source.readline() for _ in range(2))
            source.seek(last[0].offset)
            rest = source.read()
        cut_path = segment + ".rest"
        with open(cut_path, "wb") as target:
            target.write(head + rest)
        again = [one for one in rollup.build(cut_path) if one.sums["start_ms"] > edge]
        for one, other in zip(again, [one for one in whole if one.sums["start_ms"] > edge], strict=True):
            assert one.n == other.n
            assert one.sums == pytest.approx(other.sums)


def test_a_segment_without_a_head_has_no_windows(tmp_path):
    path = str(tmp_path / "1800000000000-abc-none.csv")
    Files().create(path)
    assert rollup.build(path) == []
    assert rollup.refresh(path).windows == []
    assert not os.path.exists(rollup.rollup_path(path))


def test_a_clock_that_is_set_back_a_little_counts_no_time_twice():
    roller = rollup.Roller(10_000)
    for stamp in (0, 10_000, 20_000, 15_000, 25_000):
        roller.add(0, _START_MS + stamp, "ok", {"util_pct": 1.0}, stamp)
    windows = roller.close(30)
    assert not roller.stepped
    assert sum(one.sums["observed_ms"] for one in windows) == 35_000


def test_a_clock_that_is_set_back_far_leaves_no_roll_up(tmp_path):
    path = str(tmp_path / "1800000000000-abc-none.csv")
    _write(path, 100)
    with open(path) as source:
        lines = source.read().splitlines()
    with open(path, "w") as target:
        for line in lines:
            seq, stamp, rest = (*line.split(",", 2), "", "")[:3]
            back = line[0] not in "#s" and int(seq) >= 50
            target.write(f"{seq},{int(stamp) - 3_600_000},{rest}\n" if back else line + "\n")
    assert rollup.build(path) == []
    assert rollup.refresh(path).windows == []
    assert not os.path.exists(rollup.rollup_path(path))


@given(st.integers(1, 4_000), st.integers(0, 29_999))
def test_rows_of_one_tick_with_different_times_never_make_a_window_longer_than_it_is(apart_ms, phase_ms):
    roller = rollup.Roller(30_000)
    for tick in range(40):
        for n in range(2):
            at = _START_MS + phase_ms + tick * 30_000 + n * apart_ms
            roller.add(n, at, "ok", {"util_pct": 50.0}, tick * 2 + n)
    windows = [one.sums for one in (*roller.take(), *roller.close(100))]
    assert roller.stepped or sum(sums["observed_ms"] or 0 for sums in windows) == 2 * 40 * 30_000
    assert roller.stepped or all((sums["observed_ms"] or 0) <= rollup.WINDOW_MS for sums in windows)
