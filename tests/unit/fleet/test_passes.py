"""One pass over a fleet: what it looks up, asks for, gives back, and leaves alone, each with its reason."""

from __future__ import annotations

import json
import os

import pytest

from fleetcraft.core.decision import Decision
from fleetcraft.core.errors import Refused, UsageError
from fleetcraft.core.resources import Request
from fleetcraft.core.states import JobState
from fleetcraft.fleet.backlog import read_backlog
from fleetcraft.fleet.ensure import PassOptions, ensure_loop
from fleetcraft.fleet.handle import open_fleet
from fleetcraft.fleet.launch import launch, preview
from fleetcraft.fleet.plan import Node
from fleetcraft.fleet.records import SEEN
from fleetcraft.fleet.state import Phase
from fleetcraft.spool.host import host_name
from fleetcraft.spool.life import Life
from fleetcraft.testing.scheduler_memory import Fault
from tests.support.fleets import another_process, enqueue, later, make_fleet, one_pass, scheduler_of, spec, work_off


def start(fleet, **changes):
    return launch(fleet, spec(**changes), wait=lambda _s: None)


def end_all(fleet, state=JobState.DONE, raw="COMPLETED", exit_code=0):
    for job in list(scheduler_of(fleet).jobs.values()):
        if not job.state.ended:
            scheduler_of(fleet).end(job.ref.id, state, raw, exit_code=exit_code)


def test_submitting_writes_the_intent_first_and_then_what_became_of_it(tmp_path):
    fleet = make_fleet(tmp_path)
    launched = start(fleet)
    kinds = [record.kind for record in fleet.log.records]
    assert kinds == ["spec", "intent", "submitted"]
    job = next(iter(fleet.state().jobs.values()))
    assert job.token == launched.submitted[0].token
    assert str(job.ref) == "1"
    assert os.path.exists(fleet.folder.job(job.token).root + "/script.sh")
    assert start(fleet, lanes=1).submitted[0].ref is not None


def test_a_dry_run_shows_everything_and_leaves_nothing(tmp_path):
    class No:
        name = "no"

        def check(self, proposal):
            return Decision.refuse("not today", gpu_hours=proposal.gpu_hours)

    fleet = make_fleet(tmp_path, guards=[No()])
    shown = preview(fleet, spec(site={"partition": {"su_rate": 2.0}})).as_json()
    assert shown["gpu_hours"] == 8.0
    assert shown["node_hours"] == 2.0
    assert shown["units"] == 4.0
    assert shown["argv"][0] == "memory-submit"
    assert shown["script"].startswith("#!/bin/bash")
    assert shown["start"]["possible"] is True
    assert shown["decisions"] == [
        {"guard": "no", "allowed": False, "reason": "not today", "evidence": {"gpu_hours": 8.0}}
    ]
    assert os.listdir(fleet.folder.records) == []
    refused = start(fleet)
    assert refused.refused
    assert refused.submitted[0].words == "refused: no: not today"
    assert scheduler_of(fleet).submissions == []
    assert fleet.state().notes[-1].body["what"] == "refused"


def test_a_guard_that_breaks_closes_the_gate(tmp_path):
    class Broken:
        name = "broken"

        def check(self, proposal):
            raise RuntimeError("no balance")

    fleet = make_fleet(tmp_path, guards=[Broken()])
    assert "the guard itself failed: RuntimeError: no balance" in start(fleet).submitted[0].words


def test_nothing_happens_when_live_jobs_can_take_the_backlog_and_nothing_is_written(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 3)
    start(fleet)
    one_pass(fleet)
    before = fleet.state().last
    report = one_pass(fleet)
    assert report.action == "nothing"
    assert "2 live nodes can take the backlog of 3 tasks" in report.reason
    assert fleet.state().last == before


def test_a_backlog_grows_the_fleet_by_one_job_a_pass_up_to_its_most(tmp_path):
    fleet = make_fleet(tmp_path, nodes=64)
    enqueue(fleet, 5000)
    start(fleet, nodes=2, max_nodes=6)
    assert [one_pass(fleet).action for _ in range(3)] == ["submit", "submit", "nothing"]
    report = one_pass(fleet)
    assert "6 nodes are asked for or running, and 6 is the most" in report.reason
    assert report.plan.assumed == ("c1",)
    assert [job.nodes for job in fleet.state().jobs.values()] == [2, 2, 2]


