"""What a job's state says about a life that ran in it, and how the scheduler is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleetcraft.core.states import JobState, LossCause
from fleetcraft.schedulers.api import JobRef, JobView, Observation
from fleetcraft.spool.evidence import JobWord
from fleetcraft.spool.host import Identity
from fleetcraft.testing.clock import ManualClock
from fleetcraft.workers.jobs import FORGET_AFTER_S, JobWatcher, weigh
from tests.support.waiting import wait_for

LIFE = Identity(
    life="n1-7-aa", kind="worker", host="n1", machine_id=None, boot_id=None, pid=7, pid_namespace=None,
    start_ticks=None, nonce="aa", job_id="17", created_utc=1000.0,
    job_restarts=0,
)  # fmt: skip


def view(state: JobState, raw: str, **fields) -> JobView:
    return JobView(ref=JobRef(id="17"), state=state, raw_state=raw, **fields)


@pytest.mark.parametrize(
    ("seen", "ended", "cause"),
    (
        (view(JobState.RUNNING, "RUNNING", start_utc=900.0), False, None),
        (view(JobState.RUNNING, "RUNNING"), False, None),
        (view(JobState.RUNNING, "RUNNING", start_utc=2000.0), True, LossCause.NODE_GONE),
        (view(JobState.RUNNING, "RUNNING", start_utc=1001.0, restarts=0), False, None),
        (view(JobState.RUNNING, "RUNNING", start_utc=1001.0, restarts=1), True, LossCause.NODE_GONE),
        (view(JobState.ENDING, "COMPLETING"), False, None),
        (view(JobState.ENDING, "NODE_FAIL"), True, LossCause.NODE_GONE),
        (view(JobState.ENDING, "PREEMPTED"), True, LossCause.PREEMPTED),
        (view(JobState.PENDING, "PENDING", reason="BeginTime"), True, LossCause.NODE_GONE),
        (view(JobState.HELD, "REQUEUE_HOLD"), True, LossCause.NODE_GONE),
        (view(JobState.DONE, "COMPLETED"), True, LossCause.WORKER_GONE),
        (view(JobState.TIMEOUT, "TIMEOUT"), True, LossCause.WALLTIME),
        (view(JobState.CANCELLED, "CANCELLED by 1000"), True, LossCause.DRAINED),
        (view(JobState.LOST, "PREEMPTED"), True, LossCause.PREEMPTED),
        (view(JobState.LOST, "NODE_FAIL"), True, LossCause.NODE_GONE),
        (view(JobState.LOST, ""), None, None),
        (view(JobState.UNKNOWN, "SOMETHING_NEW"), None, None),
        (view(JobState.TIMEOUT, "TIMEOUT", stale=True), None, None),
    ),
)
def test_only_a_positive_answer_says_that_the_processes_are_gone(seen, ended, cause):
    word = weigh(seen, LIFE)
    assert word.ended is ended
    if cause is not None:
        assert word.cause is cause


def test_a_worker_in_a_later_run_of_the_job_needs_no_answer():
    own = replace(LIFE, life="n2-9-bb", job_restarts=1)
    watcher = JobWatcher(lambda refs: Observation(at_utc=0.0, jobs={}), ManualClock(), own=own, in_background=False)
    assert watcher(LIFE).ended is True
    assert watcher(replace(LIFE, job_restarts=1)).ended is None
    assert watcher(replace(LIFE, job_restarts=None)).ended is None
    assert watcher(replace(LIFE, job_id="18")).ended is None


def observer(answers):
    asked = []

    def observe(refs):
        asked.append([ref.id for ref in refs])
        jobs = {ref.id: answers[ref.id] for ref in refs if ref.id in answers}
        return Observation(at_utc=0.0, jobs=jobs)

    return observe, asked


def test_all_jobs_are_asked_about_in_one_question_and_forgotten_when_nobody_cares():
    observe, asked = observer({"17": view(JobState.TIMEOUT, "TIMEOUT")})
    clock = ManualClock()
    watcher = JobWatcher(observe, clock, every_s=1e9)
    watcher._stop.set()  # no thread: this test asks by itself
    assert watcher(LIFE).ended is None
    assert watcher(replace(LIFE, job_id="18")).ended is None
    watcher.ask()
    assert asked == [["17", "18"]]
    assert watcher(LIFE).ended is True
    assert watcher(replace(LIFE, job_id="18")).ended is None, "a job that nobody knows is no dead job"
    clock.advance(FORGET_AFTER_S)
    assert watcher.ask() is None


def test_a_life_without_a_job_is_never_asked_about():
    observe, asked = observer({})
    watcher = JobWatcher(observe, ManualClock())
    assert watcher(replace(LIFE, job_id=None)).ended is None
    assert watcher.ask() is None
    assert asked == []


def test_a_scheduler_that_hangs_does_not_hold_up_the_worker():
    import threading

    reached, go_on = threading.Event(), threading.Event()

    def observe(refs):
        reached.set()
        go_on.wait(30)
        return Observation(at_utc=0.0, jobs={"17": view(JobState.DONE, "COMPLETED")})

    watcher = JobWatcher(observe, ManualClock(), every_s=0.01)
    answers: list[JobWord] = [watcher(LIFE)]
    assert reached.wait(30)
    answers.append(watcher(LIFE))
    go_on.set()
    wait_for(lambda: watcher(LIFE).ended, "the answer arrives")
    watcher.close()
    assert [answer.ended for answer in answers] == [None, None]
