"""Damaged records, stale answers, full disks and strangers' cancels: nothing that runs is killed, nothing doubled."""

from __future__ import annotations

import errno
import json
import os

import pytest

from fleetcraft.core.errors import Refused
from fleetcraft.core.states import JobState
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.devnode import submit_hold
from fleetcraft.fleet.drain import cancel, drain
from fleetcraft.fleet.ensure import PassOptions
from fleetcraft.fleet.launch import launch
from fleetcraft.fleet.resolve import resolve
from fleetcraft.fleet.smoke import submit_smoke
from fleetcraft.schedulers.api import Observation
from fleetcraft.spool.life import DEAD, LIVE, Life, state_path
from fleetcraft.store.files import Files
from fleetcraft.testing.scheduler_memory import Fault
from tests.support.fleets import another_process, clock_of, enqueue, later, make_fleet, one_pass, scheduler_of, spec


def start(fleet, **changes):
    return launch(fleet, spec(**changes), wait=lambda _s: None).submitted[0].token


def a_life(fleet, token):
    life = Life.begin(fleet.spool, job_id=fleet.state().jobs[token].ref.id)
    life.beat({"state": "up", "running": [], "capacity": {"cpus": 8, "gpus": []}})
    return life


def stale(fleet, monkeypatch):
    """From now on `observe` repeats what it says now, as a shared answer below the poll floor does."""
    scheduler = scheduler_of(fleet)
    old = scheduler.observe([job.ref for job in scheduler.jobs.values()])
    monkeypatch.setattr(scheduler, "observe", lambda refs: old)


def started(fleet, token, at_utc=1.0):
    with open(fleet.folder.job(token).started, "w", encoding="utf-8") as target:
        json.dump({"token": token, "at_utc": at_utc}, target)


def waits_then_runs(fleet, monkeypatch):
    """A job that is known as pending from a shared answer, and has begun since."""
    scheduler = scheduler_of(fleet)
    scheduler.down_nodes = set(scheduler.node_names)
    token = start(fleet)
    stale(fleet, monkeypatch)
    scheduler.down_nodes = set()
    scheduler.advance()
    assert scheduler.jobs["1"].state is JobState.RUNNING
    return token


def spoil(fleet, number):
    path = fleet.folder.record(number)
    os.chmod(path, 0o600)
    with open(path, "r+b") as target:
        target.truncate(7)
    return another_process(fleet)


def test_a_drain_leaves_a_job_alone_that_began_after_the_shared_answer(tmp_path, monkeypatch):
    fleet = make_fleet(tmp_path)
    token = waits_then_runs(fleet, monkeypatch)
    life = a_life(fleet, token)
    report = drain(fleet)
    assert report.cancelled == []
    assert report.drained == [life.id]
    assert scheduler_of(fleet).jobs["1"].state is JobState.RUNNING
    assert not scheduler_of(fleet).jobs["1"].held


def test_a_cancel_lets_the_workers_of_such_a_job_save_first(tmp_path, monkeypatch):
    fleet = make_fleet(tmp_path)
    token = waits_then_runs(fleet, monkeypatch)
    life = a_life(fleet, token)
    told_first = []

    def wait(seconds):
        told_first.append(scheduler_of(fleet).jobs["1"].state)
        clock_of(fleet).advance(seconds)

    report = cancel(fleet, save_s=2, wait=wait)
    assert report.signalled == [token]
    assert set(told_first) == {JobState.RUNNING}
    assert report.left == [life.id]
    assert report.waited_s == 2 + fleet.policy.notice_s


@pytest.mark.parametrize("trace", ("life", "script"))
def test_a_job_that_left_a_trace_of_its_run_does_not_wait_whatever_the_scheduler_says(tmp_path, trace):
    fleet = make_fleet(tmp_path)
    scheduler = scheduler_of(fleet)
    scheduler.down_nodes = set(scheduler.node_names)
    token = start(fleet)
    if trace == "life":
        a_life(fleet, token)
    else:
        started(fleet, token)
    assert drain(fleet).cancelled == []
    assert scheduler.jobs["1"].state is JobState.PENDING