def test_the_cap_counts_what_is_spent_and_what_is_reserved(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 5000)
    start(fleet, nodes=1, max_nodes=8, gpu_hour_cap=9.0)
    assert one_pass(fleet).action == "submit"
    report = one_pass(fleet)
    assert report.action == "nothing"
    assert "the GPU-hour cap of 9 leaves 1.00" in report.reason
    with pytest.raises(Refused, match="GPU-hour cap"):
        start(fleet, nodes=1, max_nodes=8, gpu_hour_cap=9.0)


def test_a_waiting_job_that_nobody_needs_is_given_back_and_a_running_one_never(tmp_path):
    fleet = make_fleet(tmp_path, nodes=1)
    enqueue(fleet, 200)
    start(fleet, nodes=1, max_nodes=2)
    assert one_pass(fleet).action == "submit"
    work_off(fleet.spool, 200)
    report = one_pass(fleet)
    assert report.action == "cancel"
    later(fleet, 60)
    assert one_pass(fleet).action == "nothing"
    assert [job.state for job in fleet.state().jobs.values()] == [JobState.RUNNING, JobState.CANCELLED]


def test_a_job_that_was_held_for_a_cancel_without_an_answer_is_released_later(tmp_path, monkeypatch):
    fleet = make_fleet(tmp_path, nodes=1)
    enqueue(fleet, 200)
    start(fleet, nodes=1, max_nodes=2)
    one_pass(fleet)
    work_off(fleet.spool, 200)
    scheduler = scheduler_of(fleet)
    real = scheduler.mine

    def deaf_from_now():
        scheduler.deaf = True
        return real()

    monkeypatch.setattr(scheduler, "mine", deaf_from_now)
    assert one_pass(fleet).action == "nothing"
    assert [job.held for job in scheduler.jobs.values()] == [False, True]
    monkeypatch.undo()
    scheduler.deaf = False
    enqueue(fleet, 200)
    one_pass(fleet)
    assert not any(job.held for job in scheduler.jobs.values())


def test_a_lost_reply_is_found_by_its_token_and_nothing_is_submitted_meanwhile(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 10)
    scheduler_of(fleet).faults.append(Fault.REPLY_LOST)
    scheduler_of(fleet).lag_s = 100.0
    assert "the answer was lost" in start(fleet).submitted[0].words
    report = one_pass(another_process(fleet))
    assert report.action == "nothing"
    assert "no answer yet" in report.reason
    assert next(iter(report.waiting.values())).startswith("not found; it may still appear")
    later(fleet, 120)
    one_pass(fleet)
    (job,) = fleet.state().jobs.values()
    assert job.phase is Phase.SUBMITTED
    assert len(scheduler_of(fleet).submissions) == 1


def test_a_submission_that_never_arrived_is_given_up_and_made_again(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 10)
    scheduler_of(fleet).faults.append(Fault.LOST_BOTH)
    start(fleet)
    later(fleet, 200)
    report = one_pass(fleet)
    first, second = fleet.state().jobs.values()
    assert first.withdrawn
    assert second.phase is Phase.SUBMITTED
    assert report.action == "submit"
    assert os.path.exists(fleet.folder.job(first.token).withdrawn)


def test_a_submission_that_comes_after_it_was_given_up_is_cancelled(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 10)
    scheduler_of(fleet).faults.append(Fault.DELAYED)
    scheduler_of(fleet).delay_s = 300.0
    start(fleet)
    later(fleet, 200)
    one_pass(fleet)
    later(fleet, 200)
    one_pass(fleet)
    first, second = fleet.state().jobs.values()
    (late,) = scheduler_of(fleet).with_token(first.token)
    assert late.state is JobState.CANCELLED
    assert second.is_running
    assert fleet.state().live() == [second]


def test_an_unanswered_question_changes_nothing(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 10)
    start(fleet)
    one_pass(fleet)
    before = fleet.state().last
    scheduler_of(fleet).deaf = True
    later(fleet, 10_000)
    report = one_pass(fleet)
    assert report.problems == ["no contact"]
    assert not [record for record in fleet.log.records if record.number > before and record.kind == SEEN]


