"""One job of a fleet as a person sees it."""

from __future__ import annotations

from typing import Any

import pytest

from fleetcraft.core.states import JobState
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.look import Look
from fleetcraft.fleet.records import Record
from fleetcraft.fleet.state import fold
from fleetcraft.readmodel.fleet_jobs import nodes_by_state, outcomes_of, view_job
from fleetcraft.readmodel.lives import read_workers
from fleetcraft.schedulers.api import JobRef, JobView
from fleetcraft.spool.life import Life
from fleetcraft.spool.reading import SpoolFold
from tests.unit.readmodel.building import make_spool

TOKEN = "fcaaaaaaaaaa"
NOW = 10_000.0


def records(*more: tuple[str, dict[str, Any]], at: float = 9_000.0) -> list[Record]:
    body = {"token": TOKEN, "nodes": 2, "gpus_per_node": 4, "time_limit_s": 3600.0, "why": "asked for"}
    return [
        Record(number=number, kind=kind, at_utc=at, body={"token": TOKEN} | content)
        for number, (kind, content) in enumerate([(kinds.INTENT, body), *more], 1)
    ]


SUBMITTED = (kinds.SUBMITTED, {"ref": {"id": "7"}})
RUNNING = (kinds.SEEN, {"ref": {"id": "7"}, "state": "running", "start_utc": 9_100.0, "nodes": ["n1", "n2"]})


def view(log: list[Record], look: Look | None = None, workers: Any = (), outcomes: Any = None, now: float = NOW):
    return view_job("f", fold(log).jobs[TOKEN], look, workers, outcomes or {}, now)


def looked(state: JobState = JobState.RUNNING, **changes: Any) -> Look:
    seen = JobView(ref=JobRef(id="7"), state=state, raw_state=state.value.upper(), **changes)
    return Look(views={TOKEN: seen}, at_utc=NOW - 2.0)


@pytest.mark.parametrize(
    ("log", "state", "about"),
    (
        (records(), "open", "the scheduler's answer was lost; the next pass looks for it"),
        (records((kinds.REJECTED, {"code": "qos", "text": "no such QOS"})), "rejected", "qos: no such QOS"),
        (records(SUBMITTED), "submitted", ""),
        (records(SUBMITTED, RUNNING), "running", ""),
        (records(SUBMITTED, RUNNING, (kinds.CANCEL, {"tokens": [TOKEN]})), "running", "its end was asked for"),
        (
            records((kinds.REJECTED, {"code": "withdrawn"})),
            "rejected",
            "given up: it was never seen after its answer was lost",
        ),
    ),
)
def test_every_phase_has_its_word_and_its_sentence(log, state, about):
    shown = view(log)
    assert (shown.state, shown.about) == (state, about)


def test_a_cancelled_job_does_not_tell_what_it_waited_for():
    cancelled = (kinds.SEEN, {"ref": {"id": "7"}, "state": "cancelled", "end_utc": 9_200.0})
    log = records(SUBMITTED, (kinds.CANCEL, {"tokens": [TOKEN]}), cancelled)
    shown = view(log, looked(JobState.CANCELLED, reason="Dependency", reason_text="It waits for another job."))
    assert (shown.state, shown.about) == ("cancelled", "its end was asked for")


def test_a_waiting_job_tells_the_schedulers_reason_in_a_sentence_and_its_expected_start():
    shown = view(
        records(SUBMITTED),
        looked(JobState.PENDING, reason="Priority", reason_text="It waits for its turn.", start_utc=NOW + 60.0),
    )
    assert shown.about == "It waits for its turn."
    assert shown.expected_start_utc == NOW + 60.0


def test_the_age_is_that_of_the_answer_or_of_the_last_record():
    log = records(SUBMITTED, RUNNING)
    assert view(log, looked()).age_s == 2.0
    assert view(log).age_s == 1000.0
    silent = view(log, Look(answered=False))
    assert (silent.age_s, silent.stale) == (1000.0, True)
    remembered = view(log, looked(stale=True))
    assert (remembered.age_s, remembered.stale) == (1000.0, True)


def test_gpu_hours_are_nodes_times_gpus_times_the_time_on_nodes():
    assert view(records(SUBMITTED, RUNNING)).gpu_hours == pytest.approx(8 * 900 / 3600)


def test_a_running_job_ends_at_its_time_limit_unless_the_scheduler_knows_better():
    assert view(records(SUBMITTED, RUNNING)).end_utc == 9_100.0 + 3600.0
    assert view(records(SUBMITTED, RUNNING), looked(end_utc=11_000.0)).end_utc == 11_000.0


def test_what_succeeded_counts_as_done_and_what_was_lost_is_told_apart(tmp_path):
    spool = make_spool(tmp_path)
    life = Life.begin(spool, job_id="7")
    life.beat({"state": "up", "counts": {"succeeded": 5, "lost": 3, "failed": 0}})
    reader = SpoolFold(spool)
    reader.refresh()
    shown = view(records(SUBMITTED, RUNNING), None, read_workers(reader, spool.clock.utc()), outcomes_of(reader))
    assert (shown.workers, shown.tasks, shown.attempts) == (1, 5, {"succeeded": 5, "lost": 3})
    assert shown.tasks_age_s is not None
    assert 0.0 <= shown.tasks_age_s < 60.0
    assert view(records(SUBMITTED, RUNNING)).tasks is None
    life.close()


def test_the_idle_tail_is_shown_once_it_was_measured():
    ended = (kinds.SEEN, {"ref": {"id": "7"}, "state": "done", "start_utc": 9_100.0, "end_utc": 9_200.0})
    shown = view(records(SUBMITTED, RUNNING, ended, (kinds.IDLE, {"since_last_task_s": 4.0, "gpu_hours": 0.01})))
    assert (shown.state, shown.idle_tail_s, shown.idle_gpu_hours, shown.is_live) == ("done", 4.0, 0.01, False)


def test_nodes_are_assigned_waited_for_or_unknown():
    assert nodes_by_state(list(fold(records()).jobs.values())) == {"assigned": 0, "pending": 2, "unknown": 0}
    assert nodes_by_state(list(fold(records(SUBMITTED, RUNNING)).jobs.values()))["assigned"] == 2
    odd = (kinds.SEEN, {"ref": {"id": "7"}, "state": "unknown"})
    assert nodes_by_state(list(fold(records(SUBMITTED, odd)).jobs.values()))["unknown"] == 2
