"""Which attempt computed how much: reports before declarations, and a reason wherever neither counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.cli.main import main
from fleetcraft.core.resources import Request
from fleetcraft.readmodel.gpu_ledger import Asked
from fleetcraft.readmodel.gpu_mfu import Found, read_mfu
from fleetcraft.spool.life import Life
from fleetcraft.spool.spool import Spool
from fleetcraft.usage.mfu_join import MfuRow
from fleetcraft.usage.peaks import load
from tests.support.telemetry_files import write_segment
from tests.unit.readmodel.building import make_spool, publish
from tests.unit.readmodel.test_gpu_ledger import BASE_S, S, ends, ran, worker

# The samples of these tests call their device so.
PEAKS = '[[device]]\nnames = ["NVIDIA H100"]\nlabel = "mine"\nbf16 = 100.0\nsource = "a test"\n'


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return make_spool(tmp_path)


def sampled(spool: Spool, seconds: int = 100, **values: Any) -> None:
    rows = [(at, 0, values) for at in range(0, seconds, 10)]
    write_segment(Path(spool.layout.root, "telemetry"), "n1", rows, start_ms=BASE_S * S)


def read(spool: Spool, **more: Any) -> Found:
    asked = Asked(now_ms=(BASE_S + 10_000) * S, since_ms=more.pop("since_ms", None))
    return read_mfu(spool, {}, asked, peaks=load(PEAKS, "a test"), **more)


def rows(found: Found) -> dict[str, MfuRow]:
    assert found.table is not None
    return {row.label: row for row in found.table.rows}


def begun(spool: Spool, names: list[str], **extra: Any) -> tuple[int, Life]:
    batch = publish(spool, names, request=Request(gpus=1.0, family="train"), extra=extra)
    return batch, worker(spool, gpus=1)


def test_a_declaration_counts_for_an_attempt_that_ended_done_and_for_no_other(spool):
    batch, life = begun(spool, ["good", "bad"], flops=100e12 * 10)
    ran(life, batch, 0, 10, 30, gpus=["GPU-n1-0"])
    ran(life, batch, 1, 30, 50, "failed", gpus=["GPU-n1-0"])
    ends(life, 100)
    sampled(spool)
    found = rows(read(spool, by="task"))
    assert found["good"].mfu.estimated == pytest.approx(0.5)
    assert (found["bad"].mfu.estimated, found["bad"].mfu.estimated_reason) == (
        None, "it ended failed and reported no FLOPs",
    )  # fmt: skip
    total = read(spool).table
    assert total is not None
    assert total.total.mfu.estimated == pytest.approx(0.1)
    assert "lower bound" in total.total.mfu.flags[0]
    assert [row.key for row in total.rows] == ["train"]


def test_a_report_goes_before_a_declaration_and_counts_however_it_ended(spool):
    batch, life = begun(spool, ["a"], flops={"formula": "video_forward", "parameters": 1})
    ran(life, batch, 0, 10, 30, "failed", gpus=["GPU-n1-0"], progress={"flops": 100e12 * 4})
    ends(life, 100)
    sampled(spool)
    assert rows(read(spool))["train"].mfu.estimated == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("extra", "reason"),
    (
        ({}, "declares no FLOPs"),
        ({"flops": {"formula": "made_up"}}, "unknown formula 'made_up'"),
        ({"flops": -1}, "above 0"),
        ({"flops": 1e12, "precision": "int3"}, "precision 'int3' is none of"),
    ),
)
def test_what_cannot_be_resolved_is_none_with_the_reason(spool, extra, reason):
    batch, life = begun(spool, ["a"], **extra)
    ran(life, batch, 0, 10, 30, gpus=["GPU-n1-0"])
    ends(life, 100)
    sampled(spool)
    mfu = rows(read(spool))["train"].mfu
    assert mfu.estimated is None
    assert reason in mfu.estimated_reason


def test_what_runs_counts_as_its_heartbeat_says(spool):
    batch, life = begun(spool, ["a"])
    life.record({"t": "started", "b": batch, "i": 0, "g": 0, "a": 1, "s": 0, "at": BASE_S + 10, "gpus": ["GPU-n1-0"]})
    sampled(spool)
    life.beat({"state": "up", "running": [{"task": f"{batch}.0", "a": 1, "slot": 0}]})
    told = json.loads(Path(life.folder, "heartbeat.json").read_text())
    beat = {**told, "at_utc": BASE_S + 60}
    Path(life.folder, "heartbeat.json").write_text(json.dumps(beat))
    assert rows(read(spool))["train"].mfu.estimated is None
    beat["running"][0]["progress"] = {"flops": 100e12 * 25}
    Path(life.folder, "heartbeat.json").write_text(json.dumps(beat))
    assert rows(read(spool))["train"].mfu.flops == pytest.approx(100e12 * 25)


def test_a_declaration_is_spread_over_the_attempts_that_saved_their_work(spool):
    batch, life = begun(spool, ["a"], flops=100e12 * 10)
    where: dict[str, Any] = {"b": batch, "i": 0, "g": 0, "s": 0, "gpus": ["GPU-n1-0"]}
    for attempt, start_s, end_s, outcome in ((1, 10, 40, "lost"), (2, 50, 60, "succeeded")):
        life.record({"t": "started", "a": attempt, "at": BASE_S + start_s, **where})
        more = {"cause": "checkpointed"} if outcome == "lost" else {"final": "succeeded"}
        life.record(
            {"t": "receipt", "a": attempt, "o": outcome, "at": BASE_S + start_s, "end": BASE_S + end_s, **where, **more}
        )
    ends(life, 100)
    sampled(spool)
    row = rows(read(spool))["train"]
    assert (row.attempts, row.attempts_known) == (2, 2)
    assert row.mfu.estimated == pytest.approx(0.25)
    late = rows(read(spool, since_ms=(BASE_S + 45) * S))["train"]
    assert late.mfu.flops == pytest.approx(100e12 * 2.5)


def test_calls_in_one_record_count_together_or_not_at_all(spool):
    batch = publish(spool, ["c0", "c1"], request=Request(gpus=1.0), extra={"flops": 100e12})
    life = worker(spool, gpus=1)
    ran(life, batch, 0, 10, 20, gpus=["GPU-n1-0"], k=2)
    ends(life, 100)
    sampled(spool)
    assert rows(read(spool))["(no family)"].mfu.flops == pytest.approx(200e12)


def test_a_spool_without_gpus_says_so(spool, capsys):
    life = worker(spool, gpus=0)
    ends(life, 100)
    assert read(spool).table is None
    assert main(["gpu", "mfu", "--spool", spool.layout.root]) == 0
    assert capsys.readouterr().out.strip() == "no GPU was allocated in that time"


@pytest.fixture
def typed(spool: Spool, tmp_path: Path) -> tuple[str, str]:
    batch, life = begun(spool, ["a", "b"], flops=100e12 * 10)
    ran(life, batch, 0, 10, 30, gpus=["GPU-n1-0"])
    ran(life, batch, 1, 30, 35, gpus=["GPU-n1-0"])
    ends(life, 100)
    sampled(spool, tensor_pct=30.0, sm_clock_mhz=1000.0)
    peaks = tmp_path / "peaks.toml"
    peaks.write_text(PEAKS)
    return spool.layout.root, str(peaks)


def test_the_command_labels_numbers_and_gives_reasons(typed, capsys):
    root, peaks = typed
    assert main(["gpu", "mfu", "--spool", root]) == 0
    told = capsys.readouterr().out
    assert "no estimated" in told
    assert "no peak is known for a device named 'NVIDIA H100'" in told
    assert "whole allocation, idle included" in told
    assert main(["gpu", "mfu", "--spool", root, "--peaks", peaks]) == 0
    told = capsys.readouterr().out
    for word in (
        "80.00 %",
        "20.00 %",
        "30.00 %",
        "NVIDIA H100: dense TFLOPS bf16 100, by a test",
        "exceeds the measured",
    ):
        assert word in told, told
    assert "the clock behind the peak of mine is not known" in told


def test_the_command_tells_a_program_everything_and_an_impossible_row_ends_with_1(typed, capsys):
    root, peaks = typed
    assert main(["gpu", "mfu", "--spool", root, "--peaks", peaks, "--by", "task", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "fleetcraft.gpu.mfu/1"
    found = {row["label"]: row for row in document["rows"]}
    assert found["a"]["estimated"] == pytest.approx(0.5)
    assert found["a"]["measured"] == pytest.approx(0.3)
    assert found["b"]["estimated"] is None
    assert found["b"]["flags"][0].startswith("impossible")
    assert document["total"]["held_ms"] == 100 * S
    assert document["total"]["estimated"] == pytest.approx(0.2)
    assert document["peaks"] == [
        {"device": "NVIDIA H100", "label": "mine", "tflops": {"bf16": 100.0}, "source": "a test", "seen": "no"}
    ]


def test_an_impossible_whole_ends_with_1_and_everything_is_printed(typed, tmp_path, capsys):
    root, _ = typed
    low = tmp_path / "low.toml"
    low.write_text(PEAKS.replace("100.0", "1.0"))
    assert main(["gpu", "mfu", "--spool", root, "--peaks", str(low)]) == 1
    told = capsys.readouterr().out
    assert "impossible" in told
    assert "above 1" in told
    assert "30.00 %" in told


def test_a_table_that_cannot_be_read_is_a_usage_error(typed, capsys):
    root, _ = typed
    assert main(["gpu", "mfu", "--spool", root, "--peaks", "missing.toml"]) == 2
    assert "missing.toml cannot be read" in capsys.readouterr().err
    assert main(["gpu", "mfu", "--spool", root, "--since", "1h", "--until", "2h"]) == 2
    assert "--until lies before --since" in capsys.readouterr().err
