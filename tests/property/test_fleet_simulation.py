"""Random faults over many submissions: nothing is submitted twice for one need, and every need is met in the end."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from fleetcraft.core.errors import FleetcraftError
from fleetcraft.core.states import JobState
from fleetcraft.fleet.ensure import ensure_pass
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.launch import launch
from fleetcraft.fleet.state import Phase
from fleetcraft.testing.scheduler_memory import Fault
from tests.support.fleets import another_process, enqueue, later, make_fleet, scheduler_of, spec, waiting, work_off

_FAULTS = [Fault.REPLY_LOST, Fault.NEVER_ARRIVED, Fault.LOST_BOTH, Fault.DELAYED, Fault.FULL, Fault.NONE, Fault.NONE]


def _left(fleet: Fleet) -> int:
    return sum(token.count for token in waiting(fleet.spool))


def _work(fleet: Fleet, dice: random.Random) -> None:
    """Running jobs work; some end badly; one whose mark says so runs nothing."""
    scheduler = scheduler_of(fleet)
    for job in list(scheduler.jobs.values()):
        if job.state is not JobState.RUNNING:
            continue
        if fleet.spool.files.exists(fleet.folder.job(job.request.token).withdrawn):
            scheduler.end(job.ref.id, JobState.DONE, "COMPLETED")
            continue
        work_off(fleet.spool, 2 * len(job.nodes))
        chance = dice.random()
        if chance < 0.15:
            scheduler.end(job.ref.id, JobState.LOST, "NODE_FAIL")
        elif chance < 0.2:
            scheduler.requeue(job.ref.id)
        elif not _left(fleet):
            scheduler.end(job.ref.id, JobState.DONE, "COMPLETED")


def _check_no_double(fleet: Fleet) -> None:
    scheduler = scheduler_of(fleet)
    assert max(Counter(scheduler.submissions).values(), default=0) <= 1
    state = fleet.state()
    assert not state.problems
    # Every job that the scheduler ever had is known by its token, and only one of them was meant for each intent.
    assert {job.request.token for job in scheduler.jobs.values()} <= state.jobs.keys()
    # What is given up never holds nodes together with what replaced it: it runs nothing.
    live = [job for job in scheduler.jobs.values() if not job.state.ended]
    useful = [job for job in live if not state.jobs[job.request.token].withdrawn]
    assert sum(job.request.nodes for job in useful) <= 4, [str(job.ref) for job in useful]


@pytest.mark.parametrize("seed", (1, 2))
def test_no_fault_makes_two_submissions_and_every_need_is_met(tmp_path, seed):
    dice = random.Random(seed)
    fleet = make_fleet(tmp_path, withdraw_after_s=180.0, settle_s=30.0)
    scheduler = scheduler_of(fleet)
    scheduler.lag_s = 20.0
    enqueue(fleet, 600)
    launch(fleet, spec(nodes=1, max_nodes=4, task_s=600.0), wait=lambda _s: None)
    faults = 0
    for step in range(600):
        if dice.random() < 0.7:
            fault = dice.choice(_FAULTS)
            scheduler.faults.append(fault)
            faults += fault is not Fault.NONE
        scheduler.deaf = dice.random() < 0.15
        scheduler.delay_s = dice.choice([10.0, 100.0, 400.0, 900.0])
        if dice.random() < 0.1:
            fleet = another_process(fleet)
        ensure_pass(fleet)
        later(fleet, dice.choice([5.0, 30.0, 60.0, 120.0]))
        _work(fleet, dice)
        _check_no_double(fleet)
        if not _left(fleet):
            if step > 300:
                break
            enqueue(fleet, 40)
    scheduler.deaf = False
    scheduler.faults.clear()
    for _ in range(200):
        if not _left(fleet):
            break
        ensure_pass(fleet)
        later(fleet, 60.0)
        _work(fleet, random.Random(0))
    assert not _left(fleet), ensure_pass(fleet).as_json()
    assert len(fleet.state().jobs) > 20
    assert faults > 50


@pytest.mark.parametrize("seed", range(6))
def test_passes_that_take_turns_make_one_intent_for_one_need(tmp_path, seed):
    """Two processes read, then both decide: one commits, the other one looks again and finds the need met."""
    dice = random.Random(seed)
    fleet = make_fleet(tmp_path)
    enqueue(fleet, 8)
    launch(fleet, spec(nodes=1, max_nodes=1), wait=lambda _s: None)
    for _ in range(20):
        for job in scheduler_of(fleet).jobs.values():
            if not job.state.ended:
                scheduler_of(fleet).end(job.ref.id, JobState.LOST, "NODE_FAIL")
        later(fleet, 60.0)
        one, other = another_process(fleet), another_process(fleet)
        one.state(), other.state()
        before = len(fleet.state().jobs)
        for process in dice.sample([one, other, one, other], 4):
            try:
                ensure_pass(process)
            except FleetcraftError as error:  # pragma: no cover
                raise AssertionError(error) from error
        state = fleet.state()
        assert len(state.jobs) - before <= 1
        assert sum(job.phase is Phase.SUBMITTED and job.is_live for job in state.jobs.values()) <= 1
