"""The cluster itself is held to account: what other tests rely on happens here for real."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import usercode
from tests.cluster.policy import ClusterPolicy
from tests.cluster.slurm_cluster import SlurmCluster
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.needs_slurm, pytest.mark.slow]


def said(cluster: SlurmCluster, job_id: int) -> str:
    return (cluster.shared / f"slurm-{job_id}.out").read_text()


def accounted(cluster: SlurmCluster, job_id: int, fields: str, *options: str) -> list[list[str]]:
    """Rows of sacct for one job, without its steps."""
    words = ["sacct", "-X", "-n", "-P", "-o", fields, "-j", str(job_id), *options]
    return [row.split("|") for row in cluster.run(words).stdout.splitlines()]


def test_every_node_is_idle_and_has_a_host_name_of_its_own(cluster):
    assert cluster.node_states() == dict.fromkeys(cluster.node_names, "idle")
    job = cluster.sbatch(f"-N{len(cluster.node_names)}", script="srun sh -c 'echo $SLURMD_NODENAME $(hostname)'")
    cluster.wait_job(job, "COMPLETED")
    assert sorted(said(cluster, job).split("\n")[:-1]) == [f"{name} {name}" for name in cluster.node_names]


def test_gpus_are_counted_and_run_out(cluster, policy):
    per_node = policy.gpus_per_node
    first = cluster.sbatch("-N1", f"--gpus-per-node={per_node - 1}", "-w", "n1", script="sleep 600")
    cluster.wait_job(first, "RUNNING")
    assert cluster.job(first)["TresPerNode"].endswith(f"gpu:{per_node - 1}")
    second = cluster.sbatch("-N1", "--gpus-per-node=2", "-w", "n1", script="true")
    cluster.wait_for(lambda: cluster.job(second)["Reason"] == "Resources", "the second waits for GPUs")
    third = cluster.sbatch("-N1", "--gpus-per-node=1", "-w", "n2", script="echo $SLURM_GPUS_ON_NODE")
    cluster.wait_job(third, "COMPLETED")
    assert said(cluster, third) == "1\n"
    never = cluster.run(["sbatch", f"--gpus-per-node={per_node + 1}"], stdin="#!/bin/sh\n", check=False)
    assert "Requested node configuration is not available" in never.stderr


def test_the_user_is_ordinary(cluster):
    user = pwd.getpwnam("fcuser")
    job = cluster.sbatch(script="id -u; touch /etc/fleetcraft-was-here")
    cluster.wait_job(job, "FAILED")
    answer = said(cluster, job).split("\n")
    assert int(answer[0]) == user.pw_uid != 0
    assert "Permission denied" in answer[1]
    assert not Path("/etc/fleetcraft-was-here").exists()
    roots = cluster.sbatch(script="sleep 600", user="root")
    refused = cluster.run(["scancel", str(roots)], check=False)
    assert "Access/permission denied" in refused.stderr


def test_a_cancelled_job_tells_in_the_accounts_who_did_it(cluster):
    job = cluster.sbatch(script="sleep 600")
    cluster.wait_job(job, "RUNNING")
    cluster.run(["scancel", str(job)])
    expected = [[f"CANCELLED by {cluster.user.pw_uid}"]]
    cluster.wait_for(lambda: accounted(cluster, job, "State") == expected, "accounting names the user")


def test_accounting_keeps_exit_codes_nodes_and_gpus(cluster):
    job = cluster.sbatch("-N2", "--gpus-per-node=2", script="exit 17")
    cluster.wait_job(job, "FAILED")
    fields = "State,ExitCode,NNodes,NodeList"
    # Of a short job accounting names only the first node for some seconds, beside the right count.
    expected = [["FAILED", "17:0", "2", "n[1-2]"]]
    cluster.wait_for(
        lambda: accounted(cluster, job, fields) == expected,
        "accounting has the end",
        seen=lambda: accounted(cluster, job, fields),
    )
    assert "gres/gpu=4" in accounted(cluster, job, "AllocTRES")[0][0]


def test_too_much_memory_is_out_of_memory(cluster):
    if cluster.no_cgroups:
        pytest.skip(f"memory is not kept in bounds by the kernel: {cluster.no_cgroups}")
    job = cluster.sbatch("--mem=60", script="exec python3 -c 'x = bytearray(300 << 20)'")
    assert cluster.wait_job(job, "OUT_OF_ME", "COMPLETED", "FAILED") == "OUT_OF_MEMORY"
    cluster.wait_for(
        lambda: accounted(cluster, job, "State,ExitCode") == [["OUT_OF_MEMORY", "0:125"]],
        "accounting has it too",
        seen=lambda: accounted(cluster, job, "State,ExitCode"),
    )


def test_without_control_groups_accounting_ends_what_takes_too_much_memory():
    with SlurmCluster.start(ClusterPolicy(nodes=1, cgroups=False)) as plain:
        job = plain.sbatch("--mem=60", script="exec python3 -c 'x = bytearray(300 << 20); input()' < <(sleep 600)")
        state = plain.wait_job(job, "OUT_OF_ME", "COMPLETED", "FAILED", "CANCELLED")
        assert "memory" in said(plain, job)
        assert state == "FAILED"


def test_a_preempted_job_is_requeued_under_the_same_id_and_runs_again(cluster, policy):
    everything = f"-N{policy.nodes}"
    low = cluster.sbatch(
        everything, "-plow", "--exclusive", "--open-mode=append", script='echo "run $SLURM_RESTART_COUNT"; sleep 600'
    )
    cluster.wait_job(low, "RUNNING")
    high = cluster.sbatch(everything, "-phigh", "--exclusive", script="sleep 600")
    cluster.wait_job(high, "RUNNING")
    cluster.wait_for(lambda: cluster.job(low)["Reason"] == "BeginTime", "the victim waits", 60 + policy.kill_wait_s)
    cluster.run(["scancel", str(high)])
    cluster.wait_for(
        lambda: cluster.job(low)["JobState"] == "RUNNING" and cluster.job(low)["Restarts"] == "1",
        "the victim runs again",
        60 + policy.requeue_delay_s,
        lambda: cluster.job(low),
    )
    first, *between, last = said(cluster, low).splitlines()
    assert (first, last) == ("run ", "run 1")
    assert "DUE TO PREEMPTION" in between[0]
    rows = accounted(cluster, low, "State", "-D")
    assert [row[0] for row in rows] == ["PREEMPTED", "RUNNING"]


def test_a_power_cut_takes_everything_on_the_node_and_nobody_is_told(cluster, policy):
    survivor = cluster.sbatch("-N1", "-wn2", script="sleep 600")
    job = cluster.sbatch(
        "-N1", "-wn1", "--no-requeue", script="setsid sleep 611 & echo $! > pids; sleep 622 & echo $! >> pids; wait"
    )
    cluster.wait_job(survivor, "RUNNING")
    pids = cluster.wait_for(lambda: _two_numbers(cluster.shared / "pids"), "both children run")
    assert set(pids) <= set(cluster.node_processes("n1"))
    cluster.kill_node("n1")
    assert [pid for pid in pids if _runs(pid)] == []
    # For a while the controller believes that nothing happened.
    assert cluster.job_state(job) == "RUNNING"
    cluster.wait_job(job, "NODE_FAIL", deadline_s=60 + 3 * policy.slurmd_timeout_s)
    assert cluster.node_states()["n1"] == "down*"
    assert cluster.job_state(survivor) == "RUNNING"
    cluster.start_node("n1")
    cluster.wait_for(lambda: cluster.node_states()["n1"] == "idle", "the node is back", seen=cluster.node_states)


def _two_numbers(path: Path) -> list[int] | None:
    words = path.read_text().split() if path.exists() else []
    return [int(word) for word in words] if len(words) == 2 else None


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_hung_controller_takes_a_submission_and_says_that_it_timed_out(cluster, policy):
    cluster.pause_controller()
    lost = cluster.run(["sbatch", "-J", "lost"], stdin="#!/bin/sh\nsleep 600\n", check=False)
    assert lost.returncode != 0
    assert "Socket timed out" in lost.stderr
    cluster.resume_controller()
    queue = ["squeue", "-h", "-n", "lost", "-o", "%T"]
    cluster.wait_for(lambda: cluster.run(queue).stdout == "RUNNING\n", "the lost submission runs all the same")


def test_a_stopped_controller_remembers_its_jobs(cluster):
    job = cluster.sbatch(script="sleep 600")
    cluster.wait_job(job, "RUNNING")
    # In order, so that it saves what it knows: killed at once it would have forgotten a job this young.
    cluster.stop_controller()
    refused = cluster.run(["squeue"], check=False)
    assert refused.returncode != 0
    assert "Unable to contact slurm controller" in refused.stderr
    cluster.start_controller()
    cluster.wait_job(job, "RUNNING")


def test_without_slurmdbd_jobs_run_and_the_accounts_catch_up(cluster):
    cluster.stop_database()
    job = cluster.sbatch(script="exit 3")
    assert cluster.run(["sacct", "-j", str(job)], check=False).returncode != 0
    cluster.wait_for(lambda: cluster.job(job).get("JobState") == "FAILED", "the job ended")
    cluster.start_database()
    expected = [["FAILED", "3:0"]]
    cluster.wait_for(lambda: accounted(cluster, job, "State,ExitCode") == expected, "the accounts caught up")


def test_two_clusters_run_beside_each_other_and_one_goes_with_a_suspended_job_and_a_hung_controller(cluster):
    with SlurmCluster.start(ClusterPolicy(nodes=1, accounting=False)) as other:
        assert other.node_states() == {"n1": "idle"}
        job = other.sbatch(script="sleep 600")
        other.wait_job(job, "RUNNING")
        members = other.node_processes("n1")
        other.scontrol("suspend", str(job))
        other.wait_job(job, "SUSPENDED")
        disabled = other.run(["sacct"], check=False)
        assert "Slurm accounting storage is disabled" in disabled.stderr + disabled.stdout
        other.pause_controller()
    assert not other.root.exists()
    assert [pid for pid in members if _runs(pid)] == []
    assert cluster.node_states() == dict.fromkeys(cluster.node_names, "idle")


def test_the_user_can_run_this_project_also_from_a_copy(cluster):
    for python in (usercode.python_for_user(cluster), usercode.copy_for_user(cluster)):
        answer = cluster.run(python.argv("--version"), env=python.env)
        assert answer.stdout.startswith("fleetcraft")


def test_a_killed_owner_leaves_nothing_behind():
    program = """
import time
from tests.cluster.policy import ClusterPolicy
from tests.cluster.slurm_cluster import SlurmCluster
cluster = SlurmCluster.start(ClusterPolicy(nodes=1, accounting=False))
print(cluster.root, *[daemon.pid for daemon in cluster.daemons.all()], flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        root, *pids = owner.stdout.readline().split()
        os.kill(owner.pid, signal.SIGKILL)
    assert len(pids) == 3
    wait_for(lambda: not Path(root).exists(), "the keeper took it down")
    assert [pid for pid in pids if _runs(int(pid))] == []