def test_a_job_that_was_taken_off_its_nodes_is_given_back(tmp_path):
    fleet = make_fleet(tmp_path)
    scheduler = scheduler_of(fleet)
    enqueue(fleet, 500)
    token = start(fleet)
    started(fleet, token, fleet.now())
    one_pass(fleet)
    later(fleet, 100)
    scheduler.down_nodes = set(scheduler.node_names)
    scheduler.requeue("1")
    one_pass(fleet)
    assert drain(fleet).cancelled == [token]


def test_a_job_that_begins_between_the_look_and_the_cancel_is_not_cancelled(tmp_path, monkeypatch):
    fleet = make_fleet(tmp_path)
    scheduler = scheduler_of(fleet)
    scheduler.down_nodes = set(scheduler.node_names)
    token = start(fleet)
    look = scheduler.mine

    def mine():
        seen = look()
        scheduler.down_nodes = set()
        scheduler.advance()
        return seen

    monkeypatch.setattr(scheduler, "mine", mine)
    report = drain(fleet)
    assert report.cancelled == []
    assert scheduler.jobs["1"].state is JobState.RUNNING
    assert not fleet.state().jobs[token].on_hold


def test_a_drain_that_gets_no_answer_cancels_nothing(tmp_path, monkeypatch):
    fleet = make_fleet(tmp_path)
    scheduler = scheduler_of(fleet)
    scheduler.down_nodes = set(scheduler.node_names)
    start(fleet)
    monkeypatch.setattr(scheduler, "mine", lambda: Observation(at_utc=0.0, jobs={}, answered=False))
    report = drain(fleet)
    assert report.cancelled == []
    assert "still waits" in report.problems[0]


def test_a_pass_gives_no_job_back_that_began_after_the_shared_answer(tmp_path, monkeypatch):
    fleet = make_fleet(tmp_path)
    token = waits_then_runs(fleet, monkeypatch)
    report = one_pass(fleet)
    assert report.cancelled == ""
    assert "may have started" in report.reason
    assert scheduler_of(fleet).jobs["1"].state is JobState.RUNNING
    assert fleet.state().jobs[token].cancel_utc is None


@pytest.mark.parametrize("number", (1, 2, 3))
def test_nothing_is_submitted_on_a_damaged_record(tmp_path, number):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 5000)
    start(fleet, max_nodes=8, lanes=1)
    fleet = spoil(fleet, number)
    for options in (PassOptions(), PassOptions(grow=False, shrink=False)):
        report = one_pass(fleet, options)
        assert report.action == "nothing"
        assert f"{number}.json" in report.reason
        assert "backup" in report.reason
    for ask in (
        lambda: start(fleet, max_nodes=8),
        lambda: submit_hold(fleet, spec()),
        lambda: submit_smoke(fleet, spec()),
    ):
        with pytest.raises(Refused, match=f"{number}.json"):
            ask()
    assert len(scheduler_of(fleet).submissions) == 1
    assert scheduler_of(fleet).jobs["1"].state is JobState.RUNNING


@pytest.mark.parametrize("numbers", ((1,), (2, 3), (1, 2, 3)))
def test_a_fleet_whose_records_are_damaged_can_be_cancelled(tmp_path, numbers):
    fleet = make_fleet(tmp_path)
    token = start(fleet)
    for number in numbers:
        fleet = spoil(fleet, number)
    report = cancel(fleet, wait=clock_of(fleet).advance)
    assert report.cancelled == [token]
    assert scheduler_of(fleet).jobs["1"].state is JobState.CANCELLED


