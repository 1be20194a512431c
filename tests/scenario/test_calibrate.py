"""Trials by real workers on a simulated GPU, and a task that runs with the batch that was picked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetcraft.cli.main import main
from tests.support.lab import Lab

GIB = 1024**3
# Each batch holds 10 GiB; above 2 it does not fit.
SCRIPT = """\
echo "batch $1"
if [ "$1" -gt 2 ]; then echo 'CUDA out of memory'; exit 1; fi
echo '{"schema":"fleetcraft.progress/1","phase":"decode","at_utc":'"$(date +%s)"'}' > "$FLEETCRAFT_PROGRESS"
exec env FLEETCRAFT_SIMULATED_LOAD=90:$(($1 * 10)) sleep 1.6
"""


@pytest.fixture
def words(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(lab.folder)
    (lab.folder / "decode.sh").write_text(SCRIPT)
    return ["--code", "decode.sh", "--gpus", "simulated:1", "--json", "--", "/bin/sh", "decode.sh", "{batch}"]


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_the_largest_batch_that_fits_is_picked_frozen_and_used(lab: Lab, words, capsys):
    assert main(["task", "calibrate", "decode", "--batches", "8,1,2,4", "--per-gpu", "2", *words]) == 0
    told = document(capsys)
    row = told["row"]
    trials = {trial["batch"]: trial for trial in row["trials"]}
    assert {batch: trial["state"] for batch, trial in trials.items()} == {
        1: "stable", 2: "stable", 4: "out_of_memory",
    }, trials  # fmt: skip
    assert (row["pick"]["batch"], row["pick"]["per_gpu"], row["pick"]["free_pct"]) == (2, 2, 50.0), row
    assert trials[2]["gpu_bytes"] == {"whole": 40 * GIB, "decode": 40 * GIB}
    assert trials[2]["items_per_s"] == pytest.approx(2 * 2 * 2 / trials[2]["wall_s"])
    assert trials[2]["wall_s"] >= 2 * 1.6
    # A shell is smaller than the worker, and then the kernel does not tell its peak from the worker's.
    assert (trials[2]["host_bytes"] is None) is (trials[2]["host_reason"] is not None)
    assert (row["key"]["device"], row["device_bytes"]) == ("simulated GPU", 80 * GIB)
    enqueue = ["task", "enqueue", "--spool", str(lab.root), "--calibrated", "calibration.json", "--family", "decode"]
    assert main([*enqueue, "--name", "real"]) == 0
    lab.drain(gpus="simulated:1", telemetry_s=None)
    assert lab.counts() == {"succeeded": 1}
    assert lab.output("real") == b"batch 2\n"
    (lab.folder / "decode.sh").write_text(SCRIPT + "# edited\n")
    assert main([*enqueue, "--name", "later"]) == 2
    assert "the code of family 'decode' changed" in capsys.readouterr().err


def test_without_a_stable_point_nothing_is_frozen(lab: Lab, words, capsys):
    assert main(["task", "calibrate", "decode", "--batches", "4", *words]) == 1
    told = document(capsys)
    assert (told["frozen"], told["row"]["pick"]["reason"]) == (False, "no point was stable")
    assert not (lab.folder / "calibration.json").exists()
