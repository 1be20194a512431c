"""The demo with real processes: killed in the middle and run again, it finishes the rest and repeats nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "video" / "run_demo.py"
FLEETCRAFT = Path(sys.executable).with_name("fleetcraft")
SMALL_STUDY = ("--arms", "tiny:20", "small:60", "--seeds", "1")
TASKS = 2 + 2 + 24 + 3 + 2
DEADLINE_S = 90.0

# Three runs of a small study; on a busy machine they may need several times the usual 15 s.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run_demo(out, **options):
    return subprocess.Popen([sys.executable, DEMO, "--out", out, *SMALL_STUDY], text=True, **options)


def successes(out):
    """Name, attempts and start of every task that has succeeded so far."""
    listed = subprocess.run(
        [FLEETCRAFT, "task", "list", "--spool", out / "spool", "--json"], capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        return {}
    tasks = json.loads(listed.stdout)["tasks"]
    return {t["name"]: (t["attempts"], t["worker"], t["started_utc"]) for t in tasks if t["state"] == "succeeded"}


def test_a_demo_killed_in_the_middle_finishes_the_rest_and_repeats_nothing(tmp_path):
    if not FLEETCRAFT.exists():
        pytest.skip(f"{FLEETCRAFT} is not installed beside this interpreter")
    out = tmp_path / "demo"

    # A process group of its own, so that one kill takes the demo and its worker and leaves what ran under them.
    first = run_demo(out, process_group=0, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + DEADLINE_S
    while len(before := successes(out)) < 6:
        assert first.poll() is None, f"the demo ended by itself with {first.returncode}; succeeded: {sorted(before)}"
        assert time.monotonic() < deadline_s, f"only {sorted(before)} succeeded within {DEADLINE_S} s"
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = successes(out)
    assert len(before) < TASKS

    second = run_demo(out, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    told, _ = second.communicate(timeout=DEADLINE_S)
    after = successes(out)
    assert second.returncode == 0, told
    assert f"{TASKS} succeeded" in told
    assert len(after) == TASKS
    assert {name: after[name] for name in before} == before
    assert (out / "report.html").read_text().count("<video") == 36
    assert not list((out / "results").rglob("*.part"))

    third = run_demo(out, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    told, _ = third.communicate(timeout=DEADLINE_S)
    assert third.returncode == 0, told
    assert successes(out) == after
