"""`fleetcraft.progress`: what it writes, that it keeps quiet outside a task, and that it never raises."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import fleetcraft
from fleetcraft.surfaces import progress as module


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "progress-0.json"
    monkeypatch.setenv("FLEETCRAFT_PROGRESS", str(path))
    monkeypatch.setenv("FLEETCRAFT_TASK_ID", "1.4")
    monkeypatch.setenv("FLEETCRAFT_ATTEMPT", "2")
    monkeypatch.setattr(module, "_state", [])
    monkeypatch.setattr(module, "_complained", [])
    return path


def test_a_call_writes_one_object(path):
    fleetcraft.progress(1, 4, "steps", flops=2e15, phase="train", loss=0.5)
    found = json.loads(path.read_text())
    assert found.pop("at_utc") > 0
    assert found == {
        "schema": "fleetcraft.progress/1", "task": "1.4", "attempt": 2, "done": 1, "total": 4, "unit": "steps",
        "phase": "train", "flops": 2e15, "numbers": {"loss": 0.5},
    }  # fmt: skip
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_what_a_call_leaves_out_stays(path):
    fleetcraft.progress(1, 4, "steps", flops=2e15, loss=0.5)
    fleetcraft.progress(2, lr=0.1)
    found = json.loads(path.read_text())
    assert (found["done"], found["total"], found["unit"], found["flops"]) == (2, 4, "steps", 2e15)
    assert found["numbers"] == {"loss": 0.5, "lr": 0.1}


def test_another_attempt_in_the_same_process_begins_anew(path, monkeypatch):
    fleetcraft.progress(1, 4, flops=2e15)
    monkeypatch.setenv("FLEETCRAFT_ATTEMPT", "3")
    fleetcraft.progress(1)
    found = json.loads(path.read_text())
    assert (found["attempt"], found["total"], found["flops"]) == (3, None, None)


def test_a_formula_is_counted(path):
    fleetcraft.progress(
        flops={"formula": "video_forward", "parameters": 10, "layers": 1, "width": 2, "tokens": 3, "calls": 5}
    )
    assert json.loads(path.read_text())["flops"] == 5 * (2 * 10 * 3 + 4 * 9 * 2)


def test_nothing_happens_outside_a_task(path, monkeypatch):
    monkeypatch.delenv("FLEETCRAFT_PROGRESS")
    fleetcraft.progress(1, flops={"formula": "no such"})
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", ({"flops": {"formula": "no such"}}, {"flops": {"formula": []}}, {"done": object()})
)
def test_a_wrong_call_never_raises(path, arguments, capsys):
    fleetcraft.progress(**arguments)
    fleetcraft.progress(**arguments)
    assert capsys.readouterr().err.count("fleetcraft.progress:") <= 1


def test_a_place_that_cannot_be_written_is_told_once(path, monkeypatch, capsys):
    monkeypatch.setenv("FLEETCRAFT_PROGRESS", str(path.parent / "gone" / "progress-0.json"))
    fleetcraft.progress(1)
    fleetcraft.progress(2)
    assert capsys.readouterr().err.count("fleetcraft.progress:") == 1


def test_a_hot_loop_writes_seldom_and_its_last_word_stands_at_the_end(path):
    program = (
        "import os, fleetcraft\n"
        "path, seen = os.environ['FLEETCRAFT_PROGRESS'], set()\n"
        "for step in range(2000):\n"
        "    fleetcraft.progress(step, 5000)\n"
        "    seen.add(os.stat(path).st_mtime_ns)\n"
        "print(len(seen))\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(said.stdout) < 200
    assert said.stderr == ""
    assert json.loads(path.read_text())["done"] == 1999


def test_the_end_of_the_work_is_written_at_once(path):
    for step in range(1, 101):
        fleetcraft.progress(step, 100)
    assert json.loads(path.read_text())["done"] == 100
