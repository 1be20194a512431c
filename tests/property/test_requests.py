"""What people ask: each request has a number of its own, is there whole or not at all, and is seen by every reader."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.core.errors import OutOfReach
from fleetcraft.spool.requests import CANCEL, DRAIN, LIMIT, RESUME, STOP, RequestLog, ask
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files
from fleetcraft.testing.clock import ManualClock
from fleetcraft.testing.files import Crash, CrashingFiles, FullFiles, LostReplyFiles, WrappedFiles
from fleetcraft.testing.scheduler import Interleaver, Plan
from tests.support.descriptors import closing_leftovers


@pytest.fixture(autouse=True)
def descriptors():
    with closing_leftovers():
        yield


_ORDERS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), max_size=15)


@pytest.fixture
def root(tmp_path):
    path = str(tmp_path / "s")
    Spool.open(path, create=True)
    return path


def _log(root):
    log = RequestLog(Spool(root))
    log.refresh(force=True)
    return log


@settings(max_examples=30)
@given(order=_ORDERS)
def test_several_people_never_share_a_number(tmp_path_factory, order):
    root = str(tmp_path_factory.mktemp("ask") / "s")
    Spool.open(root, create=True)
    numbers: list[int] = []
    play = Interleaver()

    def asker(name):
        return lambda files: numbers.append(ask(Spool(root, files=files), DRAIN, lives=[name]))

    for name in "abc":
        play.add(name, asker(name))
    plan = Plan(order, slice_steps=3)
    play.run(lambda waiting: plan(waiting, {name: play.actors[name].steps for name in waiting}))
    assert sorted(numbers) == [1, 2, 3]
    assert _log(root).drained == {"a", "b", "c"}
    assert sorted(os.listdir(os.path.join(root, "requests"))) == ["1.json", "2.json", "3.json"]


@pytest.mark.parametrize("after", (False, True))
def test_a_crash_anywhere_leaves_a_whole_request_or_none(root, after):
    for at in range(20):
        try:
            ask(Spool(root, files=CrashingFiles(at=at, after=after)), LIMIT, name=f"n{at}", ceiling=at)
        except Crash:
            continue
        break
    else:
        raise AssertionError("it never ended")
    log = _log(root)
    assert log.damaged == 0
    assert set(log.limits) <= {f"n{number}" for number in range(20)}
    assert log.limits[f"n{at}"] == at


@pytest.mark.parametrize("retransmitted", (False, True))
def test_a_commit_whose_reply_was_lost_is_one_request(root, retransmitted):
    files = LostReplyFiles(lose=lambda operation: operation.kind == "link", retransmitted=retransmitted)
    assert ask(Spool(root, files=files), STOP, reason="x") == 1
    assert _log(root).stopped
    assert os.listdir(os.path.join(root, "requests")) == ["1.json"]


def test_a_full_disk_is_told_and_leaves_nothing(root):
    with pytest.raises(OutOfReach, match="No space"):
        ask(Spool(root, files=FullFiles()), STOP)
    assert os.listdir(os.path.join(root, "requests")) == []


def test_the_highest_number_decides_whether_the_spool_is_stopped(root):
    spool = Spool(root)
    log = RequestLog(spool)
    for kind, stopped in ((STOP, True), (RESUME, False), (STOP, True)):
        ask(spool, kind, reason=kind)
        log.refresh(force=True)
        assert log.stopped is stopped
    assert _log(root).stop_reason == STOP


class _OneTick(WrappedFiles):
    """A file system whose times are so coarse that nothing seems to change."""

    def modified_ns(self, path):
        return 1


def test_a_request_of_the_same_tick_is_not_overlooked(root):
    clock = ManualClock()
    files = _OneTick()
    spool = Spool(root, files=files, clock=clock)
    log = RequestLog(spool)
    for number in range(1, 4):
        ask(Spool(root), CANCEL, items=[[number, 0, [[0, 1]]]])
        assert log.refresh()
        assert len(log.cancels) == number
        clock.advance(0.5)


def test_a_quiet_folder_costs_one_look(root):
    clock = ManualClock()
    listings = []

    class Counting(Files):
        def names(self, folder):
            listings.append(folder)
            return super().names(folder)

    log = RequestLog(Spool(root, files=Counting(), clock=clock))
    for _ in range(20):
        log.refresh()
        clock.advance(1.0)
    assert len(listings) <= 4
    ask(Spool(root), STOP)
    os.utime(os.path.join(root, "requests"), ns=(5, 5))
    log.refresh()
    assert log.stopped
