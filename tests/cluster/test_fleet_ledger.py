"""A fleet with simulated GPUs on the real scheduler: the ledger's allocation is the scheduler's, to the second."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.fleet_lab import FleetLab

pytestmark = [pytest.mark.needs_slurm, pytest.mark.slow]
NODES = 4


@pytest.fixture
def lab(cluster) -> FleetLab:
    return FleetLab(cluster)


def accounts(lab: FleetLab, job: int) -> tuple[int, int]:
    """Seconds that a job held its nodes, and GPUs that it held, as the scheduler's accounts have them."""

    def look() -> list[str] | None:
        words = ["sacct", "-X", "-n", "-P", "-o", "ElapsedRaw,AllocTRES,State", "-j", str(job)]
        cells = lab.cluster.run(words).stdout.strip().split("|")
        return cells if len(cells) == 3 and cells[2] in ("COMPLETED", "CANCELLED", "FAILED") else None

    elapsed, held, _ = lab.cluster.wait_for(look, "the accounts know the end")
    gpus = dict(part.split("=") for part in held.split(","))["gres/gpu"]
    return int(elapsed), int(gpus)


def receipts(lab: FleetLab) -> dict[str, int]:
    """GPU-milliseconds by outcome, as the tasks' attempts are shown."""
    sums: dict[str, int] = {}
    for task in lab.tasks():
        for attempt in lab.attempts(task["name"]):
            length = round((attempt["ended_utc"] - attempt["started_utc"]) * 1000) * len(attempt["gpus"])
            sums[attempt["outcome"]] = sums.get(attempt["outcome"], 0) + length
    return sums


def test_the_ledger_of_four_nodes_is_what_slurm_allocated(lab, cluster):
    lab.enqueue([f"t{number}" for number in range(12)], 3.0, "--gpus", "1")
    bad = json.dumps({"name": "bad", "shell": "sleep 2; exit 3"})
    lab.ask("task", "enqueue", "--from", "-", "--form", "jsonl", "--gpus", "2", stdin=bad + "\n")
    job = lab.submit_one("main", "--nodes", str(NODES), "--idle-exit", "3s", "--worker-gpus", "simulated:4")
    cluster.wait_job(job, "COMPLETED", deadline_s=90.0)
    elapsed_s, gpus = accounts(lab, job)
    assert gpus == NODES * cluster.policy.gpus_per_node
    found: dict[str, Any] = lab.ask("gpu", "ledger", "--fleet", "main", "--by", "host")["gpu"]
    classes = found["total"]["classes_ms"]
    assert found["adds_up"], found["check"]
    assert found["allocated_ms"] == 1000 * elapsed_s * gpus == sum(classes.values())
    assert {row["key"] for row in found["rows"]} == set(cluster.node_names)
    assert {row["total_ms"] for row in found["rows"]} == {1000 * elapsed_s * cluster.policy.gpus_per_node}
    told = receipts(lab)
    assert set(told) == {"succeeded", "failed"}
    assert classes["useful"] + classes["loading"] == pytest.approx(told["succeeded"], abs=30)
    assert classes["failed"] == pytest.approx(told["failed"], abs=5)
    assert classes["starting"] > 0
    assert classes["free_idle"] > 0
    assert classes["lost"] == classes["discarded"] == classes["open"] == 0
    # Whatever is unknown here would be a hole in the evidence: every node had a worker that ended in order.
    assert classes["unknown"] == 0, found["unknown_ms"]
    by_job = lab.ask("gpu", "ledger", "--job", str(job), "--by", "task", "--no-ask")["gpu"]
    assert by_job["allocated_ms"] == found["allocated_ms"]
    assert by_job["total"]["classes_ms"] == classes
    assert {task["name"] for task in by_job["tasks"]} == {"bad", *(f"t{number}" for number in range(12))}


def test_a_running_fleet_has_a_ledger_that_grows_and_names_what_is_open(lab, cluster):
    lab.enqueue(["slow"], 60.0, "--gpus", "4")
    job = lab.submit_one("main", "--nodes", "2", "--idle-exit", "60s", "--worker-gpus", "simulated:4")
    lab.wait_ran(1)
    first = lab.ask("gpu", "ledger", "--fleet", "main")["gpu"]
    assert first["adds_up"], first["check"]
    assert first["total"]["classes_ms"]["open"] > 0
    assert first["total"]["classes_ms"]["useful"] == 0
    lab.ask("fleet", "cancel", "main")
    cluster.wait_job(job, "CANCELLED", "COMPLETED", deadline_s=60.0)
    elapsed_s, gpus = accounts(lab, job)
    last = lab.ask("gpu", "ledger", "--fleet", "main")["gpu"]
    assert last["allocated_ms"] == 1000 * elapsed_s * gpus > first["allocated_ms"]
    classes = last["total"]["classes_ms"]
    assert classes["open"] == 0
    assert classes["lost"] > 0, "the task was told to end with its node"
