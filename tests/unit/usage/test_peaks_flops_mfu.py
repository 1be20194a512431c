"""Peaks, formulas and the three numbers: the published anchors come out to the digit, and nothing is made up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.core.errors import UsageError
from fleetcraft.usage import flops, mfu, peaks

Shape = dict[str, float]
WAN: Shape = {"parameters": 1.3e9, "layers": 30, "width": 1536, "tokens": 32760}
COG: Shape = {"parameters": 5e9, "layers": 42, "width": 3072, "tokens": 17550, "batch": 2}
LTX: Shape = {"parameters": 2e9, "layers": 28, "width": 2048, "tokens": 6930, "batch": 2}
HUNYUAN: Shape = {"parameters": 13e9, "layers": 60, "width": 3072, "tokens": 21600}
WAN22: Shape = {"parameters": 5e9, "layers": 30, "width": 3072, "tokens": 27280}
WAN14: Shape = {"parameters": 14e9, "layers": 40, "width": 5120, "tokens": 32760}
LTX41 = LTX | {"tokens": 2112, "batch": 1}
WAN33 = WAN | {"tokens": 14040}
COG2B: Shape = {"parameters": 2e9, "layers": 30, "width": 1920, "tokens": 17550}
HUNYUAN33 = HUNYUAN | {"tokens": 14040}

FORWARDS: list[tuple[Shape, float]] = [
    (WAN, 282.9915),
    (COG, 668.9177),
    (LTX, 77.4715),
    (HUNYUAN, 905.5854),
    (WAN22, 547.1413),
    (WAN14, 1796.4599),
    (LTX41, 9.471),
    (WAN33, 72.837),
    (COG2B, 141.164),
    (HUNYUAN33, 510.374),
]


@pytest.mark.parametrize(("shape", "tflop"), FORWARDS)
def test_the_forward_of_published_models_comes_out_to_the_digit(shape, tflop):
    digits = len(str(tflop).partition(".")[2])
    # Two of the published figures are sums of rounded parts.
    assert flops.video_forward(**shape) / 1e12 == pytest.approx(tflop, abs=1.01 * 10**-digits)


A100, H100, GB200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA GB200"
GH200 = "NVIDIA GH200 480GB"
TIMES: list[tuple[Shape, int, float, str, float]] = [
    (WAN, 100, 68.3, GH200, 41.85),
    (WAN, 48, 34.7, GH200, 39.54),
    (COG, 50, 91.3, GH200, 37.00),
    (LTX, 50, 10.8, GH200, 36.23),
    (HUNYUAN, 50, 92.0, GH200, 49.71),
    (WAN22, 100, 213.0, GH200, 25.95),
    (LTX41, 100, 3600 / 364.2, A100, 30.71),
    (LTX41, 100, 3600 / 625.6, H100, 16.64),
    (WAN33, 100, 3600 / 51.3, A100, 33.27),
    (COG2B, 100, 3600 / 37.6, A100, 47.26),
    (HUNYUAN33, 50, 3600 / 26.8, H100, 19.20),
    (WAN, 100, 3600 / 104.9, GB200, 32.98),
]


@pytest.mark.parametrize(("shape", "calls", "seconds", "device", "percent"), TIMES)
def test_the_utilization_of_published_times_comes_out_to_the_digit(shape, calls, seconds, device, percent):
    total = flops.resolve({"formula": "video_forward", "calls": calls, **shape})
    found = mfu.reckon(flops=total, peak=peaks.find(device), device_name=device, held_s=seconds)
    assert found.estimated is not None
    assert round(100 * found.estimated, 2) == pytest.approx(percent, abs=0.0051)


def test_a_figure_with_a_clock_behind_it_is_what_the_clock_gives():
    checked = [peak for peak in peaks.shipped() if peak.boost_mhz]
    assert len(checked) > 10
    for peak in checked:
        computed = (peak.multiprocessors or 0) * (peak.flops_per_clock or 0) * (peak.boost_mhz or 0) * 1e-6
        printed = peak.tflops.get("bf16") or peak.tflops["fp16"]
        assert computed == pytest.approx(printed, rel=0.004), peak.label


def test_every_figure_has_a_source_and_no_name_stands_twice():
    names = [" ".join(name.split()).casefold() for peak in peaks.shipped() for name in peak.names]
    assert len(names) == len(set(names))
    assert all(peak.source and peak.seen in ("page", "second hand", "no") for peak in peaks.shipped())


@pytest.mark.parametrize(
    "name", ("NVIDIA L40", "NVIDIA H100", "B200 of somebody", "NVIDIA GB200 superchip", "", "cuda")
)
def test_an_unknown_name_has_no_peak(name):
    assert peaks.find(name) is None
    found = mfu.reckon(flops=1e15, peak=None, device_name=name, held_s=10)
    assert found.estimated is None
    assert "no peak is known" in found.estimated_reason


def test_a_name_that_holds_another_one_is_not_taken_for_it():
    b200, gb200 = peaks.find("NVIDIA B200"), peaks.find("nvidia  gb200")
    assert b200 is not None
    assert gb200 is not None
    assert (b200.tflops["bf16"], gb200.tflops["bf16"]) == (2250.0, 2500.0)


def test_a_wrong_precision_is_refused_with_those_that_exist():
    found = mfu.reckon(flops=1e15, peak=peaks.find("Tesla V100-SXM2-16GB"), device_name="V100", held_s=100)
    assert (found.estimated, found.at_clock) == (None, None)
    assert "no dense peak for bf16; it has fp16" in found.estimated_reason


def test_above_one_is_an_error_and_near_one_a_warning():
    peak = peaks.find(A100)
    over = mfu.reckon(flops=312e12 * 11.2, peak=peak, device_name=A100, held_s=10)
    assert over.estimated is None
    assert "impossible" in over.flags[0]
    near = mfu.reckon(flops=312e12 * 9, peak=peak, device_name=A100, held_s=10)
    assert near.estimated == pytest.approx(0.9)
    assert "suspicious" in near.flags[0]


def test_an_estimate_above_the_measured_ceiling_is_flagged_unless_the_kernels_are_sparse():
    peak = peaks.find(H100)
    facts: dict[str, Any] = {
        "flops": 989.4e12 * 4.2,
        "peak": peak,
        "device_name": H100,
        "held_s": 10,
        "tensor_pct": 31.0,
    }
    found = mfu.reckon(**facts)
    assert found.estimated == pytest.approx(0.42)
    assert found.measured == pytest.approx(0.31)
    assert any("exceeds the measured" in flag for flag in found.flags)
    assert mfu.reckon(**facts, sparse=True).flags == ()


def test_the_clock_separates_throttling_from_software():
    found = mfu.reckon(flops=400e12 * 10, peak=peaks.find(H100), device_name=H100, held_s=10, sm_clock_mhz=1400)
    assert found.estimated == pytest.approx(0.404, abs=5e-4)
    assert found.at_clock == pytest.approx(0.528, abs=5e-4)


def test_half_rate_accumulation_and_half_modules_are_the_figures_of_one_device():
    half_rate, gcd = peaks.find("NVIDIA GeForce RTX 4090"), peaks.find("AMD Instinct MI250X")
    assert half_rate is not None
    assert gcd is not None
    assert half_rate.tflops["bf16"] == 165.2
    assert (gcd.tflops["bf16"], gcd.tflops["bf16"] * gcd.per_module) == (191.5, 383.0)


@pytest.mark.parametrize(
    ("declared", "says"),
    (
        (True, "not true or false"),
        (0, "above 0"),
        (float("nan"), "above 0"),
        ({"formula": "guess"}, "unknown formula 'guess'"),
        ({"formula": "video_forward", "parameters": 1}, "it takes parameters, layers, width, tokens, batch"),
        ({"formula": "video_forward", **WAN, "layers": -1}, "layers must be a number above 0"),
        ({"formula": "video_forward", **WAN, "calls": "many"}, "calls must be a number above 0"),
    ),
)
def test_a_declaration_that_cannot_be_reckoned_is_named(declared, says):
    with pytest.raises(UsageError, match=says.replace("(", r"\(")):
        flops.resolve(declared)


def test_the_formulas_of_language_models():
    shape = {"layers": 32, "context": 2048}
    train = flops.transformer_train(parameters=7e9, heads=32, head_width=128, **shape)
    assert train == 6 * 7e9 + 12 * 32 * 32 * 128 * 2048
    infer = flops.transformer_infer(parameters=7e9, width=4096, **shape)
    assert train == 3 * infer
    lora = flops.transformer_lora(parameters=7e9, trainable=1e7, width=4096, **shape)
    assert infer < lora < train


@given(st.floats(1e9, 1e18), st.floats(0.001, 1e7), st.floats(0.0, 100.0) | st.none(), st.floats(100, 3000) | st.none())
def test_what_is_printed_is_a_share_or_absent_with_a_reason(declared, held_s, tensor, clock):
    found = mfu.reckon(
        flops=declared, peak=peaks.find(H100), device_name=H100, held_s=held_s, tensor_pct=tensor, sm_clock_mhz=clock
    )
    for value, reason in (
        (found.estimated, found.estimated_reason),
        (found.measured, found.measured_reason),
        (found.at_clock, found.at_clock_reason),
    ):
        assert (value is None) == bool(reason)
        assert value is None or 0 <= value <= 1


def test_a_file_may_add_a_device_and_must_say_its_source(tmp_path):
    mine = tmp_path / "peaks.toml"
    mine.write_text('[[device]]\nnames = ["NVIDIA L40"]\nbf16 = 181.0\nsource = "my datasheet"\n')
    found = peaks.find("nvidia l40", peaks.table(str(mine)))
    assert found is not None
    assert found.tflops == {"bf16": 181.0}
    mine.write_text('[[device]]\nnames = ["NVIDIA L40"]\nbf16 = 181.0\n')
    with pytest.raises(UsageError, match="`names` and `source`"):
        peaks.table(str(mine))
    with pytest.raises(UsageError, match="cannot be read"):
        peaks.table(str(tmp_path / "absent"))
