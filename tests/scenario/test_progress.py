"""A task says how far it is: in the heartbeat while it runs, in its receipt afterwards, and in no other's."""

from __future__ import annotations

import sys
from typing import Any

from fleetcraft.readmodel.detail import show_task
from tests.support.lab import ROOT, Lab
from tests.support.waiting import wait_for

REPORTING = """
import os, time, fleetcraft
fleetcraft.progress(3, 10, "steps", flops=2e15, phase="train", loss=0.5)
while not os.path.exists("go"):
    time.sleep(0.02)
fleetcraft.progress(10, flops=7e15)
raise SystemExit(int(os.environ["FLEETCRAFT_ATTEMPT"]) == 1)
"""
ENV = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
SILENT = ["sh", "-c", 'test ! -e "$FLEETCRAFT_PROGRESS"']


def test_progress_is_in_the_heartbeat_then_in_the_receipt_and_not_inherited(lab: Lab):
    lab.enqueue([{"name": "long", "command": [sys.executable, "-c", REPORTING], "env": ENV, "priority": 900}])
    lab.enqueue([{"name": f"silent{number}", "command": SILENT} for number in range(3)])
    worker = lab.worker(cpus=1)
    life = lab.life_of(worker)

    def said() -> dict[str, Any] | None:
        running = lab.heartbeat(life).get("running") or []
        return next((entry["progress"] for entry in running if "progress" in entry), None)

    found = wait_for(said, "progress in the heartbeat", seen=lambda: lab.heartbeat(life))
    assert found.pop("at_utc") > 0
    assert found == {
        "done": 3, "total": 10, "unit": "steps", "phase": "train", "flops": 2e15, "numbers": {"loss": 0.5}
    }  # fmt: skip
    lab.spool.refresh()
    view = show_task(lab.spool, "long").attempts[0]
    assert view.state == "running"
    assert view.progress is not None
    assert view.progress["done"] == 3

    (lab.folder / "go").touch()
    assert worker.wait() == 0
    (first,) = lab.receipts("long")
    assert first["o"] == "failed"
    assert (first["progress"]["done"], first["progress"]["flops"]) == (10, 7e15)
    for number in range(3):
        (receipt,) = lab.receipts(f"silent{number}")
        assert receipt["o"] == "succeeded"
        assert "progress" not in receipt
    assert not list((lab.root / "workers" / life).glob("*progress*"))


def test_each_attempt_of_a_task_has_its_own_word(lab: Lab):
    command = (
        'if [ "$FLEETCRAFT_ATTEMPT" = 1 ]; then '
        """echo '{"schema":"fleetcraft.progress/1","flops":5}' > "$FLEETCRAFT_PROGRESS"; exit 1; fi"""
    )
    lab.enqueue([{"name": "twice", "shell": command, "retries": 1, "backoff": 0}])
    lab.drain(cpus=1)
    first, second = lab.receipts("twice")
    assert first["progress"] == {"flops": 5}
    assert "progress" not in second
    views = show_task(lab.spool, "twice").attempts
    assert [view.progress for view in views] == [{"flops": 5}, None]


def test_a_plain_success_with_progress_has_it_and_garbage_harms_nothing(lab: Lab):
    # Longer than what is not looked at.
    write = """> "$FLEETCRAFT_PROGRESS"; sleep 0.3"""
    lab.enqueue([
        {"name": "good", "shell": """echo '{"schema":"fleetcraft.progress/1","done":2,"total":2}' """ + write},
        {"name": "garbage", "shell": "head -c 9000 /dev/zero " + write},
        {"name": "pipe", "shell": """mkfifo "$FLEETCRAFT_PROGRESS"; sleep 0.3"""},
    ])  # fmt: skip
    lab.drain(cpus=1)
    assert lab.counts() == {"succeeded": 3}
    assert lab.receipts("good")[0]["progress"] == {"done": 2, "total": 2}
    assert "progress" not in lab.receipts("garbage")[0]
    assert "progress" not in lab.receipts("pipe")[0]
