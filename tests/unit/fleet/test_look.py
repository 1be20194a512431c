"""One look: what it believes of a view, what it hands over first, and what it reads out of a job's output."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fleetcraft.core.states import JobState
from fleetcraft.fleet.launch import launch
from fleetcraft.fleet.look import look
from fleetcraft.schedulers.api import Observation
from tests.support.fleets import another_process, clock_of, later, make_fleet, scheduler_of, spec

OTHER = "fcotherother"


def start(fleet, **changes):
    return launch(fleet, spec(**changes), wait=lambda _s: None).submitted[0].token


class Lying:
    """The scheduler in memory with another job under our id, as after a crash of the controller."""

    def __init__(self, inner, *, from_cache=False):
        self._inner, self._from_cache = inner, from_cache

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def observe(self, refs):
        seen = self._inner.observe(refs)
        jobs = {text: replace(view, token=OTHER, state=JobState.RUNNING) for text, view in seen.jobs.items()}
        return replace(seen, jobs=jobs, from_cache=self._from_cache)


def test_another_job_under_our_id_is_no_view_of_ours(tmp_path):
    fleet = make_fleet(tmp_path)
    token = start(fleet)
    fleet.scheduler = Lying(fleet.scheduler)
    seen = look(fleet, fleet.state())
    job = fleet.state().jobs[token]
    assert (job.state, job.raw_state, dict(seen.views)) == (JobState.UNKNOWN, "ABSENT", {})
    clock_of(fleet).advance(fleet.policy.lost_after_s + 1.0)
    look(fleet, fleet.state())
    assert fleet.state().jobs[token].state is JobState.LOST


def test_an_answer_for_others_proves_no_absence(tmp_path):
    fleet = make_fleet(tmp_path)
    token = start(fleet)
    fleet.scheduler = Lying(fleet.scheduler, from_cache=True)
    assert look(fleet, fleet.state()).changed == []
    assert fleet.state().jobs[token].state is None


class Told:
    """Keeps what it was told, and answers nothing."""

    kind = "told"

    def remember(self, views=(), exit_records=None, may_requeue=None):
        self.views, self.exits, self.may_requeue = list(views), dict(exit_records or {}), dict(may_requeue or {})

    def observe(self, refs):
        return Observation(at_utc=0.0, jobs={}, answered=False)


@pytest.mark.parametrize("requeue", (True, False))
def test_a_later_process_is_told_whether_jobs_may_be_requeued(tmp_path, requeue):
    fleet = make_fleet(tmp_path)
    start(fleet, site={"scheduler": {"requeue": requeue}})
    later(fleet, 1.0)
    other = another_process(fleet)
    told: Any = Told()
    other.scheduler = told
    look(other, other.state())
    assert told.may_requeue == {"1": requeue}


def test_of_two_jobs_with_one_id_only_the_newer_one_is_handed_over(tmp_path):
    fleet = make_fleet(tmp_path)
    older = start(fleet, lanes=0)
    look(fleet, fleet.state())
    scheduler_of(fleet).jobs.clear()
    scheduler_of(fleet).keep_s = 0.0
    newer = start(fleet, lanes=0)
    state = fleet.state()
    # The controller began to count anew.
    state.jobs[newer].ref = state.jobs[older].ref
    state.jobs[newer].state = state.jobs[older].state = JobState.RUNNING
    with open(fleet.folder.job(older).ended, "w", encoding="utf-8") as target:
        json.dump({"token": older, "code": 0, "at_utc": 1.0}, target)
    told: Any = Told()
    fleet.scheduler = told
    look(fleet, state)
    assert [view.token for view in told.views] == [newer]
    assert told.exits == {}


@pytest.mark.parametrize(
    ("said", "cause"),
    (
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0.\n", "out_of_memory"),
        ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n", "timeout"),
        ("all is well\n", ""),
        (None, ""),
    ),
)
def test_a_plain_failure_is_explained_by_the_end_of_its_output(tmp_path, said, cause):
    fleet = make_fleet(tmp_path)
    token = start(fleet)
    if said is not None:
        with open(fleet.folder.job(token).output, "w", encoding="utf-8") as target:
            target.write("out of memory, long ago\n" + "x" * 9000 + "\n" + said)
    scheduler_of(fleet).end("1", JobState.FAILED, "FAILED", exit_code=None)
    look(fleet, fleet.state())
    job = fleet.state().jobs[token]
    assert (job.state, job.cause) == (JobState.FAILED, cause)


def test_the_output_is_told_beside_the_exit_record(tmp_path):
    fleet = make_fleet(tmp_path)
    token = start(fleet)
    with open(fleet.folder.job(token).output, "w", encoding="utf-8") as target:
        target.write("Out of memory: Killed process 7\n")
    with open(fleet.folder.job(token).ended, "w", encoding="utf-8") as target:
        json.dump({"token": token, "code": 137, "at_utc": 300.0}, target)
    scheduler_of(fleet).end("1", JobState.FAILED, "FAILED")
    look(fleet, fleet.state())
    assert fleet.state().jobs[token].cause == "out_of_memory; its script ended with 137"
