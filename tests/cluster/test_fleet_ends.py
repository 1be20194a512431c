"""Drains and cancels on a real scheduler, with a shared answer that is older than the start of the job."""

from __future__ import annotations

import pytest

from tests.cluster.fleet_lab import FleetLab, occupy

pytestmark = [pytest.mark.needs_slurm, pytest.mark.slow]


@pytest.fixture
def lab(cluster) -> FleetLab:
    return FleetLab(cluster, command_timeout_s=10)


def runs_but_known_as_waiting(lab, cluster, seconds=4.0):
    occupier = occupy(cluster)
    names = lab.enqueue([f"t{n}" for n in range(4)], seconds, save=True)
    job = lab.submit_one("main", "--nodes", "1", "--idle-exit", "3s")
    lab.ensure("main")  # a poll that sees it waiting, and is shared for the next 10 s
    cluster.run(["scancel", str(occupier)], user="root")
    lab.wait_ran(1)
    return names, job


def test_a_drain_leaves_a_job_alone_that_began_after_the_last_poll(lab, cluster):
    names, job = runs_but_known_as_waiting(lab, cluster)
    answer = lab.call("fleet", "drain", "main")
    assert answer.returncode == 0, (answer.stdout, answer.stderr)
    assert "asked the scheduler to end" not in answer.stdout
    cluster.wait_job(job, "COMPLETED")
    # What it ran, it ran to its end.
    assert lab.runs()
    assert all(run.end_utc is not None and not run.saved for run in lab.runs())
    assert not any(one["outcome"] == "lost" for name in names for one in lab.attempts(name))


def test_a_cancel_lets_such_a_job_save_first(lab, cluster):
    names, job = runs_but_known_as_waiting(lab, cluster, 60.0)
    answer = lab.call("fleet", "cancel", "main", "--save", "5s")
    assert answer.returncode == 0, (answer.stdout, answer.stderr)
    cluster.wait_job(job, "COMPLETED", "CANCELLED", "FAILED")
    assert lab.runs()
    assert all(run.saved for run in lab.runs())
    assert {one["cause"] for name in names for one in lab.attempts(name)} == {"checkpointed"}


def test_what_waits_is_given_back_and_a_held_job_is_not_left_behind(lab, cluster):
    occupy(cluster)
    lab.enqueue(["a"], 1)
    job = lab.submit_one("main")
    answer = lab.call("fleet", "drain", "main")
    assert answer.returncode == 0, (answer.stdout, answer.stderr)
    cluster.wait_job(job, "CANCELLED")
