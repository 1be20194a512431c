"""Real workers on simulated GPUs: every second of theirs is in one class, and the sums are those of the receipts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import pytest

from fleetcraft.actions.requests import cancel, drain
from fleetcraft.actions.selection import Selection
from fleetcraft.readmodel.gpu_ledger import open_ledgers
from fleetcraft.usage.ledger_api import Class, Ledger
from tests.support.lab import Lab
from tests.support.waiting import wait_for

GPUS: dict[str, Any] = {"gpus": "simulated:2", "cpus": 4, "telemetry_s": 1.0}
UNTIL_GO = ["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"]
# Stamps are in milliseconds, and each of a handful of attempts rounds twice.
CLOSE_MS = 20


def ledger(lab: Lab, **more: Any) -> Ledger:
    found = open_ledgers(str(lab.root), **more).gpu
    assert found is not None
    assert found.adds_up, found.check_line()
    return found


def of(found: Ledger, *kinds: Class) -> int:
    return sum(found.total.amounts.get(kind, 0) for kind in kinds)


def receipts(lab: Lab) -> dict[str, int]:
    """GPU-milliseconds by outcome, from the journals alone."""
    sums: Counter[str] = Counter()
    for record in lab.records():
        if record["t"] == "receipt":
            sums[record["o"]] += round((record["end"] - record["at"]) * 1000) * len(record.get("gpus", ()))
    return sums


def lives(lab: Lab) -> int:
    """GPU-milliseconds of all lives that ended in order, from their own files alone."""
    total = 0
    for life in lab.lives():
        identity = json.loads((lab.root / "workers" / life / "identity.json").read_text())
        if identity["kind"] == "worker":
            total += round((lab.heartbeat(life)["at_utc"] - identity["created_utc"]) * 1000) * 2
    return total


def pause(lab: Lab, seconds: float) -> None:
    """Time is what is measured here, so some has to go by."""
    until_utc = lab.spool.clock.utc() + seconds
    wait_for(lambda: lab.spool.clock.utc() > until_utc, "time goes by")


def test_every_way_to_end_has_its_seconds_and_they_are_those_of_the_receipts(lab: Lab):
    worker = lab.worker(**GPUS, idle_exit_s=None)
    life = lab.life_of(worker)
    wait_for(lambda: lab.heartbeat(life).get("state") == "up", "the worker is up", seen=lab.picture)
    pause(lab, 1.0)
    lab.enqueue([{"name": f"done{number}", "command": ["sleep", "0.8"], "gpus": 1} for number in range(3)])
    lab.enqueue([{"name": "bad", "command": ["sh", "-c", "sleep 0.5; exit 3"], "gpus": 0.5}])
    lab.enqueue([{"name": "unwanted", "command": UNTIL_GO, "gpus": 1, "priority": 1}])
    lab.wait_until_ended(4)
    lab.wait_running("unwanted")
    pause(lab, 0.5)
    cancel(lab.spool, Selection(names=("unwanted",)))
    lab.wait_until_ended(5)
    lab.enqueue([{"name": "measured", "command": ["sleep", "0.7"], "gpus": 1, "timed": True}])
    lab.wait_until_ended(6)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.said()
    found, told = ledger(lab), receipts(lab)
    assert found.allocated_ms == pytest.approx(lives(lab), abs=CLOSE_MS)
    good = of(found, Class.USEFUL, Class.LOADING)
    assert good == pytest.approx(told["succeeded"], abs=CLOSE_MS)
    assert of(found, Class.FAILED) == pytest.approx(told["failed"], abs=CLOSE_MS)
    assert of(found, Class.DISCARDED) == pytest.approx(told["cancelled"], abs=CLOSE_MS)
    measured = lab.receipts("measured")[0]
    assert of(found, Class.HELD) == pytest.approx(1000 * (measured["end"] - measured["at"]), abs=CLOSE_MS)
    # Before the first enqueue both GPUs were free for more than a second, and nothing is known to have waited.
    assert of(found, Class.FREE) >= 2000
    assert of(found, Class.UNKNOWN, Class.LOST, Class.OPEN) == 0
    uses = {use.name: use for use in found.tasks}
    assert set(uses) == {"done0", "done1", "done2", "bad", "unwanted", "measured"}
    assert uses["done0"].held_ms == pytest.approx(800, abs=300)
    assert {waste.kind for waste in found.wastes} <= {
        Class.FREE, Class.FREE_WAITING, Class.FAILED, Class.DISCARDED, Class.HELD, Class.LOADING, Class.RESERVED,
    }  # fmt: skip


def test_a_killed_worker_leaves_a_lost_attempt_up_to_its_last_sign(lab: Lab):
    lab.enqueue([{"name": "victim", "command": UNTIL_GO, "gpus": 2}])
    first = lab.worker(**GPUS, idle_exit_s=None)
    life = lab.life_of(first)
    lab.wait_running("victim")
    pause(lab, 1.0)
    first.kill()
    last_sign_utc = lab.heartbeat(life)["at_utc"]
    (started,) = [record for record in lab.records(life) if record["t"] == "started"]
    second = lab.worker(**GPUS)
    wait_for(lambda: any(one["t"] == "started" and one["a"] == 2 for one in lab.records()), "a second attempt")
    running = ledger(lab)
    assert of(running, Class.OPEN) > 0
    (lab.folder / "go").touch()
    assert second.wait() == 0, second.said()
    found = ledger(lab)
    lost = 2 * 1000 * (last_sign_utc - started["at"])
    assert of(found, Class.LOST) == pytest.approx(lost, abs=CLOSE_MS)
    assert of(found, Class.USEFUL, Class.LOADING) == pytest.approx(receipts(lab)["succeeded"], abs=CLOSE_MS)
    assert of(found, Class.OPEN) == 0
    (use,) = found.tasks
    assert (use.name, use.attempts) == ("victim", 2)
    assert "why task victim" in next(waste for waste in found.wastes if waste.kind is Class.LOST).remedy


def test_a_drained_worker_shows_its_tail_and_a_waiting_task_shows_its_wait(lab: Lab):
    lab.enqueue([{"name": "long", "command": UNTIL_GO, "gpus": 1}])
    worker = lab.worker(**GPUS, idle_exit_s=None)
    life = lab.life_of(worker)
    lab.wait_running("long")
    asked_utc = lab.spool.clock.utc()
    drain(lab.spool, [life])
    wait_for(lambda: lab.heartbeat(life).get("state") == "draining", "it drains", seen=lab.picture)
    lab.enqueue([{"name": "late", "command": ["true"], "gpus": 1}])
    pause(lab, 1.0)
    (lab.folder / "go").touch()
    assert worker.wait() == 0, worker.said()
    found = ledger(lab)
    end_utc = lab.heartbeat(life)["at_utc"]
    tail = 1000 * (end_utc - asked_utc) + 1000 * (end_utc - lab.receipts("long")[0]["end"])
    assert of(found, Class.TAIL) == pytest.approx(tail, abs=300)
    # The next worker finds work that waited since it was enqueued.
    assert found.waiting
    lab.drain(**GPUS)
    assert lab.state("late") == "succeeded"


def test_work_that_cannot_start_makes_free_time_a_wait(lab: Lab):
    lab.enqueue([{"name": "filler", "command": UNTIL_GO, "cpus": 4}])
    worker = lab.worker(**GPUS)
    lab.wait_running("filler")
    enqueued_utc = lab.spool.clock.utc()
    lab.enqueue([{"name": "starved", "command": ["true"], "gpus": 1}])
    pause(lab, 1.0)
    (lab.folder / "go").touch()
    assert worker.wait() == 0, worker.said()
    found = ledger(lab)
    waited = 2 * 1000 * (lab.receipts("starved")[0]["at"] - enqueued_utc)
    assert of(found, Class.FREE_WAITING) == pytest.approx(waited, abs=200)


def test_a_resident_that_loads_is_loading(lab: Lab):
    module = (
        "import time\ndef setup():\n    time.sleep(0.7)\n    return {}\ndef work(state, number):\n    time.sleep(0.1)\n"
    )
    (lab.folder / "slow_setup.py").write_text(module)
    lab.enqueue(
        [
            {"name": f"c{number}", "call": "slow_setup:work", "args": {"number": number}, "setup": "slow_setup:setup",
             "gpus": 1, "env": {"PYTHONPATH": str(lab.folder)}}
            for number in range(4)
        ]
    )  # fmt: skip
    lab.drain(gpus="simulated:1", cpus=1, telemetry_s=None)
    assert lab.counts() == {"succeeded": 4}, lab.picture()
    found = ledger(lab)
    (loaded,) = [record for record in lab.records() if record.get("what") == "loaded"]
    assert of(found, Class.LOADING) == pytest.approx(1000 * loaded["load_s"], abs=CLOSE_MS)
    assert loaded["load_s"] >= 0.7
    assert of(found, Class.USEFUL) >= 400


def test_slots_without_a_gpu_have_the_same_ledger(lab: Lab):
    lab.enqueue([{"name": "wide", "command": ["sleep", "0.6"], "cpus": 3}])
    lab.enqueue([{"name": "bad", "command": ["sh", "-c", "sleep 0.4; exit 1"]}])
    lab.drain(cpus=4)
    found = open_ledgers(str(lab.root), by="task")
    assert found.gpu is None
    slots = found.slots
    assert slots is not None
    assert slots.adds_up
    wide, bad = lab.receipts("wide")[0], lab.receipts("bad")[0]
    assert of(slots, Class.USEFUL) == pytest.approx(3000 * (wide["end"] - wide["at"]), abs=CLOSE_MS)
    assert of(slots, Class.FAILED) == pytest.approx(1000 * (bad["end"] - bad["at"]), abs=CLOSE_MS)
    assert slots.check_line().endswith("slot-seconds = allocation")


def test_a_checkpointed_attempt_shares_the_fate_of_the_one_that_goes_on(lab: Lab):
    script = "trap 'exit 75' USR1; [ -e saved ] && exit 0; touch saved; while :; do sleep 0.05; done"
    lab.enqueue([{"name": "saver", "command": ["sh", "-c", script], "gpus": 1, "checkpoint_signal": "USR1",
                  "checkpoint_grace": 5}])  # fmt: skip
    worker = lab.worker(**GPUS, idle_exit_s=None)
    lab.wait_running("saver")
    wait_for((lab.folder / "saved").exists, "it began")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.said()
    assert of(ledger(lab), Class.OPEN) > 0, "whether the saved work was good for anything is open"
    lab.drain(**GPUS)
    found = ledger(lab)
    assert lab.state("saver") == "succeeded"
    assert of(found, Class.LOST, Class.OPEN) == 0
    told = receipts(lab)
    assert of(found, Class.USEFUL, Class.LOADING) == pytest.approx(told["succeeded"] + told["lost"], abs=CLOSE_MS)


def test_the_command_prints_the_check_and_ends_well(lab: Lab):
    lab.enqueue([{"name": "one", "command": ["sleep", "0.2"], "gpus": 1}])
    lab.drain(gpus="simulated:1", telemetry_s=None)
    begun = time.time()
    argv = [sys.executable, "-m", "fleetcraft", "gpu", "ledger", "--spool", str(lab.root)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "GPU-seconds = allocation" in said
    assert "useful" in said
    raw = subprocess.run([*argv, "--by", "task", "--json", "--timeline"], capture_output=True, text=True, check=True)
    document = json.loads(raw.stdout)
    gpu = document["gpu"]
    assert gpu["adds_up"]
    assert sum(gpu["total"]["classes_ms"].values()) == gpu["allocated_ms"]
    assert [row["label"] for row in gpu["rows"] if row["key"] != "(no task)"] == ["one"]
    assert sum(span["end_ms"] - span["start_ms"] for span in gpu["spans"]) == gpu["allocated_ms"]
    assert time.time() - begun < 30
    cut = subprocess.run(
        [*argv, "--since", "2001-01-01", "--until", "2001-01-02"], capture_output=True, text=True, check=False
    )
    assert (cut.returncode, cut.stdout.strip()) == (0, "nothing was allocated in that time")
