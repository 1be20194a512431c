"""What gives a fleet more nodes, or takes them back: passes, lanes, and the guards that say no."""

from __future__ import annotations

import json

import pytest

from tests.cluster.fleet_lab import FleetLab, occupy

pytestmark = [pytest.mark.needs_slurm, pytest.mark.slow]


@pytest.fixture
def lab(cluster) -> FleetLab:
    return FleetLab(cluster)


def test_passes_grow_with_the_backlog_by_one_job_each_and_give_back_what_is_not_needed(lab, cluster):
    others = occupy(cluster)
    names = lab.enqueue([f"t{n}" for n in range(40)], 0.1)
    lab.submit("main", "--nodes", "1", "--max-nodes", "3", "--time", "2m", "--idle-exit", "5s")
    for jobs in (2, 3):
        report = lab.ensure()
        assert report["action"] == "submit", report
        assert len(lab.tokens()) == jobs
    report = lab.ensure()
    assert (report["action"], len(lab.tokens())) == ("nothing", 3)
    assert "3 is the most" in report["reason"]
    # Somebody else does the work.
    lab.call("worker", "run", "--idle-exit", "0s", "--cpus", "2", "--quiet")
    lab.wait_done()
    given_back = [lab.ensure() for _ in range(3)]
    assert [report["action"] for report in given_back] == ["cancel"] * 3, given_back
    assert lab.ensure()["action"] == "nothing"
    cluster.run(["scancel", str(others)], user="root")
    assert cluster.run(["squeue", "-h", "--me"]).stdout == ""
    lab.check_work(names)
    assert lab.check_single_submissions() == 3


def test_two_passes_at_once_make_one_job(lab, cluster):
    occupy(cluster)
    lab.enqueue([f"t{n}" for n in range(40)], 0.1)
    lab.submit("main", "--nodes", "1", "--max-nodes", "2", "--time", "2m", "--idle-exit", "5s")
    passes = [lab.popen("fleet", "ensure", "main", "--json") for _ in range(3)]
    answers = [one.communicate(timeout=120) for one in passes]
    assert [one.returncode for one in passes if one.returncode not in (0, 4, 75)] == [], answers
    submitted = [json.loads(out)["action"] for out, _ in answers].count("submit")
    assert (submitted, len(lab.tokens())) == (1, 2), answers
    assert lab.check_single_submissions() == 2


def test_a_lane_gets_one_successor_of_exactly_its_shape(lab, cluster):
    lab.enqueue([f"t{n}" for n in range(8)], 300)
    job = lab.submit_one("main", "--nodes", "2", "--lanes", "1", "--time", "7m", "--gpus-per-node", "2")
    cluster.wait_job(job, "RUNNING")
    report = lab.ask("fleet", "renew", "main")
    assert report["action"] == "submit", report
    successor = int(report["submitted"]["job"])
    for _ in range(2):
        assert lab.ask("fleet", "renew", "main")["action"] == "nothing"
    assert len(lab.tokens()) == 2
    first, second = cluster.job(job), cluster.job(successor)
    for field in ("NumNodes", "TimeLimit", "Partition", "TresPerNode"):
        assert first[field].partition("-")[0] == second[field].partition("-")[0], field  # 2 and 2-2 are the same
    assert second["Dependency"].startswith(f"afterany:{job}")
    # The successor takes over when its predecessor ends, however it ends.
    cluster.run(["scancel", str(job)])
    cluster.wait_job(successor, "RUNNING")
    assert lab.check_single_submissions() == 2


def test_a_node_that_failed_twice_is_left_out_of_the_successor(lab, cluster, policy):
    bad, *good = cluster.node_names
    occupy(cluster, *good)
    lab.enqueue(["a", "b", "c", "d"], 300)
    job = lab.submit_one("main", "--nodes", "1", "--lanes", "1", "--time", "10m")
    for _ in range(2):
        cluster.wait_job(job, "RUNNING")
        cluster.kill_node(bad)
        cluster.wait_job(job, "NODE_FAIL", deadline_s=60.0 + 3 * policy.slurmd_timeout_s)
        cluster.start_node(bad)
        cluster.wait_for(lambda: cluster.node_states()[bad] == "idle", "the node is back", seen=cluster.node_states)
        report = lab.ask("fleet", "renew", "main")
        assert report["action"] == "submit", report
        job = int(report["submitted"]["job"])
    assert cluster.job(job)["ExcNodeList"] == bad
    assert cluster.job_state(job) == "PENDING"


