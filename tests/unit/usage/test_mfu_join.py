"""FLOPs over held time: made-up lines, attempts and samples, and what simple arithmetic says of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.usage import flops
from fleetcraft.usage.api import Gpu, Stretch
from fleetcraft.usage.ledger import Evidence
from fleetcraft.usage.ledger_api import Class, Hold, Line, Presence
from fleetcraft.usage.mfu_join import NO_ATTEMPT, NO_NAME, NO_SAMPLES, ROUGH, MfuTable, Work, join
from fleetcraft.usage.mfu_means import Device
from fleetcraft.usage.peaks import Peak

S = 1000
ONE, TWO = Gpu(host="n1", uuid="GPU-1"), Gpu(host="n1", uuid="GPU-2", index=1)
A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
GH200 = "NVIDIA GH200 480GB"


def evidence(gpu: Gpu, *holds: Hold, end_s: int = 100) -> Evidence:
    there = Presence(start_ms=0, up_ms=0, end_ms=end_s * S)
    return Evidence(line=Line(gpu=gpu, spans=((0, end_s * S),)), presences=[there], holds=holds)


def hold(start_s: int, end_s: int, task: str = "1.0", **more: Any) -> Hold:
    return Hold(start_ms=start_s * S, end_ms=end_s * S, kind=Class.USEFUL, task=task, attempt=1, **more)


def device(gpu: Gpu, name: str = A100, *parts: tuple[int, int, float | None, float | None]) -> tuple[Gpu, Device]:
    """From, to, tensor activity in percent, clock in MHz."""
    return gpu, Device.of(
        name,
        [
            Stretch(gpu=gpu, start_ms=low * S, end_ms=high * S, tensor_pct=tensor, sm_clock_mhz=clock)
            for low, high, tensor, clock in parts
        ],
    )


def table(
    evidences: list[Evidence], works: dict[str, Work], *devices: tuple[Gpu, Device], begin_s: int = 0, end_s: int = 100,
    **more: Any,
) -> MfuTable:  # fmt: skip
    keys = {(one.task, one.attempt, one.start_ms): one.task for each in evidences for one in each.holds}
    told = {key: works[task] for key, task in keys.items() if task in works}
    return join(evidences, told, dict(devices).get, period=(begin_s * S, end_s * S), **more)


def test_the_whole_divides_by_idle_time_too_and_a_family_by_its_own():
    work = Work(name="a", family="train", flops=312e12 * 20)
    found = table([evidence(ONE, hold(0, 40))], {"1.0": work}, device(ONE))
    (row,) = found.rows
    assert (row.key, row.held_ms) == ("train", 40 * S)
    assert row.mfu.estimated == pytest.approx(0.5)
    assert (found.total.held_ms, found.total.work_ms) == (100 * S, 40 * S)
    assert found.total.mfu.estimated == pytest.approx(0.2)
    assert found.total.mfu.source == "NVIDIA A100 product page"


def test_a_period_gets_the_flops_of_the_time_in_it():
    work = Work(flops=312e12 * 20)
    found = table([evidence(ONE, hold(0, 40))], {"1.0": work}, device(ONE), begin_s=30, end_s=50)
    assert found.total.mfu.flops == pytest.approx(312e12 * 5)
    assert found.total.mfu.estimated == pytest.approx(0.25)
    assert found.rows[0].mfu.estimated == pytest.approx(0.5)


def test_those_who_share_a_gpu_have_their_part_of_its_time():
    both = [hold(0, 40, "1.0", weight=250), hold(0, 40, "1.1", weight=750)]
    works = {"1.0": Work(name="small", flops=312e12), "1.1": Work(name="large", flops=312e12 * 9)}
    sampled = device(ONE, A100, (0, 100, 60.0, 1410.0))
    found = table([evidence(ONE, *both)], works, sampled, by="task")
    large, small = found.rows
    assert (large.label, large.held_ms) == ("large", 30 * S)
    assert large.mfu.estimated == pytest.approx(0.3)
    assert (small.label, small.held_ms) == ("small", 10 * S)
    assert small.mfu.estimated == pytest.approx(0.1)
    assert any("shared" in flag for flag in small.mfu.flags)
    assert found.total.mfu.flops == pytest.approx(312e12 * 10)


def test_an_attempt_on_two_kinds_of_devices_divides_by_the_sum_of_peak_times_held():
    work = Work(flops=1e15)
    lines = [evidence(ONE, hold(0, 50)), evidence(TWO, hold(0, 50))]
    found = table(
        lines, {"1.0": work}, device(ONE, A100, (0, 100, 20.0, 1410.0)), device(TWO, H100, (0, 100, 40.0, 915.0))
    )
    (row,) = found.rows
    h100 = row.mfu.peak_tflops * 2 - 312 if row.mfu.peak_tflops else 0
    assert h100 == pytest.approx(989.4, abs=1)
    assert row.mfu.estimated == pytest.approx(1e15 / ((312 + h100) * 1e12 * 50))
    assert row.mfu.measured == pytest.approx(0.3)
    # The A100 ran at its boost clock of 1410 MHz and the H100 at half of its 1830.
    assert row.mfu.at_clock == pytest.approx(1e15 / ((312 + h100 / 2) * 1e12 * 50))
    by_gpu = table(lines, {"1.0": work}, device(ONE), device(TWO, H100), by="gpu").rows
    assert [one.mfu.flops for one in by_gpu] == [pytest.approx(5e14)] * 2
    assert by_gpu[0].mfu.estimated == pytest.approx(5e14 / (312e12 * 100))


def test_one_unknown_device_leaves_no_estimate_for_the_rows_that_it_is_in():
    lines = [evidence(ONE, hold(0, 50)), evidence(TWO)]
    found = table(lines, {"1.0": Work(flops=1e15)}, device(ONE), device(TWO, "Somebody's GPU"))
    assert found.rows[0].mfu.estimated is not None
    assert found.total.mfu.estimated is None
    assert found.total.mfu.estimated_reason == (
        'no peak is known for a device named "Somebody\'s GPU", for 50.0% of the held time'
    )
    unseen = table([evidence(ONE, hold(0, 50))], {"1.0": Work(flops=1e15)})
    assert (unseen.total.mfu.estimated, unseen.total.mfu.estimated_reason) == (None, NO_NAME)
    assert unseen.total.mfu.measured_reason == NO_SAMPLES


def test_no_clock_leaves_no_number_at_the_clock_and_no_tensor_activity_none_measured():
    found = table([evidence(ONE, hold(0, 50))], {"1.0": Work(flops=1e15)}, device(ONE, A100, (0, 100, None, None)))
    mfu = found.rows[0].mfu
    assert mfu.estimated is not None
    assert (mfu.at_clock, mfu.at_clock_reason) == (None, "no clock was recorded")
    assert (mfu.measured, mfu.measured_reason) == (None, "not available on this GPU without admin")
    mixed = table(
        [evidence(ONE, hold(0, 50)), evidence(TWO, hold(0, 50))], {"1.0": Work(flops=1e15)},
        device(ONE, A100, (0, 100, None, 1410.0)), device(TWO, H100),
    )  # fmt: skip
    assert mixed.rows[0].mfu.estimated is not None
    assert (mixed.rows[0].mfu.at_clock, mixed.rows[0].mfu.at_clock_reason) == (None, "no clock was recorded")


def test_means_are_over_the_time_of_the_attempt_and_weighed_by_time():
    sampled = device(ONE, A100, (0, 10, 0.0, 300.0), (10, 40, 80.0, 1410.0), (40, 100, 0.0, 300.0))
    found = table([evidence(ONE, hold(0, 40))], {"1.0": Work(flops=312e12 * 16)}, sampled)
    row = found.rows[0]
    assert row.mfu.measured == pytest.approx(0.6)
    assert row.sm_clock_mhz == pytest.approx((10 * 300 + 30 * 1410) / 40)
    assert row.mfu.at_clock == pytest.approx(0.4 * 1410 / (row.sm_clock_mhz or 0))
    assert found.total.mfu.measured == pytest.approx(0.24)
    half = table([evidence(ONE, hold(0, 40))], {}, device(ONE, A100, (0, 20, 50.0, 1410.0))).total
    assert half.mfu.measured == pytest.approx(0.5)
    assert "measured over 20.0% of the held time" in half.mfu.flags


def test_attempts_without_flops_make_a_lower_bound_and_none_at_all_the_reason():
    lines = [evidence(ONE, hold(0, 40, "1.0"), hold(50, 70, "1.1"))]
    some = {"1.0": Work(flops=312e12 * 20), "1.1": Work(reason="it ended failed")}
    found = table(lines, some, device(ONE))
    assert found.rows[0].mfu.estimated == pytest.approx(1 / 3)
    assert found.rows[0].mfu.flags == (
        "FLOPs are known of 1 of 2 attempts, 66.7% of the GPU time that attempts held; the estimate is a lower bound",
    )
    none = table(lines, {"1.0": Work(reason="no"), "1.1": Work(reason="it ended failed")}, device(ONE)).total.mfu
    assert (none.estimated, none.flops) == (None, None)
    assert none.estimated_reason == "1 of 2: no; 1 of 2: it ended failed"
    assert table([evidence(ONE)], {}, device(ONE)).total.mfu.estimated_reason == NO_ATTEMPT


def test_above_one_is_shown_as_an_error_and_not_as_a_number():
    found = table([evidence(ONE, hold(0, 40))], {"1.0": Work(flops=312e12 * 41)}, device(ONE))
    mfu = found.rows[0].mfu
    assert (mfu.estimated, mfu.at_clock) == (None, None)
    assert mfu.flags[0].startswith("impossible")
    assert "above 1" in mfu.estimated_reason


def test_samples_too_far_apart_for_short_attempts_say_nothing_against_the_estimate():
    # The one sample is of the idle GPU, at a clock at which the work could not have been done.
    sampled = device(ONE, A100, *((at, at + 10, 0.0, 210.0) for at in range(0, 100, 10)))
    short = table([evidence(ONE, hold(0, 5))], {"1.0": Work(flops=312e12 * 2)}, sampled).rows[0].mfu
    assert short.estimated == pytest.approx(0.4)
    assert short.at_clock is None
    assert "too far apart" in short.at_clock_reason
    assert ROUGH in short.flags
    long = table([evidence(ONE, hold(0, 100))], {"1.0": Work(flops=312e12 * 40)}, sampled).rows[0].mfu
    assert (long.estimated, long.at_clock) == (None, None)
    assert long.flags[0].startswith("impossible")


def test_a_task_s_precision_goes_before_the_asked_one():
    own = (Peak(label="x", names=("X",), tflops={"bf16": 100.0, "fp8": 200.0}, source="mine", seen="page"),)
    work = Work(flops=100e12 * 20, precision="fp8")
    found = table([evidence(ONE, hold(0, 40))], {"1.0": work}, device(ONE, "x"), peaks=own)
    assert found.rows[0].mfu.precision == "fp8"
    assert found.rows[0].mfu.estimated == pytest.approx(0.25)
    # Idle time divides by what was asked for.
    assert found.total.mfu.estimated == pytest.approx(20 / (2 * 40 + 60))
    assert found.total.mfu.precision == "mixed"
    wrong = table(
        [evidence(ONE, hold(0, 40))], {"1.0": Work(flops=1e15)}, device(ONE, "x"), peaks=own, precision="tf32"
    )
    assert "no dense peak for tf32; it has bf16, fp8" in wrong.total.mfu.estimated_reason


def test_a_published_time_comes_out_of_the_whole_join_to_the_digit():
    shape = {"parameters": 1.3e9, "layers": 30, "width": 1536, "tokens": 32760}
    total = flops.resolve({"formula": "video_forward", "calls": 100, **shape})
    line = evidence(ONE, Hold(start_ms=0, end_ms=68_300, kind=Class.USEFUL, task="1.0", attempt=1))
    found = table([line], {"1.0": Work(family="video", flops=total)}, device(ONE, GH200))
    assert round(100 * (found.rows[0].mfu.estimated or 0), 2) == pytest.approx(41.85, abs=0.0051)


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 60), st.integers(1, 1000)), min_size=1, max_size=6),
    st.integers(1, 99),
)
def test_no_flop_is_lost_or_counted_twice_wherever_a_period_is_cut(parts, cut_s):
    holds = [hold(low, min(100, low + length), f"1.{n}", weight=w) for n, (low, length, w) in enumerate(parts)]
    works = {f"1.{n}": Work(family=f"f{n % 2}", flops=1e12 * (n + 1)) for n in range(len(parts))}
    lines = [evidence(ONE, *holds)]
    pieces = [
        table(lines, works, device(ONE), begin_s=low, end_s=high) for low, high in ((0, cut_s), (cut_s, 100), (0, 100))
    ]
    sums = [sum(row.mfu.flops or 0 for row in piece.rows) for piece in pieces]
    assert sums[0] + sums[1] == pytest.approx(sums[2]) == pytest.approx(sum(work.flops or 0 for work in works.values()))
    assert [piece.total.mfu.flops or 0 for piece in pieces] == [pytest.approx(each) for each in sums]
    for piece in pieces:
        assert sum(row.held_ms for row in piece.rows) == piece.total.work_ms <= piece.total.held_ms
