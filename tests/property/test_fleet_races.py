"""Wherever a pass over a fleet is met by another one, or dies: one need, one job."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from fleetcraft.core.errors import OutOfReach
from fleetcraft.fleet.ensure import PassOptions, ensure_pass
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.launch import launch
from fleetcraft.fleet.state import Phase
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files
from fleetcraft.testing.files import Crash, CrashingFiles, LostReplyFiles, Operation, WrappedFiles
from tests.support.fleets import enqueue, later, make_fleet, scheduler_of, spec

T = TypeVar("T")
_LOOK_ONLY = PassOptions(grow=False, renew=False)


class Interrupting(WrappedFiles):
    """Lets another process do something just before operation number `at`."""

    def __init__(self, at: int, do: Callable[[], object]) -> None:
        super().__init__(Files())
        self.at = at
        self.do = do
        self.count = 0

    def _around(self, operation: Operation, do: Callable[[], T]) -> T:
        del operation
        number, self.count = self.count, self.count + 1
        if number == self.at:
            self.do()
        return do()


def _through(fleet: Fleet, files: Files) -> Fleet:
    """The same fleet in another process, seen through `files`."""
    spool = Spool.open(fleet.spool.layout.root, clock=fleet.spool.clock)
    spool.files = files
    return Fleet(spool, fleet.name, fleet.scheduler, policy=fleet.policy)


def _needy(folder: Path) -> Fleet:
    """A fleet with work for one job more than it has, and room for exactly that."""
    fleet = make_fleet(folder)
    enqueue(fleet, 300)
    launch(fleet, spec(nodes=1, max_nodes=2), wait=lambda _s: None)
    ensure_pass(fleet, _LOOK_ONLY)
    later(fleet, 60)
    return fleet


def _whole_pass(fleet: Fleet) -> None:
    ensure_pass(_through(fleet, Files()))


def _sometimes(dice: random.Random, _operation: Operation) -> bool:
    return dice.random() < 0.05


def _steps(folder: Path) -> int:
    files = CrashingFiles()
    ensure_pass(_through(_needy(folder), files))
    return files.count


def _check(fleet: Fleet) -> None:
    scheduler = scheduler_of(fleet)
    assert len(scheduler.submissions) == len(set(scheduler.submissions))
    assert sum(not job.state.ended for job in scheduler.jobs.values()) == 2
    stood = [job for job in fleet.state().jobs.values() if job.phase is Phase.SUBMITTED]
    assert len([job for job in stood if job.is_live]) == 2


@pytest.mark.slow
def test_a_pass_that_is_met_by_another_at_any_step_meets_the_need_once(tmp_path):
    steps = _steps(tmp_path / "count")
    assert steps > 30
    for at in range(steps):
        fleet = _needy(tmp_path / str(at))
        mine = _through(fleet, Interrupting(at, partial(_whole_pass, fleet)))
        ensure_pass(mine)
        assert len(fleet.state().jobs) == 2, f"step {at}"
        _check(fleet)


@pytest.mark.slow
@pytest.mark.parametrize("after", (False, True), ids=("before", "after"))
def test_a_pass_that_dies_at_any_step_leaves_one_job_for_the_need(tmp_path, after):
    steps = _steps(tmp_path / "count")
    for at in range(steps):
        fleet = _needy(tmp_path / str(at))
        try:
            ensure_pass(_through(fleet, CrashingFiles(at=at, after=after)))
        except Crash:
            pass
        for _ in range(4):
            ensure_pass(_through(fleet, Files()))
            later(fleet, 100)
        _check(fleet)


@pytest.mark.slow
def test_lost_replies_of_the_storage_make_no_second_job(tmp_path):
    for seed in range(40):
        dice = random.Random(seed)
        fleet = _needy(tmp_path / str(seed))
        for _ in range(6):
            try:
                ensure_pass(_through(fleet, LostReplyFiles(lose=partial(_sometimes, dice))))
            except (OutOfReach, OSError):
                pass
            later(fleet, 100)
        for _ in range(4):
            ensure_pass(_through(fleet, Files()))
            later(fleet, 100)
        _check(fleet)
