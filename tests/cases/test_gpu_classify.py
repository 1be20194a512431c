"""Cases of classes as data: ours, and a handed collection where it lies beside the checkout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.usage.api import Context, Gpu
from fleetcraft.usage.classify import Class, Evidence, Verdict, classify, from_window
from fleetcraft.usage.holding import held
from fleetcraft.usage.series import Series
from fleetcraft.usage.thresholds import Thresholds
from fleetcraft.usage.windows import add_up

LIMITS = Thresholds()
_IDLE = [0] * 10
_OURS: list[dict[str, Any]] = [
    {"id": "free", "input": {"util": [0] * 30, "proc_mem_mib": 0, "procs": 0}, "expected": {"state": "free-idle"}},
    {"id": "held", "input": {"util": _IDLE, "proc_mem_mib": 600}, "expected": {"state": "reserved-idle"}},
    {"id": "below", "input": {"util": [4] * 10, "proc_mem_mib": 499}, "expected": {"state": "free-idle"}},
    {"id": "once", "input": {"util": [0] * 9 + [5], "proc_mem_mib": 0}, "expected": {"state": "working"}},
    {
        "id": "silent", "input": {"expected_by_squeue": True, "last_sample_age_s": 91, "interval_s": 10},
        "expected": {"state": "unreachable", "last_seen_s": 91},
    },
    {
        "id": "slow", "input": {"last_sample_age_s": 91, "interval_s": 31, "util": [9] * 10},
        "expected": {"state": "working"},
    },
    {
        "id": "half", "input": {"window_s": 300, "expected_samples": 10, "observed_samples": 4, "util": [0] * 4},
        "expected": {"state": "unknown", "coverage": 0.4},
    },
    {
        "id": "alive", "input": {"util": _IDLE, "proc_mem_pct": 50.0, "heartbeat_age_s": 5},
        "expected": {"state": "reserved-idle", "never": "cancel"},
    },
    {
        "id": "late", "input": {"job_hours": 10, "active_first_hour": True, "idle_last_hours": 9},
        "expected": {"state_now": "free-idle", "job_mean_util": 10.0, "alert": True},
    },
]  # fmt: skip


def _handed() -> list[dict[str, Any]]:
    path = Path(__file__).resolve().parents[3] / "shared" / "cases" / "gpu.jsonl"
    if not path.exists():
        return []
    return [case for line in path.read_text().splitlines() if (case := json.loads(line))["kind"] == "classify"]


_HANDED = _handed()
_MIB = 1 << 20


def series(util: list[float], interval_ms: int, memory: float | None) -> Series:
    stamps = [at * interval_ms for at in range(len(util))]
    columns: dict[str, Any] = {"util_pct": [float(value) for value in util]}
    if memory is not None:
        columns["memory_used_bytes"] = [memory] * len(util)
    one = Series(
        gpu=Gpu(host="n1", uuid="g"),
        context=Context(),
        path="",
        interval_ms=interval_ms,
        utc_ms=stamps,
        columns=columns,
    )
    one.held_ms = held(stamps, interval_ms)
    return one


def judge(told: Mapping[str, Any]) -> tuple[Verdict, dict[str, Any]]:
    """The verdict on a case, and what else it is about."""
    util = told.get("util", [])
    memory = told["proc_mem_mib"] * _MIB if "proc_mem_mib" in told else None
    if "proc_mem_pct" in told:
        memory = told["proc_mem_pct"] / 100 * (80 << 30)
    if "job_hours" in told:
        whole = [100.0] * 60 + [0.0] * (60 * (told["job_hours"] - 1))
        everything = add_up(series(whole, 60_000, 0.0))
        mean = everything.util_sum / everything.util_ms
        util, memory = whole[-5:], 0.0
        last = from_window(add_up(series(util, 60_000, memory), 0, 300_000))
        evidence = Evidence(age_s=1.0, job_age_s=told["job_hours"] * 3600.0, ever_active=True, held_bytes=0.0, **last)
        return classify(evidence, LIMITS), {"mean": mean, "idle_s": told["idle_last_hours"] * 3600.0}
    samples = told.get("expected_samples", max(1, len(util)))
    window_ms = told.get("window_s", 300) * 1000
    window = add_up(series(util, window_ms // samples, memory), 0, window_ms) if util else None
    evidence = Evidence(
        expected=told.get("expected_by_squeue", True), age_s=float(told.get("last_sample_age_s", 1.0)),
        interval_s=float(told.get("interval_s", 10)), job_age_s=1e6, ever_active=True, held_bytes=memory,
        own_pids=None if "procs" not in told else told["procs"] > 0, heartbeat_age_s=told.get("heartbeat_age_s"),
        **(from_window(window) if window is not None else {}),
    )  # fmt: skip
    return classify(evidence, LIMITS), {"coverage": evidence.coverage, "age_s": evidence.age_s}


def check(case: Mapping[str, Any]) -> None:
    told, expected = case["input"], dict(case["expected"])
    verdict, about = judge(told)
    if "state" in expected:
        assert verdict.kind.value == expected.pop("state")
    if "state_now" in expected:
        assert verdict.kind.value == expected.pop("state_now")
    if "coverage" in expected:
        assert about["coverage"] == pytest.approx(expected.pop("coverage"))
    if "last_seen_s" in expected:
        assert about["age_s"] == expected.pop("last_seen_s")
    if "job_mean_util" in expected:
        assert about["mean"] == pytest.approx(expected.pop("job_mean_util"), abs=0.05)
    if expected.pop("alert", False):
        assert about["idle_s"] >= LIMITS.nudge_free_s
        assert verdict.kind is Class.FREE_IDLE
    if expected.pop("shown", False):
        assert verdict.kind in Class  # a class is what is shown; see the picture's own tests for its row
    if expected.pop("never", "") == "cancel":
        assert verdict.is_nudged_only
    if expected.pop("action", "") == "nudge_only":
        assert verdict.is_nudged_only
    assert expected == {}, "a word of the case that nothing here looks at"


@pytest.mark.parametrize("case", _OURS, ids=[case["id"] for case in _OURS])
def test_our_case(case):
    check(case)


@pytest.mark.skipif(not _HANDED, reason="no collection of cases lies beside the checkout")
@pytest.mark.parametrize("case", _HANDED, ids=[case["id"] for case in _HANDED])
def test_handed_case(case):
    check(case)