def test_absence_is_no_end_but_an_exit_record_or_long_absence_is(tmp_path):
    fleet = make_fleet(tmp_path)
    start(fleet, nodes=1, max_nodes=2)
    start(fleet, nodes=1, max_nodes=2)
    one, other = fleet.state().jobs.values()
    one_pass(fleet, PassOptions(grow=False))
    scheduler_of(fleet).keep_s = 0.0
    end_all(fleet)
    later(fleet, 10)
    with open(fleet.folder.job(one.token).ended, "w", encoding="utf-8") as target:
        json.dump({"token": one.token, "code": 0, "started_utc": fleet.now() - 10, "at_utc": fleet.now()}, target)
    one_pass(fleet, PassOptions(grow=False))
    one, other = fleet.state().jobs.values()
    assert (one.state, other.state) == (JobState.DONE, JobState.UNKNOWN)
    assert other.is_live
    later(fleet, 299)
    one_pass(fleet, PassOptions(grow=False))
    assert list(fleet.state().jobs.values())[1].is_live
    later(fleet, 2)
    one_pass(fleet, PassOptions(grow=False))
    other = list(fleet.state().jobs.values())[1]
    assert other.state is JobState.LOST
    assert "no source knew it" in other.cause


def test_jobs_that_fail_at_their_start_stop_the_supply_until_a_person_submits(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 10)
    start(fleet, nodes=1)
    report = None
    for _ in range(5):
        later(fleet, 5)
        end_all(fleet, JobState.FAILED, "FAILED", 1)
        report = one_pass(fleet)
    assert report is not None
    assert len(fleet.state().jobs) == 3
    assert "the last 3 jobs failed at their start" in report.reason
    assert report.standing.word == "failed"
    start(fleet, nodes=1, idle_exit_s=5.0)
    assert len(fleet.state().live()) == 1


def test_a_refused_request_is_not_asked_again_and_a_full_queue_is_later(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 10)
    scheduler_of(fleet).faults.append(Fault.REJECTED)
    assert start(fleet).refused
    report = one_pass(fleet)
    assert "the same request meets the same answer" in report.reason
    scheduler_of(fleet).faults.append(Fault.FULL)
    start(fleet, idle_exit_s=7.0)
    assert "it is asked again in" in one_pass(fleet).reason
    later(fleet, 60)
    assert one_pass(fleet).action == "submit"


def test_lanes_get_one_successor_each_of_exactly_their_shape(tmp_path):
    fleet = make_fleet(tmp_path, nodes=6)
    enqueue(fleet, 5000)
    assert len(start(fleet, nodes=3, lanes=2).submitted) == 2
    for _ in range(6):
        one_pass(fleet, PassOptions(grow=False))
    jobs = list(fleet.state().jobs.values())
    assert [(job.lane, job.nodes) for job in jobs] == [(0, 3), (1, 3), (0, 3), (1, 3)]
    assert [job.follows for job in jobs[2:]] == [jobs[0].token, jobs[1].token]
    assert fleet.state().live_nodes() == 6
    waits = scheduler_of(fleet).with_token(jobs[2].token)[0]
    assert waits.reason == "Dependency"
    later(fleet, 3700)
    assert waits.state is JobState.RUNNING
    one_pass(fleet)
    assert len(fleet.state().jobs) == 5
    assert start(fleet, nodes=3, lanes=2).skipped


def test_a_lane_whose_job_was_taken_away_begins_anew_only_while_there_is_work(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 50)
    start(fleet, nodes=1, lanes=1, renew_before_s=60.0)
    later(fleet, 5)
    end_all(fleet, JobState.LOST, "PREEMPTED")
    report = one_pass(fleet)
    assert "was taken away" in report.reason
    work_off(fleet.spool, 50)
    later(fleet, 5)
    end_all(fleet)
    report = one_pass(fleet)
    assert report.action == "nothing"
    assert report.renewals == {"main/0": "no task waits that it could take"}
    assert report.standing.word == "done"


def test_a_node_that_failed_twice_is_left_out(tmp_path):
    fleet = make_fleet(tmp_path, nodes=5)
    enqueue(fleet, 50)
    start(fleet, nodes=1)
    for _ in range(2):
        later(fleet, 300)
        one_pass(fleet)
        end_all(fleet, JobState.LOST, "NODE_FAIL")
        one_pass(fleet, PassOptions(grow=False))
    # With a single node known nothing is excluded; the profile knows of more.
    start(fleet, nodes=1, site={"partition": {"nodes": 5}})
    end_all(fleet)
    one_pass(fleet)
    last = list(scheduler_of(fleet).jobs.values())[-1]
    assert last.request.exclude == ("n1",)
    assert last.nodes == ("n2",)


