"""The scheduler hangs, stops, forgets and loses replies: nothing is submitted twice, and no verdict is wrong."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fleet_lab import FleetLab, occupy

pytestmark = [pytest.mark.needs_slurm, pytest.mark.slow]
_DRIVER = Path(__file__).with_name("fleet_driver.py")


@pytest.fixture
def lab(cluster) -> FleetLab:
    return FleetLab(cluster, command_timeout_s=10)


def start_driver(lab: FleetLab, what: str, **given: Any) -> subprocess.Popen[str]:
    words = [lab.python.path, "-", what, json.dumps(given)]
    with _DRIVER.open() as source:
        return lab.cluster.popen(words, cwd=lab.folder, env=lab.env(), stdin=source)


def answer_of(driver: subprocess.Popen[str], timeout_s: float = 120.0) -> dict[str, Any]:
    out, err = driver.communicate(timeout=timeout_s)
    assert driver.returncode == 0, err
    answer: dict[str, Any] = json.loads(out)
    return answer


@pytest.mark.timeout(300)
def test_a_hundred_faults_during_submission_make_no_job_twice(lab, cluster):
    occupy(cluster)  # so that nothing starts
    lab.enqueue(["a"], 1)
    told = answer_of(start_driver(lab, "storm", name="main", seed=7, faults=100), timeout_s=240.0)
    assert told["open"] == [], told
    assert len(told["faults"]) == 5, told
    jobs = lab.check_single_submissions()
    # Every job that the scheduler knows stands in the records, and the other way round.
    records = lab.records()
    stands = {record["token"] for record in records if record["kind"] == "submitted"}
    given_up = {record["token"] for record in records if record["kind"] == "rejected"}
    assert set(lab.jobs_by_token()) & set(lab.tokens()) == stands
    assert stands | given_up == set(lab.tokens())
    assert 0 < jobs == len(stands) < 100


def test_a_submission_to_a_controller_that_hangs_is_found_when_it_answers_again(lab, cluster):
    occupy(cluster)
    lab.enqueue(["a"], 1)
    driver = start_driver(lab, "hung", name="main", folder=str(lab.folder))
    cluster.wait_for((lab.folder / "at-sbatch").exists, "it is about to submit")
    cluster.pause_controller()
    (lab.folder / "go").touch()
    told = answer_of(driver)
    assert told["job"] is None
    assert "looked up" in told["words"], told
    # While it hangs, nothing may be concluded and nothing submitted.
    refused = lab.call("fleet", "ensure", "main")
    assert refused.returncode == 75, (refused.stdout, refused.stderr)
    assert told["token"] in refused.stdout
    cluster.resume_controller()
    cluster.wait_for(cluster.controller_answers, "the controller answers")

    def found() -> bool:
        lab.call("fleet", "ensure", "main")
        return any(record["kind"] == "submitted" for record in lab.records())

    cluster.wait_for(found, "the job is found", seen=lab.records)
    assert lab.tokens() == [told["token"]]
    assert lab.check_single_submissions() == 1


def states(lab: FleetLab) -> list[tuple[str, str]]:
    return [(record["token"], record["state"]) for record in lab.records() if record["kind"] == "seen"]


@pytest.mark.patient
def test_while_the_controller_hangs_work_goes_on_and_nothing_is_concluded(lab, cluster):
    names = lab.enqueue([f"t{n}" for n in range(8)], 1.5)
    # Long, so that the job still runs when it is looked at, however slow this machine is.
    job = lab.submit_one("main", "--nodes", "2", "--idle-exit", "30s")
    lab.wait_ran(4)
    lab.status()
    before = states(lab)
    assert [state for _, state in before] == ["running"]
    cluster.pause_controller()
    for words in (("ensure", "main"), ("cancel", "main", "--save", "0s", "--finish", "30s")):
        answer = lab.call("fleet", *words)
        assert answer.returncode == 75, (words, answer.stdout, answer.stderr)
        said = answer.stdout + answer.stderr
        assert "did not answer" in said or "timed out" in said, (words, said)
    assert states(lab) == before
    assert len(lab.tokens()) == 1
    status = lab.status(code=75)
    assert (status["answered"], status["jobs"][0]["stale"]) == (False, True), status
    cluster.resume_controller()
    cluster.wait_job(job, "COMPLETED", "CANCELLED")
    cluster.wait_for(lambda: lab.status()["jobs"][0]["state"] in ("done", "cancelled"), "the end is seen")
    # What the cancelled fleet left undone is done by the next one.
    if lab.counts()["succeeded"] < len(names):
        lab.submit("main", "--nodes", "2", "--idle-exit", "3s")
    lab.wait_done()
    lab.check_work(names)
    assert lab.check_single_submissions() == len(lab.tokens())


@pytest.mark.patient
def test_a_controller_that_is_started_anew_changes_nothing(lab, cluster):
    names = lab.enqueue([f"t{n}" for n in range(6)], 2.0)
    job = lab.submit_one("main", "--nodes", "2", "--idle-exit", "3s")
    lab.wait_ran(4)
    cluster.stop_controller()
    answer = lab.call("fleet", "ensure", "main")
    assert answer.returncode == 75, (answer.stdout, answer.stderr)
    assert lab.status(code=75)["answered"] is False
    cluster.start_controller()
    lab.wait_done()
    cluster.wait_job(job, "COMPLETED")
    cluster.wait_for(lambda: lab.status()["standing"] == "done", "the fleet is done", seen=lab.status)
    lab.check_work(names)
    assert lab.check_single_submissions() == 1


def test_without_accounting_for_a_while_a_fleet_lives_and_ends(lab, cluster, policy):
    names = lab.enqueue([f"t{n}" for n in range(6)], 0.5)
    job = lab.submit_one("main", "--nodes", "2", "--idle-exit", "2s")
    lab.wait_ran(2)
    cluster.stop_database()
    lab.wait_done()
    cluster.wait_for(lambda: lab.status()["jobs"][0]["state"] == "done", "the end is seen", seen=lab.status)
    # Whether a new job may start is not known without the accounts, so none is submitted.
    more = lab.enqueue(["later"], 0.1)
    answer = lab.call("fleet", "ensure", "main")
    assert answer.returncode in (0, 4, 75), (answer.stdout, answer.stderr)
    cluster.start_database()
    if len(lab.tokens()) == 1:

        def grown() -> bool:
            return bool(lab.call("fleet", "ensure", "main").returncode == 0 and len(lab.tokens()) == 2)

        cluster.wait_for(grown, "the next pass submits", seen=lab.records)
    lab.wait_done()
    lab.check_work([*names, *more])
    cluster.wait_job(job, "COMPLETED")
    assert lab.check_single_submissions() == 2
