"""A real worker on simulated GPUs: no number for a device nobody knows, and with its peak the one arithmetic gives."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.lab import Lab

FLOPS = 3e12
REPORT = """echo '{"schema":"fleetcraft.progress/1","flops":2e12}' > "$FLEETCRAFT_PROGRESS"; sleep 1.2; exit 3"""


def mfu(lab: Lab, *words: str, verb: str = "mfu") -> dict[str, Any]:
    argv = [sys.executable, "-m", "fleetcraft", "gpu", verb, "--spool", str(lab.root), "--json", *words]
    document: dict[str, Any] = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    return document


def test_declared_flops_over_the_receipts_time_with_a_peak_and_none_without(lab: Lab):
    lab.enqueue(
        [{"name": f"t{n}", "command": ["sleep", "1.5"], "gpus": 1, "family": "train", "flops": FLOPS} for n in range(3)]
    )
    lab.drain(gpus="simulated:2", cpus=2, telemetry_s=1.0)
    assert lab.counts() == {"succeeded": 3}, lab.picture()
    unknown = mfu(lab)
    (row,) = unknown["rows"]
    assert (row["key"], row["estimated"], row["flops"]) == ("train", None, pytest.approx(3 * FLOPS))
    assert row["estimated_reason"] == "no peak is known for a device named 'simulated GPU'"
    assert unknown["total"]["estimated"] is None
    summary = mfu(lab, verb="summary")
    assert (summary["mfu"], summary["mfu_reason"]) == (unknown["total"], "")
    peaks = lab.folder / "peaks.toml"
    peaks.write_text('[[device]]\nnames = ["simulated GPU"]\nbf16 = 10.0\nsource = "a test"\n')
    known = mfu(lab, "--peaks", str(peaks))
    (row,) = known["rows"]
    told = [lab.receipts(f"t{n}")[0] for n in range(3)]
    held_s = sum(receipt["end"] - receipt["at"] for receipt in told)
    assert row["estimated"] == pytest.approx(3 * FLOPS / (10e12 * held_s), rel=0.01)
    assert any("simulated" in flag for flag in row["flags"])
    total = known["total"]
    assert total["held_ms"] > row["held_ms"]
    assert total["estimated"] == pytest.approx(3 * FLOPS / (10e12 * total["held_ms"] / 1000))


def test_what_an_attempt_reported_counts_though_it_failed(lab: Lab):
    lab.enqueue([{"name": "half", "command": ["sh", "-c", REPORT], "gpus": 1, "flops": FLOPS}])
    lab.drain(gpus="simulated:1", cpus=1, telemetry_s=1.0)
    (receipt,) = lab.receipts("half")
    assert receipt["o"] == "failed", receipt
    peaks = lab.folder / "peaks.toml"
    peaks.write_text('[[device]]\nnames = ["simulated GPU"]\nfp16 = 10.0\nsource = "a test"\n')
    (row,) = mfu(lab, "--peaks", str(peaks), "--by", "task", "--precision", "fp16")["rows"]
    assert (row["label"], row["attempts_reported"], row["flops"]) == ("half", 1, pytest.approx(2e12))
    assert row["estimated"] == pytest.approx(2e12 / (10e12 * (receipt["end"] - receipt["at"])), rel=0.01)