def test_shapes_of_one_fleet_each_take_what_fits(tmp_path):
    fleet = make_fleet(tmp_path)
    start(fleet, nodes=1)
    start(fleet, nodes=1, shape="big", gpus_per_node=8)
    enqueue(fleet, 500, gpus=8)
    report = one_pass(fleet)
    assert report.action == "nothing" or report.plan.shape == "big"
    end_all(fleet)
    report = one_pass(fleet)
    assert (report.action, report.plan.shape) == ("submit", "big")


def test_work_that_fits_nowhere_is_named(tmp_path):
    fleet = make_fleet(tmp_path)
    start(fleet)
    end_all(fleet)
    enqueue(fleet, 5, gpus=8)
    assert "fits no node of this shape: lane g8" in one_pass(fleet).reason


def test_a_node_takes_as_many_tasks_as_its_scarcest_part_allows():
    node = Node(gpus=4, cpus=8)
    wanted = [
        (Request(), 8), (Request(cpus=3), 2), (Request(gpus=1), 4), (Request(gpus=0.25), 8),
        (Request(gpus=2, cpus=8), 1), (Request(node=True), 1), (Request(gpus=5), 0), (Request(cpus=9), 0),
    ]  # fmt: skip
    assert [node.slots(request) for request, _ in wanted] == [slots for _, slots in wanted]


def test_measured_times_take_the_place_of_the_assumed_one(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 5)
    lane = read_backlog(fleet.spool).lanes["c1"]
    assert (lane.waiting, lane.mean_s) == (5, None)


def test_a_fleet_that_was_never_made_is_named(tmp_path):
    fleet = make_fleet(tmp_path)
    with pytest.raises(UsageError, match="There is no fleet green"):
        open_fleet(fleet.spool, "green", fleet.scheduler)


def test_the_loop_goes_on_and_pauses_between_passes(tmp_path):
    fleet = make_fleet(tmp_path)
    start(fleet)
    pauses: list[float] = []
    seen: list[object] = []
    ensure_loop(lambda: one_pass(fleet), 30.0, wait=pauses.append, on_report=seen.append, passes=3)
    assert pauses == [30.0, 30.0]
    assert len(seen) == 3


def test_two_shapes_do_not_both_grow_for_the_same_work(tmp_path):
    fleet = make_fleet(tmp_path, nodes=20)
    start(fleet, nodes=1)
    start(fleet, nodes=1, shape="big", gpus_per_node=8)
    enqueue(fleet, 60)
    assert one_pass(fleet).action == "nothing"
    enqueue(fleet, 10, gpus=8)
    end_all(fleet)
    assert one_pass(fleet).plan.shape == "main"
    assert one_pass(fleet).plan.shape == "big"
    assert one_pass(fleet).action == "nothing"


def test_a_successor_may_wait_for_a_time_instead_of_a_job(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 5000)
    start(fleet, nodes=1, lanes=1, renew_by="begin", renew_before_s=600.0)
    assert one_pass(fleet, PassOptions(grow=False)).action == "nothing"
    later(fleet, 3100)
    report = one_pass(fleet, PassOptions(grow=False))
    assert report.action == "submit"
    first, second = fleet.state().jobs.values()
    assert first.start_utc is not None
    assert second.begin_utc == first.start_utc + 3600.0
    assert scheduler_of(fleet).jobs["2"].request.after_any == ()


def test_a_node_whose_worker_was_at_fault_is_left_out(tmp_path):
    fleet = make_fleet(tmp_path)
    scheduler = scheduler_of(fleet)
    scheduler.node_names = (host_name().partition(".")[0], *(f"n{number}" for number in range(7)))
    enqueue(fleet, 50)
    start(fleet, nodes=2)
    one_pass(fleet)
    life = Life.begin(fleet.spool, job_id="1")
    life.record({"t": "note", "what": "drain", "cause": "black_hole", "reason": "tasks fail here alone"})
    end_all(fleet, JobState.FAILED, "FAILED", 1)
    assert one_pass(fleet).action == "submit"
    assert scheduler.jobs["2"].request.exclude == (scheduler.node_names[0],)


def test_a_wish_to_be_done_soon_asks_for_more_nodes(tmp_path):
    fleet = make_fleet(tmp_path, nodes=20)
    enqueue(fleet, 40)
    start(fleet, nodes=1, max_nodes=10)
    assert one_pass(fleet).action == "nothing"
    start(fleet, nodes=1, max_nodes=10, finish_within_s=600.0)
    assert [one_pass(fleet).action for _ in range(4)] == ["submit"] * 3 + ["nothing"]
    assert len(fleet.state().live()) == 5
