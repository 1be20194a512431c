"""Drains, cancels and shells without a node: what is asked of the scheduler and of the spool."""

from __future__ import annotations

import json
import os

import pytest

from fleetcraft.core.errors import UsageError
from fleetcraft.core.states import JobState
from fleetcraft.fleet.drain import cancel, cancel_step, drain, resume
from fleetcraft.fleet.launch import launch
from fleetcraft.fleet.names import check_fleet_name, is_token, make_token
from fleetcraft.fleet.shell import shell_target
from fleetcraft.fleet.submit import LATE
from fleetcraft.spool.life import Life
from fleetcraft.spool.requests import RequestLog
from fleetcraft.store.files import Files
from tests.support.fleets import clock_of, enqueue, later, make_fleet, one_pass, scheduler_of, spec


def start(fleet, **changes):
    return launch(fleet, spec(**changes), wait=lambda _s: None).submitted[0].token


def a_life(fleet, token, **running):
    """A worker of a job, alive as far as its state file says."""
    job = fleet.state().jobs[token]
    life = Life.begin(fleet.spool, job_id=job.ref.id)
    life.beat({"state": "up", "running": [running] if running else [], "capacity": {"cpus": 8, "gpus": []}})
    return life


def test_a_drain_gives_waiting_jobs_back_and_asks_the_workers_once(tmp_path):
    fleet = make_fleet(tmp_path, nodes=2)
    running = start(fleet, max_nodes=4)
    waiting = start(fleet, max_nodes=4)
    life = a_life(fleet, running)
    report = drain(fleet, "tonight")
    assert report.cancelled == [waiting]
    assert report.drained == [life.id]
    assert drain(fleet).drained == []
    requests = RequestLog(fleet.spool)
    requests.refresh(force=True)
    assert requests.drained == {life.id}
    enqueue(fleet, 5000)
    assert one_pass(fleet).reason == "the fleet drains: tonight"
    assert fleet.state().jobs[running].is_running
    resume(fleet)
    assert one_pass(fleet).action == "submit"


def test_a_worker_that_appears_after_the_drain_is_asked_by_the_next_pass(tmp_path):
    fleet = make_fleet(tmp_path)
    token = start(fleet)
    drain(fleet)
    life = a_life(fleet, token)
    one_pass(fleet)
    requests = RequestLog(fleet.spool)
    requests.refresh(force=True)
    assert requests.drained == {life.id}


def test_a_cancel_waits_for_the_workers_and_no_longer_than_it_may(tmp_path):
    fleet = make_fleet(tmp_path)
    token = start(fleet)
    life = a_life(fleet, token)
    report = cancel(fleet, finish_s=5, save_s=10, wait=clock_of(fleet).advance)
    assert report.drained == [life.id]
    assert report.signalled == [token]
    assert report.left == [life.id]
    assert report.waited_s == 15 + fleet.policy.notice_s
    assert os.path.exists(fleet.folder.job(token).stop)
    assert scheduler_of(fleet).jobs["1"].state is JobState.CANCELLED
    assert fleet.state().drained


def test_a_cancel_of_one_job_leaves_the_others(tmp_path):
    fleet = make_fleet(tmp_path)
    one, other = start(fleet, max_nodes=9), start(fleet, max_nodes=9)
    assert cancel(fleet, ["1"], wait=clock_of(fleet).advance).cancelled == [one]
    assert scheduler_of(fleet).jobs["2"].state is JobState.RUNNING
    assert not fleet.state().drained
    with pytest.raises(UsageError, match="no job 77"):
        cancel(fleet, ["77"])
    assert fleet.state().jobs[other].cancel_utc is None


def test_a_step_is_told_or_signalled_and_the_job_stays(tmp_path):
    fleet = make_fleet(tmp_path)
    token = start(fleet)
    assert cancel_step(fleet, [token]).signalled == [token]
    assert scheduler_of(fleet).jobs["1"].signals == []
    cancel_step(fleet, [token], signal="TERM")
    assert scheduler_of(fleet).jobs["1"].signals == ["TERM"]
    assert scheduler_of(fleet).jobs["1"].state is JobState.RUNNING


