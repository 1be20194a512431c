"""Real workers on simulated GPUs: classes, table, metrics and summary agree with each other and with what runs."""

from __future__ import annotations

import json
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from fleetcraft.cli.main import main
from tests.support.lab import Lab
from tests.support.waiting import wait_for

GPUS: dict[str, Any] = {"gpus": "simulated:3", "cpus": 4, "telemetry_s": 1.0, "idle_exit_s": None}
UNTIL_GO = ["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"]


def ask(lab: Lab, capsys: Any, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    code = main([*words, "--spool", str(lab.root), "--json"])
    told = capsys.readouterr()
    assert code in (0, 1), told.out + told.err
    found = json.loads(told.out)
    assert isinstance(found, dict)
    return found


def classes(lab: Lab, capsys: Any, *words: str) -> dict[str, str]:
    """Class by UUID."""
    document = ask(lab, capsys, "gpu", "classify", "--threshold", "grace_s=0", *words)
    return {gpu["uuid"]: gpu["class"] for host in document["hosts"] for gpu in host["gpus"]}


def test_every_view_says_the_same_of_a_running_task_and_of_a_killed_worker(lab: Lab, capsys: Any) -> None:
    worker = lab.worker(**GPUS)
    lab.enqueue([{"name": "one", "command": UNTIL_GO, "gpus": 1}, {"name": "big", "command": ["true"], "gpus": 4}])
    lab.wait_running("one")
    wait_for(
        lambda: sorted(classes(lab, capsys).values()) == ["free-idle", "free-idle", "working"], "one GPU works",
        seen=lambda: str(classes(lab, capsys)),
    )  # fmt: skip
    document = ask(lab, capsys, "gpu", "classify", "--threshold", "grace_s=0")
    gpus = [gpu for host in document["hosts"] for gpu in host["gpus"]]
    busy = next(gpu for gpu in gpus if gpu["class"] == "working")
    idle = [gpu for gpu in gpus if gpu["class"] == "free-idle"]
    # The worker says on which GPU its task runs, and the sampler saw that one work.
    life = lab.life_of(worker)
    assert busy["uuid"] in lab.heartbeat(life)["running"][0]["gpus"]
    assert busy["tasks"] == [lab.heartbeat(life)["running"][0]["task"]]
    assert {gpu["cause"] for gpu in idle} == {"lane_without_workers"}
    assert document["clock"] == "file_server"

    top = ask(lab, capsys, "gpu", "top", "--once", "--threshold", "grace_s=0", "--filter", "class=working")
    assert [gpu["uuid"] for host in top["hosts"] for gpu in host["gpus"]] == [busy["uuid"]]
    summary = ask(lab, capsys, "gpu", "summary", "--by", "gpu")
    rows = {row["name"]: row for row in summary["rows"]}
    active = [name for name, row in rows.items() if row["active_fraction"]]
    assert len(rows) == 3
    assert len(active) == 1

    main(["gpu", "export", "--spool", str(lab.root), "--threshold", "grace_s=0"])
    found = {
        (sample.labels["uuid"], sample.labels["class"])
        for family in text_string_to_metric_families(capsys.readouterr().out)
        for sample in family.samples
        if sample.name == "fleetcraft_gpu_class"
    }
    assert found == {(gpu["uuid"], gpu["class"]) for gpu in gpus}

    worker.kill()
    dead = ("--threshold", "silent_s=1", "--threshold", "silent_intervals=1")
    wait_for(
        lambda: set(classes(lab, capsys, *dead).values()) == {"unreachable"}, "the dead worker's GPUs are silent",
        seen=lambda: str(classes(lab, capsys, *dead)),
    )  # fmt: skip
    watched = ask(lab, capsys, "gpu", "watch", "--once", *dead)
    assert [event["kind"] for event in watched["events"] if event["kind"] != "disk"] == ["silent"]
    again = ask(lab, capsys, "gpu", "watch", "--once", *dead)
    assert again["events"] == []
    (lab.folder / "go").touch()
