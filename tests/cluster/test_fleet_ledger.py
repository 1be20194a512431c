"""A fleet with simulated GPUs on the real scheduler: the ledger's allocation is the scheduler's, to the second."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.cluster.fleet_lab import FleetLab

pytestmark = [pytest.mark.needs_slurm, pytest.mark.slow]
NODES = 4
ENDED = ("COMPLETED", "CANCELLED", "FAILED", "NODE_FAIL")


@pytest.fixture
def lab(cluster) -> FleetLab:
    return FleetLab(cluster)


def accounts(lab: FleetLab, job: int) -> tuple[int, int]:
    """Seconds that a job held its nodes, and GPUs that it held, as the scheduler's accounts have them."""

    def look() -> list[str] | None:
        words = ["sacct", "-X", "-n", "-P", "-o", "ElapsedRaw,AllocTRES,State", "-j", str(job)]
        cells = lab.cluster.run(words).stdout.strip().split("|")
        return cells if len(cells) == 3 and cells[2].split()[0] in ENDED else None

    elapsed, held, _ = lab.cluster.wait_for(look, "the accounts know the end", 60.0)
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


def agree(lab: FleetLab, found: dict[str, Any]) -> None:
    """The summary of the same span saw the same GPUs as long, and as long active."""
    since, until = (datetime.fromtimestamp(found[name] / 1000, UTC).isoformat() for name in ("since_ms", "until_ms"))
    total = lab.ask("gpu", "summary", "--fleet", "main", "--since", since, "--until", until)["total"]
    assert total["gpus"] == found["total"]["lines"]
    assert 3.6e6 * total["gpu_hours"] == pytest.approx(found["total"]["observed_ms"], abs=5)
    assert 3.6e6 * total["active_gpu_hours"] == pytest.approx(found["total"]["active_ms"], abs=5)
    assert found["total"]["active_ms"] > 0
    page, data = lab.folder / "home" / "report.html", lab.folder / "home" / "report.json"
    lab.ask("gpu", "report", "--fleet", "main", "--no-ask", "--output", str(page), "--data", str(data))
    body = json.loads(data.read_text())
    (ledger,) = body["ledgers"]
    for name in ("allocated_ms", "adds_up"):
        assert ledger[name] == found[name]
    assert ledger["classes_ms"] == found["total"]["classes_ms"]
    assert body["total"] == lab.ask("gpu", "summary", "--fleet", "main")["total"]
    assert body["coverage"]["hosts_with_data"] == body["coverage"]["hosts"] == NODES
    assert "<svg" in page.read_text()


def classified(lab: FleetLab, word: str, *verb: str) -> set[str]:
    """The GPUs of which `gpu classify`, or another verb of the same picture, says so now."""
    hosts = lab.ask("gpu", *(verb or ("classify",)), "--fleet", "main", "--no-ask")["hosts"]
    return {gpu["uuid"] for host in hosts for gpu in host["gpus"] if gpu["class"] == word}


def heard(lab: FleetLab) -> int:
    """How many running tasks the heartbeats tell of."""
    return sum(len(json.loads(path.read_text())["running"]) for path in lab.spool.glob("workers/*/heartbeat.json"))


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
    agree(lab, found)
    by_job = lab.ask("gpu", "ledger", "--job", str(job), "--by", "task", "--no-ask")["gpu"]
    assert by_job["allocated_ms"] == found["allocated_ms"]
    assert by_job["total"]["classes_ms"] == classes
    assert {task["name"] for task in by_job["tasks"]} == {"bad", *(f"t{number}" for number in range(12))}


def test_a_running_fleet_has_a_ledger_that_grows_and_names_what_is_open(lab, cluster):
    lab.enqueue(["slow"], 60.0, "--gpus", "4")
    job = lab.submit_one("main", "--nodes", "2", "--idle-exit", "60s", "--worker-gpus", "simulated:4")
    lab.wait_ran(1)
    lab.ask("fleet", "status", "main")  # the nodes of the job, on record
    working = cluster.wait_for(lambda: classified(lab, "working"), "GPUs are seen at work", 60.0)
    assert classified(lab, "working", "top", "--once") == working
    first = lab.ask("gpu", "ledger", "--fleet", "main", "--timeline")["gpu"]
    (use,) = first["tasks"]
    assert working == set(use["gpus"]) == {span["gpu"] for span in first["spans"] if span["class"] == "open"}
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


def test_a_power_cut_leaves_lost_attempts_and_time_that_nobody_can_explain(lab, cluster, policy):
    names = lab.enqueue([f"t{number}" for number in range(2)], 300, "--gpus", "4", save=True)
    slim = ("--worker-gpus", "simulated:4", "--worker-cpus", "1")
    first = lab.submit_one("one", "--nodes", "2", "--idle-exit", "15s", *slim)
    doomed = min(run.node for run in lab.wait_ran(2))
    other = lab.submit_one("two", "--nodes", "1", "--idle-exit", "30s", *slim)
    cluster.wait_job(other, "RUNNING")
    # What was lost is known up to the last sign of the worker, so there must be one while it runs.
    cluster.wait_for(lambda: heard(lab) == 2, "heartbeats tell of both tasks", seen=lambda: heard(lab))
    cluster.kill_node(doomed)
    lab.be_quick(names)
    lab.wait_done(60.0 + policy.slurmd_timeout_s)
    cluster.wait_job(other, "COMPLETED", deadline_s=90.0)
    elapsed_s, gpus = accounts(lab, first)
    found = lab.ask("gpu", "ledger", "--fleet", "one", "--by", "host")["gpu"]
    assert found["adds_up"], found["check"]
    assert found["allocated_ms"] == 1000 * elapsed_s * gpus
    rows = {row["key"]: row["classes_ms"] for row in found["rows"]}
    (alive,) = set(rows) - {doomed}
    assert rows[doomed]["lost"] > 0
    # The scheduler charged the dead node until it gave it up, and no word came from there.
    assert rows[doomed]["unknown"] >= 1000 * 4 * (policy.slurmd_timeout_s / 2)
    assert list(found["unknown_ms"]) == ["its worker was gone without a word"]
    assert rows[alive]["unknown"] == 0
    both = lab.ask("gpu", "ledger")["gpu"]
    elapsed_s, gpus = accounts(lab, other)
    assert both["allocated_ms"] == found["allocated_ms"] + 1000 * elapsed_s * gpus
    assert both["total"]["classes_ms"]["useful"] > 0
