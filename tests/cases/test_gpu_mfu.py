"""Cases of utilization of the peak as data: ours, and a handed collection where it lies beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.usage import mfu, peaks

H100 = "NVIDIA H100 80GB HBM3"
_OURS: list[dict[str, Any]] = [
    {"id": "exact", "input": {"gpu": "NVIDIA A40"}, "expected": {"peak_tflops": 149.7, "unknown_gpu": "none"}},
    {"id": "half", "input": {"gpu": "NVIDIA GeForce RTX 5090"}, "expected": {"peak_tflops": 209.5, "not": 419.0}},
    {
        "id": "dies", "input": {"gpu": "AMD Instinct MI250X"},
        "expected": {"peak_tflops_per_device": 191.5, "per_oam": 383.0},
    },
    {"id": "over", "input": {"mfu": 1.01}, "expected": {"mfu": None, "flag": "impossible: what was declared"}},
    {
        "id": "ceiling", "input": {"analytic_mfu": 0.5, "tensor_active_mean": 0.47},
        "expected": {"flag": "exceeds", "label_analytic": "estimated", "label_tensor": "measured"},
    },
    {
        "id": "clock", "input": {"achieved_tflops": 500, "peak_tflops": 989.4, "sm_mhz_mean": 1600, "boost_mhz": 1830},
        "expected": {"mfu": 0.505, "mfu_at_clock": 0.578},
    },
]  # fmt: skip


def _handed() -> list[dict[str, Any]]:
    path = Path(__file__).resolve().parents[3] / "shared" / "cases" / "gpu.jsonl"
    if not path.exists():
        return []
    return [case for line in path.read_text().splitlines() if (case := json.loads(line))["kind"] == "mfu"]


_HANDED = _handed()


def check(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """One case."""
    known = {"gpu", "dtype", "torch_devices", "mfu", "analytic_mfu", "tensor_active_mean"}
    known |= {"achieved_tflops", "peak_tflops", "sm_mhz_mean", "boost_mhz"}
    assert set(given) <= known, "this case gives what no test looks at"
    if "gpu" in given:
        _check_peak(given["gpu"], expected)
        return
    peak = peaks.find(H100)
    assert peak is not None
    top = peak.tflops["bf16"] * 1e12
    share = given.get("mfu", given.get("analytic_mfu"))
    tensor, clock = given.get("tensor_active_mean"), given.get("sm_mhz_mean")
    if clock is not None:
        assert (peak.tflops["bf16"], peak.boost_mhz) == (given["peak_tflops"], given["boost_mhz"])
    found = mfu.reckon(
        flops=given["achieved_tflops"] * 1e12 if share is None else share * top, peak=peak, device_name=H100,
        held_s=1.0, tensor_pct=None if tensor is None else 100 * tensor, sm_clock_mhz=clock,
    )  # fmt: skip
    if "mfu" in expected:
        assert found.estimated == (None if expected["mfu"] is None else pytest.approx(expected["mfu"], abs=1e-3))
    if "mfu_at_clock" in expected:
        assert found.at_clock == pytest.approx(expected["mfu_at_clock"], abs=1e-3)
    if "flag" in expected:
        (flag,) = found.flags
        word = "impossible" if expected["flag"].startswith("impossible") else "exceeds"
        assert word in flag
    if "label_tensor" in expected:
        labels = {expected["label_analytic"]: share, expected["label_tensor"]: tensor}
        assert {name: getattr(found, name) for name in labels} == pytest.approx(labels)


def _check_peak(name: str, expected: dict[str, Any]) -> None:
    peak = peaks.find(name)
    assert peak is not None
    tflops = peak.tflops["bf16"]
    assert tflops == expected.get("peak_tflops", expected.get("peak_tflops_per_device"))
    assert tflops != expected.get("not")
    if "per_oam" in expected:
        assert tflops * peak.per_module == expected["per_oam"]
    if "unknown_gpu" in expected:
        unknown = mfu.reckon(flops=1e15, peak=peaks.find(f"{name} of tomorrow"), device_name="?", held_s=1.0)
        assert unknown.estimated is None
        assert unknown.estimated_reason


@pytest.mark.parametrize("case", _OURS, ids=lambda case: case["id"])
def test_our_case(case):
    check(case["input"], case["expected"])


@pytest.mark.skipif(not _HANDED, reason="the handed cases do not lie beside this checkout")
@pytest.mark.parametrize("case", _HANDED, ids=lambda case: case["id"])
def test_handed_case(case):
    check(case["input"], case["expected"])
