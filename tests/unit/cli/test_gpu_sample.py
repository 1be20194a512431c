"""`gpu sample`: a look that writes nothing, a sampler of its own, and errors that name the next command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleetcraft.cli.main import main
from fleetcraft.telemetry.fields import NAMES
from fleetcraft.telemetry.segment_read import Reader
from tests.support.waiting import wait_for


def test_one_look_is_a_table_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["gpu", "sample", "--once", "--gpus", "simulated:3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["GPU", "UUID", "NAME", "STATE"]
    assert [line.split()[0] for line in lines[1:4]] == ["0", "1", "2"]
    assert os.listdir(tmp_path) == []


def test_a_look_for_programs_has_a_value_or_a_reason(capsys):
    assert main(["gpu", "sample", "--once", "--gpus", "simulated:1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (gpu,) = told["gpus"]
    assert told["state"] == "ok"
    assert gpu["uuid"].startswith("SIM-")
    assert not set(gpu["values"]) & set(gpu["absent"])
    assert set(gpu["values"]) | set(gpu["absent"]) <= set(NAMES)
    assert (told["host_energy_uj"] is None) is (told["host_energy_reason"] is not None)


def test_a_host_without_gpus_says_so(capsys):
    assert main(["gpu", "sample", "--once", "--gpus", "none"]) == 0
    assert "no_gpu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    (
        ([], "no place to write to"),
        (["--to", ""], "no place to write to"),
        (["--to", "x", "--interval", "0.5s"], "must be from 1s to 60s"),
        (["--to", "x", "--interval", "2m"], "must be from 1s to 60s"),
        (["--to", "x", "--gpus", "none"], "no GPU to measure"),
        (["--to", "x", "--gpus", "lots"], "lots"),
        (["--spool", "nowhere"], "There is no spool at"),
    ),
)
def test_what_cannot_be_is_named(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["gpu", "sample", *words]) == 2
    assert said in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_it_measures_until_it_is_told_to_end(tmp_path: Path):
    words = ["gpu", "sample", "--to", str(tmp_path), "--interval", "1s", "--gpus", "simulated:2"]
    env = {**os.environ, "SLURM_JOB_ID": "4711", "FLEETCRAFT_FLEET": "study"}
    with subprocess.Popen([sys.executable, "-m", "fleetcraft", *words], env=env) as sampler:

        def rows() -> list[list[str]]:
            return [row for path in tmp_path.glob("*/*-4711.csv") for row in Reader(str(path)).read().rows]

        wait_for(lambda: len(rows()) >= 2, "samples are there", seen=lambda: os.listdir(tmp_path))
        sampler.send_signal(signal.SIGTERM)
        assert sampler.wait(20) == 0
    (path,) = tmp_path.glob("*/*-4711.csv")
    reader = Reader(str(path))
    piece = reader.read()
    assert reader.header is not None
    assert (reader.header.job, reader.header.fleet) == ("4711", "study")
    assert piece.statements[-1].body == {"why": "signal SIGTERM"}


def test_one_that_a_script_started_ends_with_the_script(tmp_path: Path):
    line = (
        '"$0" -m fleetcraft gpu sample --to "$1" --interval 1s --gpus simulated:1 --minded </dev/null & echo $!; wait'
    )
    with subprocess.Popen(
        ["/bin/sh", "-c", line, sys.executable, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None
        pid = int(script.stdout.readline())
        wait_for(lambda: list(tmp_path.glob("*/*-none.csv")), "it measures")
        script.kill()
        script.wait()

        def has_ended() -> bool:
            (path,) = tmp_path.glob("*/*-none.csv")
            return any(told.kind == "end" for told in Reader(str(path)).read().statements)

        wait_for(has_ended, f"{pid} has ended", deadline_s=20)
