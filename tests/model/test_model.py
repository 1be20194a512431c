"""The protocol model is searched completely, with small bounds, and every mutation of it is caught."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[2] / "model"
MUTATIONS = json.loads((MODEL / "mutations" / "mutations.json").read_text())
CONFIGURATIONS = json.loads((MODEL / "configurations.json").read_text())

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.needs_command("spin", "gcc")]


def search(*options):
    command = [sys.executable, str(MODEL / "check.py"), "--json", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_protocol_holds_and_every_mutation_of_it_is_caught():
    done = search("--small")
    assert done.returncode == 0, done.stderr[-4000:]
    rows = json.loads(done.stdout)
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in ("clean", "cycles", "mutation")}
    assert [row["name"] for row in kinds["clean"]] == [entry["name"] for entry in CONFIGURATIONS["small"]]
    assert len(kinds["mutation"]) == len(MUTATIONS) >= 14
    assert kinds["cycles"], "no configuration was searched for endless runs"
    assert all(row["verdict"] == "complete, clean" and row["states"] > 1000 for row in kinds["clean"])
    assert all(row["verdict"] == "complete, no endless run" for row in kinds["cycles"])
    assert all(row["verdict"].startswith("caught: ") for row in kinds["mutation"])


def test_a_search_that_ran_out_of_time_is_no_pass():
    done = search("--only", "two-reapers", "--limit-s", "0.01")
    assert done.returncode == 1
    clean = next(row for row in json.loads(done.stdout) if row["kind"] == "clean")
    assert clean["verdict"] == "out of time, not complete"


def test_every_mutation_switch_of_the_model_is_searched():
    text = (MODEL / "spool.pml").read_text()
    switches = {word for word in text.replace("(", " ").replace(")", " ").split() if word.startswith("MUT_")}
    known = {item for entry in MUTATIONS for item in entry["define"]}
    assert {word for word in switches if word != "MUT_*"} == known
