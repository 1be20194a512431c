"""Asking before a ledger is read: fleets of one site in one question, and whoever cannot be asked is named."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fleetcraft.actions.gpu_ledger import _ask_together, ask_fleets
from fleetcraft.core.errors import UsageError
from fleetcraft.core.states import JobState
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.launch import launch
from fleetcraft.schedulers.api import JobRef, Observation
from fleetcraft.spool.spool import Spool
from fleetcraft.testing.scheduler_memory import MemoryScheduler
from tests.support.fleets import clock_of, make_fleet, scheduler_of, spec


@pytest.fixture
def two(tmp_path) -> tuple[Fleet, Fleet]:
    one = make_fleet(tmp_path, "blue")
    other = Fleet(one.spool, "red", one.scheduler, (), one.policy)
    other.log.create()
    for fleet in (one, other):
        launch(fleet, spec(fleet.name), wait=lambda _s: None)
    return one, other


class Counting:
    """A scheduler that counts its questions and can fall silent."""

    def __init__(self, scheduler: MemoryScheduler) -> None:
        self.scheduler = scheduler
        self.asked: list[int] = []
        self.silent = False

    def __getattr__(self, name: str) -> object:
        return getattr(self.scheduler, name)

    def observe(self, refs: Sequence[JobRef]) -> Observation:
        self.asked.append(len(refs))
        if self.silent:
            return Observation(at_utc=0.0, jobs={}, answered=False, problems=("it is down",))
        return self.scheduler.observe(refs)


def test_two_fleets_of_one_site_are_one_question(two):
    clock_of(two[0]).advance(5.0)
    scheduler_of(two[0]).advance()
    counting = Counting(scheduler_of(two[0]))
    for fleet in two:
        fleet.scheduler = counting
    assert _ask_together(two) == []
    assert counting.asked == [2]
    for fleet in two:
        assert [job.state for job in fleet.state().jobs.values()] == [JobState.RUNNING]


def test_a_scheduler_that_does_not_answer_is_named_for_each_fleet(two):
    counting = Counting(scheduler_of(two[0]))
    counting.silent = True
    for fleet in two:
        fleet.scheduler = counting
    problems = _ask_together(two)
    assert len(problems) == 2
    assert all("it is down" in problem for problem in problems)


def test_an_unknown_fleet_is_refused_and_a_spool_without_one_is_fine(tmp_path):
    spool = Spool.open(str(tmp_path / "spool"), create=True)
    assert ask_fleets(spool.layout.root) == []
    with pytest.raises(UsageError, match="no fleet 'nope'"):
        ask_fleets(spool.layout.root, "nope")