def test_a_shell_opens_where_the_task_runs(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 3)
    token = start(fleet)
    one_pass(fleet)
    a_life(fleet, token, task="1.1", k=2, a=1, slot=0, pid=1, at=0.0)
    found = shell_target([fleet], "1.2", shell="zsh")
    assert found.argv == ("env", "JOB=1", "zsh")
    assert (found.job, found.task) == ("1", "1.2")
    assert shell_target([fleet], token).node == "n1"
    with pytest.raises(UsageError, match="does not run now"):
        shell_target([fleet], "1.0")
    with pytest.raises(UsageError, match="no running job and no task"):
        shell_target([fleet], "nothing")


def test_a_slurm_shell_is_a_step_beside_the_workers(tmp_path):
    fleet = make_fleet(tmp_path)
    token = start(fleet)
    one_pass(fleet)
    scheduler_of(fleet).kind = "slurm"
    argv = shell_target([fleet], token, node="n2").argv
    assert argv[0] == "srun"
    assert "--overlap" in argv
    assert "--jobid=1" in argv
    assert "--nodelist=n2" in argv
    assert argv[-2:] == ("--pty", "bash") or argv[-1] == "bash"


def test_a_process_that_was_paused_before_it_could_ask_does_not_ask(tmp_path):
    fleet = make_fleet(tmp_path)

    class Slow(Files):
        def make_folder(self, path):
            clock_of(fleet).advance(100)
            super().make_folder(path)

    fleet.spool.files = Slow()
    submission = launch(fleet, spec(), wait=lambda _s: None).submitted[0].submission
    assert submission is not None
    assert submission.code == LATE
    assert scheduler_of(fleet).submissions == []
    assert not fleet.state().live()


def test_a_job_that_is_requeued_keeps_its_token_and_its_cost(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 3)
    token = start(fleet)
    one_pass(fleet)
    later(fleet, 100)
    scheduler_of(fleet).requeue("1")
    one_pass(fleet)
    assert fleet.state().jobs[token].is_waiting
    later(fleet, 50)
    one_pass(fleet)
    job = fleet.state().jobs[token]
    assert job.is_running
    assert len(job.runs) == 2
    later(fleet, 10)
    assert job.node_seconds(fleet.now()) == 2 * 100 + 2 * 10


def test_an_exit_record_of_an_earlier_run_says_nothing_about_this_one(tmp_path):
    fleet = make_fleet(tmp_path)
    token = start(fleet)
    folder = fleet.folder.job(token)
    for path, at in ((folder.ended, 100.0), (folder.started, 200.0)):
        with open(path, "w", encoding="utf-8") as target:
            json.dump({"token": token, "code": 1, "at_utc": at}, target)
    scheduler_of(fleet).end("1", JobState.DONE, "COMPLETED")
    one_pass(fleet)
    assert fleet.state().jobs[token].state is JobState.DONE


def test_what_the_script_wrote_beats_the_exit_code_of_accounting(tmp_path):
    fleet = make_fleet(tmp_path)
    token = start(fleet)
    with open(fleet.folder.job(token).ended, "w", encoding="utf-8") as target:
        json.dump({"token": token, "code": 1, "at_utc": 300.0}, target)
    scheduler_of(fleet).end("1", JobState.DONE, "COMPLETED")
    one_pass(fleet)
    job = fleet.state().jobs[token]
    assert (job.state, job.cause) == (JobState.FAILED, "its script ended with 1")


@pytest.mark.parametrize("name", ("", "A", "-a", "a" * 32, "a/b", "a.b"))
def test_a_bad_name_is_refused(name):
    with pytest.raises(UsageError):
        check_fleet_name(name)


def test_tokens_fit_their_grammar():
    assert all(is_token(make_token()) for _ in range(50))