def all_jobs(lab: FleetLab) -> set[str]:
    return {job for jobs in lab.jobs_by_token().values() for job in jobs}


def decisions(lab: FleetLab, *options: str, code: int) -> dict[str, str]:
    """What each guard that refused said, of a submission that must end with `code`."""
    (one,) = lab.submit("main", "--nodes", "1", *options, code=code)
    return {each["guard"]: each["reason"] for each in one["decisions"] if not each["allowed"]}


def test_a_shape_that_can_never_start_is_refused_with_the_reason(lab, cluster, policy):
    lab.enqueue(["a"], 1)
    before = all_jobs(lab)
    refused = decisions(lab, "--gpus-per-node", str(policy.gpus_per_node + 1), code=4)
    assert set(refused) == {"shape"}, refused
    refused = decisions(lab, "--nodes", "9", code=4)
    assert "shape" in refused, refused
    refused = decisions(lab, "--time", "3d", code=4)
    assert refused, refused
    assert lab.tokens() == []
    # Older ones may be forgotten meanwhile; a new one there is not.
    assert all_jobs(lab) <= before


def test_limits_of_the_site_are_kept(lab, cluster):
    occupy(cluster)
    lab.enqueue(["a"], 1)
    cluster.sacctmgr("add", "qos", "small", "MaxWall=00:05:00", "MaxSubmitJobsPerUser=1")
    cluster.sacctmgr("modify", "user", "fcuser", "set", "qos+=small")
    # Work of the same user under another QOS takes nothing of this one.
    cluster.sbatch("-N1", script="sleep 600")
    try:
        refused = decisions(lab, "--qos", "small", "--time", "10m", code=4)
        assert set(refused) == {"limits"}, refused
        lab.submit("main", "--nodes", "1", "--qos", "small", "--time", "4m", "--max-nodes", "4")
        refused = decisions(lab, "--qos", "small", "--time", "4m", "--max-nodes", "4", code=4)
        assert set(refused) == {"limits"}, refused
    finally:
        cluster.cancel_all()
        cluster.sacctmgr("modify", "user", "fcuser", "set", "qos-=small")
        cluster.sacctmgr("delete", "qos", "small")
    assert lab.check_single_submissions() == 1


def test_a_job_that_is_completing_leaves_its_place_to_the_next(lab, cluster):
    """As the scheduler has it: the place under a limit is free once a job has ended, although its node is not."""
    lab.enqueue(["a"], 1)
    cluster.sacctmgr("add", "qos", "small", "MaxSubmitJobsPerUser=1")
    cluster.sacctmgr("modify", "user", "fcuser", "set", "qos+=small")
    words = ("--qos", "small", "--time", "4m")
    try:
        job = cluster.sbatch("-N1", "-w", "n1", "--qos=small", script="sleep 600")
        cluster.wait_job(job, "RUNNING")
        assert set(decisions(lab, *words, code=4)) == {"limits"}
        cluster.pause_node("n1")  # nobody there hears of the end
        cluster.run(["scancel", str(job)])
        cluster.wait_job(job, "COMPLETING", "CANCELLED")
        # Its node goes down and comes back by and by: whatever of the end is seen then, it holds no place.
        (made,) = lab.submit("main", "--nodes", "1", *words)
        cluster.resume_node("n1")
        cluster.wait_job(int(made["job"]), "PENDING", "RUNNING", "COMPLETED")
    finally:
        cluster.resume_node("n1")
        cluster.cancel_all()
        cluster.sacctmgr("modify", "user", "fcuser", "set", "qos-=small")
        cluster.sacctmgr("delete", "qos", "small")
    assert lab.check_single_submissions() == 1


def test_an_account_below_its_floor_and_one_that_cannot_be_read_get_nothing(cluster):
    more = '[balance]\nprovider = "file"\npath = "{path}"\npattern = "left: ([0-9.]+)"\nunit = "SU"\nfloor = 100\n'
    path = cluster.folder("balance") / "balance.txt"
    lab = FleetLab(cluster, more=more.format(path=path))
    lab.enqueue(["a"], 1)
    assert set(decisions(lab, code=4)) == {"balance"}
    path.write_text("left: 99.5\n")
    assert set(decisions(lab, code=4)) == {"balance"}
    path.write_text("left: 5000\n")
    lab.submit("main", "--nodes", "1", "--time", "1m", "--idle-exit", "1s")
    assert lab.check_single_submissions() == 1
