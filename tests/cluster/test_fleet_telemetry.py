"""Four nodes with simulated GPUs: every verb about GPUs tells the same story, also of nodes that fell silent."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fleet_lab import FleetLab
from tests.cluster.slurm_cluster import SlurmCluster
from tests.cluster.test_fleet_ledger import accounts

pytestmark = [pytest.mark.needs_slurm, pytest.mark.slow]
GPUS = 4
# The interval is 10 s: one that misses a sample is not silent yet, and two that come late in a row are.
LIMITS = ("--threshold", "silent_s=22", "--threshold", "silent_intervals=2")


@pytest.fixture
def lab(cluster) -> FleetLab:
    return FleetLab(cluster)


def hosts_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {host["host"]: host for host in found["hosts"]}


def words(host: dict[str, Any], name: str) -> set[str]:
    """What the GPUs of a host say under a name."""
    return {gpu[name] for gpu in host["gpus"]}


def gpus_in(found: dict[str, Any], word: str) -> set[str]:
    """The GPUs in a class."""
    return {gpu["uuid"] for host in found["hosts"] for gpu in host["gpus"] if gpu["class"] == word}


def samplers(cluster: SlurmCluster, node: str) -> list[int]:
    """The pids of samplers on a node."""
    found = []
    for pid in cluster.node_processes(node):
        with contextlib.suppress(OSError):
            if b"fleetcraft.telemetry.sampler" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
    return found


@contextlib.contextmanager
def killed_again_and_again(cluster: SlurmCluster, node: str) -> Iterator[Callable[[], int]]:
    """No sampler lives long on this node; how many were killed."""
    over, killed = threading.Event(), [0]

    def kill() -> None:
        while not over.wait(0.1):
            for pid in samplers(cluster, node):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    killed[0] += 1

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield lambda: killed[0]
    finally:
        over.set()
        thread.join()


def test_every_verb_tells_the_same_of_four_nodes_two_of_which_fall_silent(lab, cluster, policy):
    lab.enqueue([f"t{number}" for number in range(policy.nodes)], 300.0, "--gpus", str(GPUS))
    slim = ("--idle-exit", "60s", "--worker-gpus", f"simulated:{GPUS}", "--worker-cpus", "1")
    job, other = (lab.submit_one("main", "--nodes", str(number), *slim) for number in (policy.nodes - 1, 1))
    nodes = set(cluster.node_names)
    runs = lab.wait_ran(policy.nodes)
    assert {run.node for run in runs} == nodes
    lab.ask("fleet", "status")  # the nodes of the jobs, on record
    everything = {f"SIM-{node}-{number}" for node in nodes for number in range(GPUS)}
    last: dict[str, Any] = {}

    def classified(*words: str) -> dict[str, Any]:
        last.clear()
        last.update(lab.ask("gpu", "classify", "--fleet", "main", *words))
        return last

    def at_work() -> bool:
        return gpus_in(classified("--no-ask"), "working") == everything

    cluster.wait_for(at_work, "every GPU is seen at work", 60.0, lambda: last)
    (dead,) = by_job(last, other)
    blind = min(by_job(last, job))
    with killed_again_and_again(cluster, blind) as killed:
        check_selections(lab, {"main": everything}, {job: len(everything) - GPUS, other: GPUS})
        cluster.kill_node(dead)

        def told() -> bool:
            seen = hosts_of(classified(*LIMITS))
            if set(seen) != nodes:
                return False
            return words(seen[blind], "cause") == {"no_sampler"} and words(seen[dead], "cause") == {"node_down"}

        cluster.wait_for(told, "both are told apart", 120.0 + policy.slurmd_timeout_s, lambda: last)
        assert killed() > 1
    check_silence(last, nodes, blind, dead)
    cover = lab.ask("gpu", "summary", "--fleet", "main", "--window", "20s")
    assert (cover["coverage"]["hosts"], cover["coverage"]["gpus"]) == (policy.nodes, len(everything))
    assert cover["coverage"]["time"] < 0.9

    # Afterwards the books are those of the scheduler, and a node that left nothing behind is still one of four.
    lab.ask("fleet", "cancel", "main")
    cluster.wait_job(job, "CANCELLED", "COMPLETED", deadline_s=60.0)
    held_s = [accounts(lab, one) for one in (job, other)]
    found = lab.ask("gpu", "ledger", "--fleet", "main", "--by", "host")["gpu"]
    assert found["adds_up"], found["check"]
    assert found["allocated_ms"] == sum(1000 * elapsed_s * gpus for elapsed_s, gpus in held_s)
    assert {row["key"] for row in found["rows"]} == nodes
    shutil.rmtree(lab.spool / "telemetry" / dead)
    after = lab.ask("gpu", "summary", "--fleet", "main")
    assert {name: after["coverage"][name] for name in ("hosts", "hosts_with_data", "gpus", "gpus_with_data")} == {
        "hosts": policy.nodes, "hosts_with_data": policy.nodes - 1, "gpus": len(everything),
        "gpus_with_data": len(everything) - GPUS,
    }  # fmt: skip
    assert [one["host"] for one in after["problems"] if one["kind"] == "no_data"] == [dead]


def by_job(found: dict[str, Any], job: int) -> list[str]:
    """The hosts of a job."""
    return [host["host"] for host in found["hosts"] if str(job) in host["jobs"]]


def check_selections(lab: FleetLab, fleets: dict[str, set[str]], jobs: dict[int, int]) -> None:
    """top, summary and ledger speak of the same GPUs, whichever are asked for."""
    for fleet, uuids in fleets.items():
        top = lab.ask("gpu", "top", "--once", "--fleet", fleet, "--no-ask")
        assert gpus_in(top, "working") == uuids
        open_now = lab.ask("gpu", "ledger", "--fleet", fleet, "--timeline", "--no-ask")["gpu"]
        assert {span["gpu"] for span in open_now["spans"] if span["class"] in ("open", "lost")} == uuids
    for job, number in jobs.items():
        top = lab.ask("gpu", "top", "--once", "--job", str(job), "--no-ask")
        assert len([gpu for host in top["hosts"] for gpu in host["gpus"]]) == number
        cover = lab.ask("gpu", "summary", "--job", str(job))["coverage"]
        assert (cover["gpus"], cover["gpus_with_data"]) == (number, number)
        assert (cover["hosts"], cover["hosts_with_data"]) == (number // GPUS, number // GPUS)
    assert lab.ask("gpu", "classify", "--fleet", "none", "--no-ask", code=2)["error"]["code"] == "usage"


def check_silence(found: dict[str, Any], nodes: set[str], *silent: str) -> None:
    """Silent hosts have an age and all their GPUs, which count; the others report."""
    for name, host in hosts_of(found).items():
        assert len(host["gpus"]) == GPUS, host
        assert host["reports"] is (name not in silent), host
        if name in silent:
            assert min(gpu["age_s"] for gpu in host["gpus"]) > 20
            assert words(host, "class") <= {"unreachable", "unknown"}
    totals = found["totals"]
    assert (totals["gpus"], totals["reporting_gpus"]) == (GPUS * len(nodes), GPUS * (len(nodes) - len(silent)))
    assert (totals["hosts"], totals["reporting_hosts"]) == (len(nodes), len(nodes) - len(silent))
