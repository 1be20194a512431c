#!/usr/bin/env python3
"""How soon the tasks of a 4-node fleet start, and how soon its nodes go back, on a real Slurm of this machine.

Slurm tells starts and ends in whole seconds, so each figure may be up to a second too long. Exit 0: both were reached.

usage: bench/fleet_latency.py [ROUNDS]
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from tests.cluster.fleet_lab import FleetLab  # noqa: E402  the path comes first
from tests.cluster.policy import ClusterPolicy  # noqa: E402
from tests.cluster.slurm_cluster import SlurmCluster  # noqa: E402

NODES, IDLE_EXIT_S = 4, 3.0
MOST_START_S, MOST_RELEASE_S = 3.0, IDLE_EXIT_S + 5.0


def one_round(cluster: SlurmCluster) -> dict[str, float]:
    """One fleet from enqueue to released nodes."""
    lab = FleetLab(cluster)
    names = lab.enqueue([f"t{number}" for number in range(40)], 0.5)
    began_s = time.monotonic()
    job = lab.submit_one("main", "--nodes", str(NODES), "--idle-exit", f"{IDLE_EXIT_S:g}s", "--time", "5m")
    submit_s = time.monotonic() - began_s
    lab.wait_done(60.0)
    cluster.wait_job(job, "COMPLETED", deadline_s=60.0)
    runs = lab.check_work(names)
    first = {node: min(run.begin_utc for run in runs if run.node == node) for node in {run.node for run in runs}}
    start, end = lab.times(job)
    last = max(run.end_utc for run in runs if run.end_utc is not None)
    return {
        "submit_command_s": submit_s,
        "first_task_s": min(first.values()) - start,
        "last_node_first_task_s": max(first.values()) - start,
        "nodes_that_worked": len(first),
        "release_after_last_task_s": end - last,
    }


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with SlurmCluster.start(ClusterPolicy()) as cluster:
        seen = [one_round(cluster) for _ in range(rounds)]
    worst = {name: round(max(each[name] for each in seen), 2) for name in seen[0]}
    reached = worst["last_node_first_task_s"] <= MOST_START_S and worst["release_after_last_task_s"] <= MOST_RELEASE_S
    report: dict[str, Any] = {
        "what": f"a fleet of {NODES} nodes, idle exit {IDLE_EXIT_S:g} s, on a Slurm of this machine",
        "rounds": rounds,
        "cpus": os.cpu_count(),
        "median": {name: round(statistics.median(each[name] for each in seen), 2) for name in seen[0]},
        "worst": worst,
        "bounds": {"last_node_first_task_s": MOST_START_S, "release_after_last_task_s": MOST_RELEASE_S},
        "reached": reached,
    }
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
