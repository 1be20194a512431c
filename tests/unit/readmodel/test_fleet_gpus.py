"""Every node and GPU of running jobs is listed, whoever told about it."""

from __future__ import annotations

from typing import Any

import pytest

from fleetcraft.core.states import JobState, WorkerState
from fleetcraft.readmodel.fleet_gpus import Beat, count_states, cover, read_nodes
from fleetcraft.readmodel.lives import WorkerView
from fleetcraft.schedulers.api import JobRef, JobView


def job(number: str = "7", **changes: Any) -> JobView:
    values: dict[str, Any] = {
        "state": JobState.RUNNING, "raw_state": "RUNNING", "nodes": ("n1", "n2"), "node_count": 2, "partition": "gpu",
    }  # fmt: skip
    return JobView(ref=JobRef(id=number), **(values | changes))


def gpu(used: float = 0.0, reserved_bytes: int = 0) -> dict[str, Any]:
    return {"uuid": f"GPU-{used}", "name": "A100", "memory_bytes": 80 << 30, "used": used,
            "reserved_bytes": reserved_bytes}  # fmt: skip


def beat(host: str = "n1", *, job_id: str = "7", gpus: Any = (), running: int = 1, **changes: Any) -> Beat:
    values: dict[str, Any] = {
        "life": f"{host}-life", "state": WorkerState.UP, "reason": "", "host": host, "pid": 1, "job_id": job_id,
        "age_s": 1.0, "since_utc": 1.0, "cpus": 8, "gpus": len(gpus), "gpu_memory_bytes": None, "running": running,
        "done": 0, "rate_per_s": None, "buried": False,
    }  # fmt: skip
    return Beat(worker=WorkerView(**(values | changes)), gpus=tuple(gpus), running=running)


def states(nodes):
    return [[gpu.state.value for gpu in node.gpus] for node in nodes]


def test_a_gpu_works_when_a_running_task_holds_it_and_is_free_when_nobody_does():
    nodes = read_nodes([job()], [beat(gpus=[gpu(1.0), gpu(0.5), gpu(), gpu(0, 9)]), beat("n2")], {"7": 4}, {})
    assert states(nodes) == [["working", "working", "free", "reserved"], ["unknown"] * 4]
    assert [node.reports for node in nodes] == [True, True]


def test_a_gpu_that_is_held_while_nothing_runs_is_reserved():
    nodes = read_nodes([job(nodes=("n1",), node_count=1)], [beat(gpus=[gpu(1.0)], running=0)], {"7": 1}, {})
    assert states(nodes) == [["reserved"]]


def test_a_node_that_nobody_heard_of_is_listed_with_its_gpus_and_the_reason():
    nodes = read_nodes([job()], [beat(gpus=[gpu(1.0)])], {"7": 1}, {})
    assert [(node.node, node.reports) for node in nodes] == [("n1", True), ("n2", False)]
    assert nodes[1].reason == "no worker of this spool told about it"
    assert states(nodes) == [["working"], ["unknown"]]
    assert cover(nodes).as_json() == {
        "nodes": 2, "reporting_nodes": 1, "gpus": 2, "reporting_gpus": 1, "percent": 50.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "expected"),
    (
        (WorkerState.STALE, "unreachable"),
        (WorkerState.LOST, "unreachable"),
        (WorkerState.STARTING, "unknown"),
        (WorkerState.STOPPED, "unknown"),
    ),
)
def test_what_a_silent_worker_held_is_not_taken_for_free(state, expected):
    nodes = read_nodes([job(nodes=("n1",), node_count=1)], [beat(gpus=[gpu()], state=state)], {"7": 1}, {})
    assert states(nodes) == [[expected]]
    assert nodes[0].reports is False
    assert nodes[0].gpus[0].reason


def test_one_busy_gpu_does_not_make_its_neighbours_busy():
    nodes = read_nodes([job(nodes=("n1",), node_count=1)], [beat(gpus=[gpu(1.0), gpu(), gpu()])], {"7": 3}, {})
    assert count_states(nodes) == {"working": 1, "reserved": 0, "free": 2, "unknown": 0, "unreachable": 0}


def test_the_life_that_runs_counts_after_a_requeue():
    old = beat(gpus=[gpu(1.0)], state=WorkerState.LOST, life="old", since_utc=1.0)
    new = beat(gpus=[gpu()], life="new", since_utc=9.0)
    (node,) = read_nodes([job(nodes=("n1",), node_count=1)], [old, new], {"7": 1}, {})
    assert (node.worker, states([node])) == ("new", [["free"]])


def test_hosts_are_matched_with_or_without_their_domain_and_strangers_are_shown():
    beats = [beat("n1.site.edu", gpus=[gpu()]), beat("odd", gpus=[gpu()])]
    nodes = read_nodes([job()], beats, {"7": 1}, {})
    assert [(node.node, node.reports) for node in nodes] == [("n1", True), ("n2", False), ("odd", True)]


def test_one_worker_of_a_job_with_one_node_belongs_to_it_whatever_its_host_is_called():
    (node,) = read_nodes([job(nodes=("slot0",), node_count=1)], [beat("machine", gpus=[gpu()])], {"7": 1}, {})
    assert (node.node, node.reports) == ("slot0", True)


def test_a_job_may_call_itself_otherwise_and_other_jobs_workers_do_not_count():
    beats = [beat(job_id="fctoken", gpus=[gpu()]), beat("n2", job_id="8", gpus=[gpu()])]
    nodes = read_nodes([job()], beats, {"7": 1}, {"7": {"fctoken"}})
    assert [node.reports for node in nodes] == [True, False]


def test_nodes_without_names_are_counted_too():
    nodes = read_nodes([job(nodes=(), node_count=3)], [], {"7": 2}, {})
    assert [node.node for node in nodes] == ["node 1 of 7", "node 2 of 7", "node 3 of 7"]
    assert cover(nodes).gpus == 6


def test_an_unknown_number_of_gpus_is_not_zero():
    nodes = read_nodes([job()], [], {"7": None}, {})
    assert cover(nodes).gpus is None
    assert cover(nodes).percent == 0.0


def test_only_jobs_that_hold_nodes_are_looked_at():
    assert read_nodes([job(state=JobState.PENDING), job(state=JobState.DONE)], [], {}, {}) == []
    assert cover([]).percent is None
