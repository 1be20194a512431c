"""Cases of GPU logs of the kinds `archive` and `aggregate`: own ones, and those that lie beside the checkout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.usage.api import Context, Gpu
from fleetcraft.usage.reading import Options
from fleetcraft.usage.series import Series, hold_all
from fleetcraft.usage.sources import find
from fleetcraft.usage.summary import Summary, summarize, tally
from fleetcraft.usage.windows import add_up

HANDED = Path(__file__).parents[3] / "shared" / "cases" / "gpu.jsonl"
HEAD = "timestamp,mem_used_mib,mem_total_mib,util_pct,power_w\n"
ROW = "2026/07/10 21:37:{:02d}.338,8799,97871,0,125.21\n"


def _summary(folder: Path, *, one_gpu: bool = False) -> Summary:
    options = Options(one_gpu=one_gpu)
    return summarize(tally(find([str(folder)]), options), options=options)


def _aggregate(given: dict[str, Any], _folder: Path) -> dict[str, Any]:
    steps = [round(seconds * 1000) for seconds in given["dt_s"]]
    stamps = [sum(steps[:at]) for at in range(len(steps))]
    series = Series(
        gpu=Gpu(host="h", uuid=""), context=Context(), path="", interval_ms=steps[-1], utc_ms=stamps,
        columns={"util_pct": [None if value is None else float(value) for value in given["util"]]},
    )  # fmt: skip
    window = add_up(hold_all([series])[0])
    return {
        "mean_util": window.util_sum / window.util_ms,
        "observed_s": window.util_ms / 1000,
        "expected_s": sum(steps) / 1000,
        "coverage": window.util_ms / sum(steps),
    }


def _archive(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    if "rows" in given:
        return _doubled(given, folder)
    if "files" in given:
        for text in given["files"]:
            name, _, what = text.partition(" ")
            count = int(what.split()[0].lstrip("("))
            is_empty = what.endswith("bytes)")
            rows = "".join(ROW.format(30 * at) for at in range(count))
            (folder / name).write_text("" if is_empty else HEAD + rows)
        found = _summary(folder)
        return {
            "hosts": found.coverage.hosts,
            "with_data": found.coverage.hosts_with_data,
            "no_data": [one.host for one in found.problems if one.kind == "no_data"],
        }
    (folder / given["file"]).write_text(given["text"])
    found = _summary(folder)
    return {
        "host": found.rows[0].name,
        "status": next(one.kind for one in found.problems),
        "counted_in_hosts_total": found.coverage.hosts == 1,
    }


def _doubled(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    lines = [f"{stamp},{memory},97871,{util},{power}\n" for stamp, memory, util, power in given["rows"]]
    (folder / "host04.csv").write_text(HEAD + "".join(lines))
    total = _summary(folder, one_gpu=given.get("gpus_known") == 1).total.sums
    return {
        "ticks": total.samples - total.extra_samples,
        "duplicate_rows": total.extra_samples,
        "gpu_seconds": total.observed_ms / 1000,
    }


_ANSWERS: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {"aggregate": _aggregate, "archive": _archive}


def _handed() -> list[dict[str, Any]]:
    if not HANDED.exists():
        return []
    cases = [json.loads(line) for line in HANDED.read_text().splitlines() if line.strip()]
    return [case for case in cases if case["kind"] in _ANSWERS]


OWN = [
    {"id": "own-unknown-is-not-idle", "kind": "aggregate", "input": {"util": [None, 40, 40], "dt_s": [10, 10, 10]},
     "expected": {"mean_util": 40.0, "observed_s": 20, "expected_s": 30, "coverage": 2 / 3}},
    {"id": "own-long-samples-weigh-more", "kind": "aggregate", "input": {"util": [90, 0], "dt_s": [30, 60]},
     "expected": {"mean_util": 30.0, "observed_s": 90, "expected_s": 90, "coverage": 1.0}},
    {"id": "own-head-only", "kind": "archive", "input": {"file": "n7.csv", "text": HEAD},
     "expected": {"host": "n7", "status": "no_data", "counted_in_hosts_total": True}},
    {"id": "own-empty-beside-full", "kind": "archive", "input": {"files": ["x.csv (0 bytes)", "y.csv (2 rows)"]},
     "expected": {"hosts": 2, "with_data": 1, "no_data": ["x"]}},
    {"id": "own-second-logger", "kind": "archive",
     "input": {"gpus_known": 1, "rows": [[f"2026/07/11 04:00:{at}", 5, 0, 80.0] for at in (
         "00.000", "00.400", "30.000", "30.400")]},
     "expected": {"ticks": 2, "duplicate_rows": 2, "gpu_seconds": 60.4}},
]  # fmt: skip


@pytest.mark.parametrize("case", OWN, ids=lambda case: case["id"])
def test_own_case(case, tmp_path):
    _check(case, tmp_path)


@pytest.mark.skipif(not HANDED.exists(), reason="the handed cases are not beside this checkout")
@pytest.mark.parametrize("case", _handed(), ids=lambda case: case["id"])
def test_handed_case(case, tmp_path):
    _check(case, tmp_path)


def _check(case: dict[str, Any], folder: Path) -> None:
    answer = _ANSWERS[case["kind"]](case["input"], folder)
    expected = case["expected"].items()
    assert answer == {key: pytest.approx(value) if isinstance(value, float) else value for key, value in expected}
