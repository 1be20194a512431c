"""The cap of a fleet: no submission passes it, and a fleet that has nothing left of it is drained and told of once."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from fleetcraft.config.site import NotifyRules
from fleetcraft.core.errors import Refused
from fleetcraft.core.states import JobState
from fleetcraft.fleet.ensure import PassOptions, ensure_pass
from fleetcraft.fleet.launch import launch
from fleetcraft.fleet.submit import declare
from tests.support.fleets import enqueue, later, make_fleet, one_pass, scheduler_of, spec


@dataclass
class Answer:
    code: int = 0
    err: str = ""
    problem: str = ""


class Listener:
    def __init__(self):
        self.heard = []

    def run(self, argv, *, stdin=b"", timeout_s=60.0):
        self.heard.append(json.loads(stdin))
        return Answer()


def start(fleet, **changes):
    return launch(fleet, spec(site={"notify": NotifyRules(command=("tell",))}, **changes), wait=lambda _s: None)


def test_a_submission_that_would_pass_the_cap_is_refused(tmp_path):
    fleet = make_fleet(tmp_path)
    start(fleet, gpu_hour_cap=10.0)  # 2 nodes, 4 GPUs, 1 hour: 8 of 10
    with pytest.raises(Refused, match=r"GPU-hour cap of 10 leaves 2\.00"):
        start(fleet, gpu_hour_cap=10.0)
    assert len(scheduler_of(fleet).submissions) == 1


def test_a_fleet_over_its_cap_is_drained_and_told_of_once(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 1000)
    start(fleet, gpu_hour_cap=8.0)
    one_pass(fleet)
    job = next(iter(fleet.state().jobs.values()))
    # More can be spent than was set aside: a requeued job runs anew, and a person may lower the cap.
    lower = spec(site={"notify": NotifyRules(command=("tell",))}, gpu_hour_cap=5.0)
    declare(fleet, fleet.state(), lower)
    later(fleet, 3000)
    listener = Listener()
    report = ensure_pass(fleet, PassOptions(dry=True), runner=listener)
    assert any("would be drained" in text for text in report.problems)
    assert not fleet.state().drained
    report = ensure_pass(fleet, runner=listener)
    assert fleet.state().drained
    assert "GPU-hour cap of 5 is used up" in fleet.state().drain_reason
    assert "drains" in report.reason
    assert job.ref is not None
    scheduler_of(fleet).end(job.ref.id, JobState.DONE, "COMPLETED", exit_code=0)
    for _ in range(3):
        later(fleet, 60)
        ensure_pass(fleet, runner=listener)
    assert [(one["what"], "cap of 5" in one["text"]) for one in listener.heard] == [("drained", True)]


def test_a_cap_that_leaves_too_little_for_a_node_ends_the_fleet_when_its_jobs_are_over(tmp_path):
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 1000)
    start(fleet, gpu_hour_cap=10.0)
    one_pass(fleet)
    assert not fleet.state().drained
    job = next(iter(fleet.state().jobs.values()))
    later(fleet, 3600)
    assert job.ref is not None
    if fleet.state().jobs[job.token].is_live and job.ref.id in scheduler_of(fleet).jobs:
        scheduler_of(fleet).end(job.ref.id, JobState.TIMEOUT, "TIMEOUT")
    listener = Listener()
    ensure_pass(fleet, runner=listener)
    assert fleet.state().drained
    assert "leaves 2.00" in fleet.state().drain_reason
    assert [one["what"] for one in listener.heard] == ["drained"]


def test_without_work_a_used_cap_stops_nothing(tmp_path):
    fleet = make_fleet(tmp_path)
    start(fleet, gpu_hour_cap=8.0)
    one_pass(fleet)
    later(fleet, 1000)
    for job in list(scheduler_of(fleet).jobs.values()):
        assert job.ref is not None
    scheduler_of(fleet).end(job.ref.id, JobState.DONE, "COMPLETED", exit_code=0)
    one_pass(fleet)
    assert not fleet.state().drained