def test_where_the_site_is_guessed_only_jobs_with_our_token_are_cancelled(tmp_path):
    fleet = make_fleet(tmp_path)
    start(fleet)
    scheduler = scheduler_of(fleet)
    scheduler.jobs["1"].request = type(scheduler.jobs["1"].request)(token="other", name="x", script="")
    report = cancel(spoil(fleet, 1), wait=clock_of(fleet).advance)
    assert report.cancelled == []
    assert scheduler.jobs["1"].state is JobState.RUNNING


class FullDisk(Files):
    def open_new(self, path, *, append=False):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def create(self, path):
        self.open_new(path)


def test_a_full_disk_keeps_no_job_from_being_cancelled(tmp_path):
    fleet = make_fleet(tmp_path)
    token = start(fleet)
    fleet.state()
    fleet.spool.files = fleet.log.files = FullDisk()
    report = cancel(fleet, wait=clock_of(fleet).advance)
    assert report.cancelled == [token]
    assert scheduler_of(fleet).jobs["1"].state is JobState.CANCELLED
    assert any("not recorded" in problem for problem in report.problems)


def test_the_time_to_save_begins_when_the_word_has_arrived(tmp_path):
    fleet = make_fleet(tmp_path)
    token = start(fleet)
    life = a_life(fleet, token)
    passed = []

    def wait(seconds):
        passed.append(seconds)
        clock_of(fleet).advance(seconds)
        if sum(passed) >= 6:  # noticed after 5 s, saved after one more
            folder = fleet.spool.layout.life(life.id)
            if os.path.exists(state_path(folder, LIVE)):
                os.rename(state_path(folder, LIVE), state_path(folder, DEAD))

    report = cancel(fleet, save_s=2, wait=wait)
    assert report.left == []
    assert report.waited_s == 6


def test_a_job_that_somebody_else_cancelled_is_not_replaced_at_once(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 3)
    token = start(fleet)
    one_pass(fleet)
    scheduler_of(fleet).end("1", JobState.CANCELLED, "CANCELLED by 1000")
    report = one_pass(fleet)
    assert fleet.state().jobs[token].cause == "cancelled by uid 1000, not by this fleet"
    assert report.action == "nothing"
    assert "cancelled by uid 1000, not by this fleet; nothing replaces it" in report.reason
    later(fleet, fleet.policy.by_hand_s + 1)
    assert one_pass(fleet).action == "submit"


def test_after_a_cancel_by_hand_a_person_submits_at_once(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 3)
    start(fleet)
    scheduler_of(fleet).end("1", JobState.CANCELLED, "CANCELLED by 1000")
    one_pass(fleet)
    later(fleet, 1)
    start(fleet)
    assert len(scheduler_of(fleet).submissions) == 2


@pytest.mark.parametrize("skew_s", (0.0, 1e6))
def test_lost_submissions_are_given_up_by_later_passes(tmp_path, skew_s, monkeypatch):
    """However many, whatever the clock of who wrote them, and though accounting stays silent."""
    fleet = make_fleet(tmp_path)
    clock_of(fleet).utc_s += skew_s
    for token in ("fcaaaaaaaaaa", "fcbbbbbbbbbb"):
        fleet.log.state_fact(kinds.INTENT, token=token, nodes=1, shape="main")
    clock_of(fleet).utc_s -= skew_s
    later(fleet, fleet.policy.withdraw_after_s + 1)
    silent = Observation(at_utc=0.0, jobs={}, answered=False, problems=("no accounting",))
    monkeypatch.setattr(scheduler_of(fleet), "find", lambda _token: silent)
    resolve(fleet, fleet.state())
    assert fleet.state().open_intents() == []


def test_an_intent_whose_record_is_damaged_is_given_up(tmp_path):
    fleet = make_fleet(tmp_path)
    scheduler_of(fleet).faults.append(Fault.LOST_BOTH)
    start(fleet)
    fleet = spoil(fleet, 2)
    later(fleet, fleet.policy.withdraw_after_s + 1)
    one_pass(fleet)
    assert fleet.state().open_intents() == []
