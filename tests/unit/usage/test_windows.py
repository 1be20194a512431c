"""Samples added up: absent values, windows on the clock, the energy counter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.usage.api import Context, Gpu
from fleetcraft.usage.series import Series, hold_all
from fleetcraft.usage.windows import add_up, cut, total

GPU = Gpu(host="h", uuid="GPU-1")
MIB = 1 << 20
START = 1_800_000_000_000


def series(seconds, *, interval_s=10, states=None, baseline_bytes=0.0, **columns):
    one = Series(
        gpu=GPU, context=Context(), path="x", interval_ms=interval_s * 1000,
        utc_ms=[START + round(second * 1000) for second in seconds], columns=columns, states=states,
        baseline_bytes=baseline_bytes,
    )  # fmt: skip
    return hold_all([one])[0]


def test_an_absent_value_is_in_no_mean():
    window = add_up(series([0, 30, 60, 90], interval_s=30, util_pct=[100.0, None, 100.0, None]))
    assert window.util_sum / window.util_ms == 100.0
    assert window.util_ms == 60_000
    assert window.observed_ms == 120_000


def test_means_are_over_time_not_over_samples():
    window = add_up(series([0, 5, 10], util_pct=[100.0, 100.0, 0.0]))
    assert window.util_sum / window.util_ms == 50.0
    assert window.samples == 3


def test_inactive_time_is_split_by_memory_above_the_baseline():
    window = add_up(
        series(
            [0, 10, 20, 30], baseline_bytes=300.0 * MIB,
            util_pct=[4.9, 4.9, 5.0, 0.0], memory_used_bytes=[799.0 * MIB, 800.0 * MIB, 0.0, None],
        )
    )  # fmt: skip
    assert (window.active_ms, window.free_ms, window.reserved_ms) == (10_000, 10_000, 10_000)
    assert window.util_ms - window.active_ms - window.free_ms - window.reserved_ms == 10_000  # of unknown memory


def test_a_lost_gpu_is_unhealthy_time_and_not_observed():
    window = add_up(series([0, 10, 20], states=["ok", "lost", "ok"], util_pct=[100.0, None, 0.0]))
    assert (window.observed_ms, window.bad_ms, window.util_ms) == (20_000, 10_000, 20_000)


def test_memory_is_related_to_the_size_of_the_device():
    window = add_up(series([0, 10], memory_used_bytes=[10.0, 30.0], memory_total_bytes=[80.0, 80.0]))
    assert window.memory_fraction_sum / window.memory_ms == 0.25
    assert window.memory_max_bytes == 30.0


def test_sizes_that_differ_are_each_related_to_their_own():
    window = add_up(series([0, 10], memory_used_bytes=[10.0, 10.0], memory_total_bytes=[20.0, 40.0]))
    assert window.memory_fraction_sum / window.memory_ms == 0.375


def test_the_counter_has_epochs_and_knows_nothing_over_gaps():
    one = series([0, 10, 20, 30, 100], energy_mj=[1000.0, 3000.0, 500.0, 700.0, 9000.0])
    window = add_up(one)
    assert (window.counter_mj, window.counter_ms, window.counter_resets) == (2200.0, 20_000, 1)


def test_a_sample_over_an_edge_gives_each_window_its_part():
    windows = cut(series([295, 305], util_pct=[100.0, 0.0]))
    assert [(w.start_ms - START, w.observed_ms, w.active_ms, w.samples) for w in windows] == [
        (0, 5000, 5000, 1),
        (300_000, 15_000, 5000, 1),
    ]


def test_without_a_split_a_sample_belongs_where_it_starts():
    windows = cut(series([295, 305], util_pct=[100.0, 0.0]), split=False)
    assert [(w.observed_ms, w.active_ms) for w in windows] == [(10_000, 10_000), (10_000, 0)]


def test_growth_of_the_counter_over_an_edge_is_shared_by_time():
    windows = cut(series([295, 305, 315], energy_mj=[0.0, 100.0, 200.0]))
    assert [(w.counter_mj, w.counter_ms) for w in windows] == [(50.0, 5000), (150.0, 15_000)]


def test_a_sample_longer_than_windows_fills_them():
    windows = cut(series([5], interval_s=60, util_pct=[50.0]), 20_000)
    assert [w.observed_ms for w in windows] == [15_000, 20_000, 20_000, 5000]
    assert [w.samples for w in windows] == [1, 0, 0, 0]


SAMPLES = st.lists(
    st.tuples(
        st.sampled_from([0.4, 5, 10, 10, 10, 14.9, 40, 900]),
        st.one_of(st.none(), st.floats(0, 100)),
        st.one_of(st.none(), st.integers(0, 1 << 37).map(float)),
        st.sampled_from(["ok", "ok", "ok", "lost"]),
    ),
    min_size=1,
    max_size=60,
)


@given(SAMPLES, st.integers(0, 299))
def test_windows_add_up_to_the_whole(samples, begin):
    seconds, at = [], float(begin)
    for step, *_ in samples:
        seconds.append(at)
        at += step
    one = series(
        seconds, states=[row[3] for row in samples],
        util_pct=[row[1] for row in samples], memory_used_bytes=[row[2] for row in samples],
        energy_mj=[float(place) for place in range(len(samples))],
    )  # fmt: skip
    whole, parts = add_up(one), total(cut(one), GPU)
    for name in (
        "observed_ms", "bad_ms", "samples", "util_ms", "active_ms", "memory_ms", "reserved_ms", "free_ms", "counter_ms",
        "counter_resets", "first_ms", "last_ms", "memory_max_bytes",
    ):  # fmt: skip
        assert getattr(parts, name) == getattr(whole, name), name
    assert parts.util_sum == pytest.approx(whole.util_sum)
    assert parts.counter_mj == pytest.approx(whole.counter_mj)
    stretches = list(one.stretches())
    assert sum(stretch.end_ms - stretch.start_ms for stretch in stretches) == whole.observed_ms + whole.bad_ms


@given(SAMPLES, st.integers(0, 900), st.integers(0, 900))
def test_a_span_and_what_is_around_it_add_up_to_the_whole(samples, first, length):
    seconds, at = [], 0.0
    for step, *_ in samples:
        seconds.append(at)
        at += step
    one = series(seconds, util_pct=[row[1] for row in samples])
    a, b = START + first * 1000, START + (first + length) * 1000
    parts = [part for part in (one.clip(None, a), one.clip(a, b), one.clip(b, None)) if part.utc_ms]
    sums = total([add_up(part) for part in parts], GPU)
    whole = add_up(one)
    assert sums.observed_ms == whole.observed_ms
    assert sums.samples == whole.samples
    assert sums.util_sum == pytest.approx(whole.util_sum)
