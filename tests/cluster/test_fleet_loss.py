"""Nodes that go away for real: at the time limit, by scancel, by a power cut, by preemption. Nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.cluster.fleet_lab import FleetLab

pytestmark = [pytest.mark.needs_slurm, pytest.mark.slow]


@pytest.fixture
def lab(cluster) -> FleetLab:
    return FleetLab(cluster)


def last_words(lab: FleetLab, name: str) -> tuple[str, str | None]:
    """How the first attempt of a task ended, and why."""
    first = lab.attempts(name)[0]
    return first["outcome"], first["cause"]


def test_at_the_time_limit_work_is_saved_and_goes_back_before_the_kill(lab, cluster):
    saving = lab.enqueue([f"save{n}" for n in range(3)], 300, save=True)
    plain = lab.enqueue(["plain"], 300)
    job = lab.submit_one("main", "--nodes", "2", "--time", "1m", "--idle-exit", "30s")
    lab.wait_ran(4)
    # The job ends by itself, well before the scheduler would end it.
    cluster.wait_job(job, "COMPLETED", "TIMEOUT", "CANCELLED", deadline_s=120.0)
    assert cluster.job_state(job) == "COMPLETED", lab.said()
    counts = lab.counts()
    assert (counts["waiting"], counts["running"], counts["claimed"]) == (4, 0, 0)
    assert sorted(run.task for run in lab.runs() if run.saved) == saving
    for name in saving:
        assert last_words(lab, name) == ("lost", "checkpointed")
    assert last_words(lab, "plain") == ("lost", "walltime")
    # A successor finishes it.
    lab.be_quick(plain)
    assert lab.ensure()["action"] == "submit"
    lab.wait_done()
    lab.check_work([*saving, *plain])
    assert lab.check_single_submissions() == 2


def test_work_of_a_job_that_is_cancelled_by_hand_goes_on_in_the_next(lab, cluster):
    names = lab.enqueue(["save0", "save1"], 300, save=True) + lab.enqueue(["plain0", "plain1"], 300)
    job = lab.submit_one("main", "--nodes", "2", "--idle-exit", "15s")
    lab.wait_ran(4)
    cluster.run(["scancel", str(job)])
    cluster.wait_job(job, "CANCELLED")
    cluster.wait_for(lambda: not lab.running(), "no process of a task is left", seen=lab.running)
    lab.be_quick(names)
    report = lab.ensure()
    assert report["action"] == "nothing", report
    assert "not by this fleet" in report["reason"], "somebody had a reason, and no pass works against it"
    lab.submit_one("main", "--nodes", "2", "--idle-exit", "15s")
    lab.wait_done(60.0)
    lab.check_work(names)
    assert Counter(lab.attempts(name)[-1]["outcome"] for name in names) == {"succeeded": 4}
    assert lab.check_single_submissions() == 2


def test_another_node_takes_over_from_a_dead_one_by_the_word_of_the_scheduler(lab, cluster, policy):
    names = lab.enqueue([f"t{n}" for n in range(4)], 300, save=True)
    first = lab.submit_one("one", "--nodes", "2", "--idle-exit", "15s")
    doomed = {run.node for run in lab.wait_ran(4)}
    assert len(doomed) == 2
    other = lab.submit_one("two", "--nodes", "1", "--idle-exit", "60s")
    cluster.wait_job(other, "RUNNING")
    cluster.kill_node(min(doomed))
    lab.be_quick(names)
    lab.wait_done(60.0 + policy.slurmd_timeout_s)
    assert cluster.job_state(first) == "NODE_FAIL"
    runs = lab.check_work(names)
    (there,) = {run.node for run in runs if run.end_utc is not None}
    assert there not in doomed
    # The scheduler ends what is left of the job on its other node, and that worker gives its tasks back itself.
    taken = Counter(last_words(lab, name) for name in names)
    assert taken == {("lost", "node_gone"): 2, ("lost", "preempted"): 2}


def test_a_job_that_is_requeued_after_a_power_cut_takes_its_own_work_up_again(cluster, policy):
    lab = FleetLab(cluster, requeue=True)
    names = lab.enqueue([f"t{n}" for n in range(4)], 300, save=True)
    job = lab.submit_one("main", "--nodes", "2", "--idle-exit", "45s")
    dead = min(run.node for run in lab.wait_ran(4))
    cluster.kill_node(dead)
    lab.be_quick(names)
    lab.wait_done(90.0 + policy.slurmd_timeout_s + 2 * policy.requeue_delay_s)
    assert lab.check_single_submissions() == 1
    assert cluster.job(job)["Restarts"] == "1"
    lab.check_work(names)


def test_preempted_work_goes_on_when_its_job_comes_back(cluster, policy):
    lab = FleetLab(cluster, requeue=True)
    names = lab.enqueue([f"t{n}" for n in range(4)], 300, save=True)
    job = lab.submit_one("main", "--preemptible", "--nodes", "2", "--idle-exit", "45s")
    lab.wait_ran(4)
    width = len(cluster.node_names)
    urgent = cluster.sbatch("-p", "high", f"-N{width}", "--exclusive", script="srun sleep 3")
    cluster.wait_job(urgent, "RUNNING", "COMPLETED")
    status = lab.status()
    assert status["standing"] in ("active", "waiting"), status
    lab.be_quick(names)
    lab.wait_done(90.0 + 2 * policy.requeue_delay_s)
    assert lab.check_single_submissions() == 1
    assert int(cluster.job(job)["Restarts"]) >= 1
    lab.check_work(names)
