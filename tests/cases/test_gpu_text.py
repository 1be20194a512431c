"""Cases of what GPU tools write, and of who may see which GPU: own ones of each kind, and those handed along."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from fleetcraft.schedulers.slurm_quantities import gpu_types_in, gpus_in
from fleetcraft.telemetry.amd_text import Card, energy_mj, power_of, share_power
from fleetcraft.telemetry.api import Device, Reason
from fleetcraft.telemetry.dcgm import value_of, xid_events
from fleetcraft.telemetry.foreign import parse_log
from fleetcraft.telemetry.foreign_bursts import bursts
from fleetcraft.telemetry.foreign_scan import scan
from fleetcraft.telemetry.smi_text import rows_of, trouble_of
from fleetcraft.telemetry.values import MIB, field_of, number
from fleetcraft.telemetry.visibility import legacy_mig, slurm_indices, usable_devices, visible_amd, visible_devices
from fleetcraft.transports.ssh_words import refusal_of
from fleetcraft.usage.api import Context, Gpu
from fleetcraft.usage.series import Series, hold_all
from fleetcraft.usage.tails import server_now
from fleetcraft.usage.windows import add_up

HANDED = Path(__file__).parents[3] / "shared" / "cases" / "gpu.jsonl"
_DMON = ("time", "gpu", "pwr", "gtemp", "mtemp", "sm", "mem", "enc", "dec", "jpg", "ofa")


def devices(count: int, uuids: list[str] | None = None) -> list[Device]:
    names = uuids or [f"GPU-{index:08x}-0000" for index in range(count)]
    return [Device(uuid=uuid, index=index, name="x", memory_bytes=None) for index, uuid in enumerate(names)]


def _parse_value(given: dict[str, Any], _folder: Path) -> dict[str, Any]:
    if "util_pct" in given:
        cell = field_of("util_pct", str(given["util_pct"]))
        return {"util_pct": cell.value, "raw": cell.raw, "flag": cell.flag}
    delimiter = given.get("delimiter", ",")
    if given["cell"].startswith('"'):
        cell = field_of("memory_total_bytes", given["cell"], scale=MIB)
        return {"mem_total_mib": (cell.value or 0) / MIB, "warning": cell.flag}
    return {"power_w": field_of("power_w", given["cell"], delimiter=delimiter).value}


def _parse_csv(given: dict[str, Any], _folder: Path) -> dict[str, Any]:
    if "stdout" in given:
        trouble = trouble_of(given["stdout"], has_driver=True)
        assert trouble is not None
        rows, _bad = rows_of(given["stdout"], ("uuid", "index"))
        return {"host_state": str(trouble.state), "reason": str(trouble.reason), "gpus": rows or None}
    if "segments" in given:
        return _two_headers(given["segments"])
    if "line" in given and isinstance(given.get("fields"), list):
        row = scan(given["line"] + "\n", given["fields"]).parts[0].rows[0]
        return {"index": int(row[0]), "name": row[1].strip(), "util_pct": number(row[2]).value}
    if "line" in given:
        found = scan(given["line"] + "\n", _DMON)
        told = dict(zip(_DMON, found.parts[0].rows[0], strict=True))
        return {name: number(told[name]).value for name in ("mtemp", "jpg", "ofa")}
    return _damaged(given)


def _damaged(given: dict[str, Any]) -> dict[str, Any]:
    if "lines" in given and "fields" in given:
        log = parse_log("\n".join([*given["lines"], ""]).encode(), columns=_columns(given["fields"]))
        said = any(one.kind == "malformed" for one in log.findings)
        return {"rows": len(log.utc_ms), "bad_lines": log.malformed, "bad_line_reported": said}
    if "lines" in given:
        found = scan("\n".join([*given["lines"], ""]))
        return {"rows": found.rows, "headers": found.headers}
    if "\0" in given["text"]:
        found = scan(given["text"], _columns(given["fields"]))
        return {"rows": found.rows, "nul_bytes_skipped": found.nul_bytes, "warning": "nul_run"}
    log = parse_log(given["text"].encode())
    return {"rows": len(log.utc_ms), "partial_tail": log.cut_tail}


def _columns(count: int) -> list[str]:
    return ["timestamp", "mem_used_mib", "mem_total_mib", "util_pct", "power_w"][:count]


def _two_headers(segments: list[list[str]]) -> dict[str, Any]:
    lines, names = [], segments[-1]
    for minute, header in enumerate(segments):
        lines += [",".join(header), ",".join([f"2026/07/19 22:0{minute}:00.000", "5", "7"][: len(header)])]
    log = parse_log("\n".join([*lines, ""]).encode())
    last = log.columns[names[-1]]
    return {"rows_have": [f"{names[-1]}={'null' if value is None else 'number'}" for value in last]}


def _timestamps(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    if "t_s" in given:
        return _observed(given)
    if "sample_epoch" in given:
        path = folder / "n1.csv"
        path.write_text("x")
        os.utime(path, (given["file_mtime_on_server"], given["file_mtime_on_server"]))
        judge = server_now(str(folder)).source
        skew = path.stat().st_mtime - given["sample_epoch"]
        return {"skew_s": skew, "age_judged_by": "server_mtime" if judge == "file_server" else judge}
    if "lines" in given:
        log = parse_log(
            ("\n".join([*given["lines"], ""])).encode(), day=given["day_hint"], columns=["time", "gpu", "pwr"]
        )
        day = 86_400_000
        second = next(
            one for one in (given["day_hint"], "2026-07-20", "2026-03-02") if _day(one) == log.utc_ms[1] // day
        )
        return {"dt_s": (log.utc_ms[1] - log.utc_ms[0]) / 1000, "second_day": second}
    if "rows" in given:
        lines = [f"2026/07/19 {stamp},{util}" for stamp, util in given["rows"]]
        log = parse_log("\n".join(["timestamp,util_pct", *lines, ""]).encode())
        return {"ticks": bursts(log.utc_ms).ticks, "gpus": len(set(log.device or [""]))}
    zone = ZoneInfo(given["tz"]) if "tz" in given else None
    stamps = [stamp if "/" in stamp else f"2026/07/19 {stamp}" for stamp in given["t"]]
    log = parse_log("\n".join(["timestamp,util_pct", *(f"{stamp},5" for stamp in stamps), ""]).encode(), zone=zone)
    if zone is not None:
        return {"dt_s": (log.utc_ms[1] - log.utc_ms[0]) / 1000}
    assert [one.kind for one in log.findings if one.kind == "backward"]
    series = _series(log.utc_ms, {"util_pct": log.columns["util_pct"]}, 30_000)
    return {"sorted": series.utc_ms == sorted(series.utc_ms), "negative_dt_used": min(series.held_ms) < 0}


def _day(text: str) -> int:
    from fleetcraft.telemetry.foreign_time import day_ms

    return day_ms(text) // 86_400_000


def _series(utc_ms: list[int], columns: dict[str, list[float | None]], interval_ms: int) -> Series:
    made = Series(
        gpu=Gpu(host="h", uuid=""), context=Context(), path="", interval_ms=interval_ms, utc_ms=utc_ms, columns=columns
    )
    return hold_all([made])[0]


def _observed(given: dict[str, Any]) -> dict[str, Any]:
    interval_ms = given["interval_s"] * 1000
    stamps = [round(second * 1000) for second in given["t_s"]]
    powers = [float(watts) for watts in given.get("power_w", [0] * len(stamps))]
    window = add_up(_series(stamps, {"power_w": list(powers)}, interval_ms))
    span_s = (stamps[-1] - stamps[0] + interval_ms) / 1000
    observed_s = window.observed_ms / 1000
    if "power_w" not in given:
        return {"observed_s": observed_s, "naive_s": float(len(stamps) * given["interval_s"])}
    return {
        "observed_s": observed_s, "gap_s": span_s - observed_s, "energy_j_observed": window.power_sum / 1000,
        "energy_gap": "unknown" if window.power_ms == window.observed_ms else "invented",
    }  # fmt: skip


def _visibility(given: dict[str, Any], _folder: Path) -> dict[str, Any]:
    if "visible_nvml" in given:
        all_of_them = devices(given["visible_nvml"])
        mine = usable_devices(all_of_them, given)
        return {"ours": [one.index for one in mine], "others": "shown as foreign, not aggregated"}
    if "ROCR_VISIBLE_DEVICES" in given:
        return {"physical": [one.index for one in visible_amd(devices(4), given)]}
    visible = given["CUDA_VISIBLE_DEVICES"]
    legacy = legacy_mig(visible)
    if legacy is not None:
        return {"parent": legacy.parent, "gi": legacy.gpu_instance, "ci": legacy.compute_instance}
    if visible.startswith("GPU-"):
        found = visible_devices(devices(0, ["GPU-other", *sorted(visible.split(","))]), visible)
        return {"uuids": [one.uuid for one in found]}
    return {"cuda_devices": [one.index for one in visible_devices(devices(4), visible)]}


def _amd(given: dict[str, Any], _folder: Path) -> dict[str, Any]:
    if "oam" in given:
        cards = [Card(index=at, oam=oam) for at, oam in enumerate(given["oam"])]
        for at, card in enumerate(cards):
            card.put("power_w", given[f"gcd{at}_power_w"])
        share_power(cards)
        shared = cards[1].reasons.get("power_w") is Reason.SHARED
        return {
            "oam_power_w": sum(card.values.get("power_w", 0) for card in cards),
            "gcd1_power": cards[1].values.get("power_w"),
            "reason": "reported on first GCD" if shared else "",
        }  # fmt: skip
    if "energy_accumulator" in given:
        energy = energy_mj(given["energy_accumulator"], given["counter_resolution_uj"])
        assert energy_mj(given["zero_counter"], given["counter_resolution_uj"]) is Reason.UNSUPPORTED
        assert not isinstance(energy, Reason)
        return {"energy_j": energy / 1000}
    powers = [power_of(told) for told in given.values()]
    return {"power_w": [power for power, _ in powers], "semantics": [meaning for _, meaning in powers]}


def _dcgm(given: dict[str, Any], _folder: Path) -> dict[str, Any]:
    if "DCGM_FI_DEV_XID_ERRORS" in given:
        return {"events": [{"xid": one.xid, "count": one.count} for one in xid_events(given["DCGM_FI_DEV_XID_ERRORS"])]}
    found = [value_of(raw) for raw in given["values"]]
    return {
        "values": [None if isinstance(one, Reason) else one for one in found],
        "reasons": [str(one) if isinstance(one, Reason) else "" for one in found],
    }


def _ssh(given: dict[str, Any], _folder: Path) -> dict[str, Any]:
    refusal = refusal_of(given["stderr"], given["rc"])
    assert refusal is not None
    # In our own words: a way that needs no ssh, and never the check switched off.
    assert "srun --overlap" in refusal.advice
    return {"host_state": "unreachable", "reason": refusal.reason}


def _slurm(given: dict[str, Any], _folder: Path) -> dict[str, Any]:
    text = given["AllocTRES"]
    return {"gpus": gpus_in(text), "type": ",".join(gpu_types_in(text))}


_ANSWERS: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
    "parse_value": _parse_value, "parse_csv": _parse_csv, "timestamps": _timestamps, "visibility": _visibility,
    "amd": _amd, "dcgm": _dcgm, "ssh": _ssh, "slurm": _slurm,
}  # fmt: skip

OWN: list[dict[str, Any]] = [
    {"id": "own-decimal-comma", "kind": "parse_value", "input": {"cell": "91,25", "delimiter": "\t"},
     "expected": {"power_w": 91.25}},
    {"id": "own-name-with-commas", "kind": "parse_csv",
     "input": {"fields": ["index", "name", "utilization.gpu"], "line": "3, A, B, C, 7"},
     "expected": {"index": 3, "name": "A, B, C", "util_pct": 7}},
    {"id": "own-zero-bytes", "kind": "parse_csv", "input": {"text": "a,1\n\0\0\nb,2\n", "fields": 2},
     "expected": {"rows": 2, "nul_bytes_skipped": 2, "warning": "nul_run"}},
    {"id": "own-day-rolls", "kind": "timestamps",
     "input": {"lines": ["23:59:50 1 90", "00:00:20 1 91"], "day_hint": "2026-03-01"},
     "expected": {"dt_s": 30, "second_day": "2026-03-02"}},
    {"id": "own-two-gpus", "kind": "timestamps", "input": {"rows": [["03:00:00.100", 1], ["03:00:00.110", 2]]},
     "expected": {"ticks": 1, "gpus": 2}},
    {"id": "own-berlin-hour", "kind": "timestamps",
     "input": {"tz": "Europe/Berlin", "t": ["2026/10/25 02:59:45.0", "2026/10/25 02:00:00.0"]},
     "expected": {"dt_s": 15}},
    {"id": "own-nothing-visible", "kind": "visibility", "input": {"CUDA_VISIBLE_DEVICES": "NoDevFiles"},
     "expected": {"cuda_devices": []}},
    {"id": "own-hip-through-rocr", "kind": "visibility",
     "input": {"ROCR_VISIBLE_DEVICES": "3,0", "HIP_VISIBLE_DEVICES": "0"},
     "expected": {"physical": [3]}},
    {"id": "own-second-die", "kind": "amd", "input": {"gcd0_power_w": 300, "gcd1_power_w": 0, "oam": ["2", "2"]},
     "expected": {"oam_power_w": 300, "gcd1_power": None, "reason": "reported on first GCD"}},
    {"id": "own-xid-comes-twice", "kind": "dcgm", "input": {"DCGM_FI_DEV_XID_ERRORS": [0, 13, 13, 43, 13]},
     "expected": {"events": [{"xid": 13, "count": 2}, {"xid": 43, "count": 1}]}},
    {"id": "own-key-of-an-older-node", "kind": "ssh",
     "input": {"stderr": "@ REMOTE HOST IDENTIFICATION HAS CHANGED! @", "rc": 255},
     "expected": {"host_state": "unreachable", "reason": "host_key_changed"}},
    {"id": "own-two-types", "kind": "slurm", "input": {"AllocTRES": "cpu=4,gres/gpu:h100=3"},
     "expected": {"gpus": 3, "type": "h100"}},
]  # fmt: skip


def _handed() -> list[dict[str, Any]]:
    if not HANDED.exists():
        return []
    cases = [json.loads(line) for line in HANDED.read_text().splitlines() if line.strip()]
    return [case for case in cases if case["kind"] in _ANSWERS]


@pytest.mark.parametrize("case", OWN, ids=lambda case: case["id"])
def test_own_case(case, tmp_path):
    _check(case, tmp_path)


@pytest.mark.skipif(not HANDED.exists(), reason="the handed cases are not beside this checkout")
@pytest.mark.parametrize("case", _handed(), ids=lambda case: case["id"])
def test_handed_case(case, tmp_path):
    _check(case, tmp_path)


def _check(case: dict[str, Any], folder: Path) -> None:
    answer = _ANSWERS[case["kind"]](case["input"], folder)
    expected = {key: value for key, value in case["expected"].items() if key != "advice"}
    assert answer == {
        key: pytest.approx(value) if isinstance(value, float) else value for key, value in expected.items()
    }


def test_slurm_may_name_ranges():
    assert slurm_indices({"SLURM_JOB_GPUS": "0-2,5"}) == [0, 1, 2, 5]
    assert slurm_indices({"SLURM_JOB_GPUS": "all"}) is None
