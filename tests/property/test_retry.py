"""A person's retry opens a generation once and offers it once, whatever fails and whoever else asks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.core.errors import OutOfReach
from fleetcraft.core.names import DRAFT
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.states import TaskState
from fleetcraft.spool.claims import release, take
from fleetcraft.spool.life import Life
from fleetcraft.spool.maintenance import finish_drafts
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.retry import open_generation
from fleetcraft.spool.spool import Spool
from fleetcraft.testing.files import Crash, CrashingFiles, FaultyFiles, LostReplyFiles, RecordingFiles, failing, nth
from fleetcraft.testing.scheduler import Act, Interleaver, Plan
from tests.property.spool_play import publish
from tests.support.descriptors import closing_leftovers


@pytest.fixture(autouse=True)
def descriptors():
    with closing_leftovers():
        yield


COUNT = 5
FAILED = {1, 2, 4}


def _ended(path):
    """A spool whose tasks have all ended, some of them failed."""
    spool = Spool.open(str(path), create=True)
    publish(spool, [f"t{number}" for number in range(COUNT)])
    life = Life.begin(spool)
    taken = take(life, spool.tokens().tokens[0])
    assert taken is not None
    for index in range(COUNT):
        outcome = "failed" if index in FAILED else "succeeded"
        life.record({"t": "receipt", "b": 1, "i": index, "g": 0, "a": 1, "o": outcome, "final": outcome})
    release(life, taken[0])
    life.close()
    return spool.layout.root


def _retry(root, files=None):
    spool = Spool(root, files=files)
    spool.refresh()

    def choose(fold):
        wanted: dict[int, RangeSet] = {}
        for index in range(COUNT):
            verdict = fold.verdict(1, index)
            if verdict.state is TaskState.FAILED:
                wanted.setdefault(verdict.gen + 1, RangeSet()).add(index, index + 1)
        return wanted

    return open_generation(spool, SpoolFold(spool, durable=True), 1, choose)


def _assert_open_once(root):
    """After the last step was done by whoever comes, each failed task is offered once in its new generation."""
    spool = Spool(root)
    spool.refresh()
    reader = SpoolFold(spool)
    reader.refresh()
    finish_drafts(spool, spool.tokens().tokens, reader.requests.owners)
    tokens = spool.tokens().tokens
    offered = sorted(
        (index, token.gen) for token in tokens if not token.form for index in range(token.start, token.stop)
    )
    assert offered == [(index, 1) for index in sorted(FAILED)]
    assert {reader.fold.generation(1, index) for index in FAILED} == {1}
    assert all(token.life not in reader.requests.owners for token in tokens if token.form == DRAFT)


def test_the_drafts_come_first_and_the_link_decides(tmp_path):
    root = _ended(tmp_path / "s")
    files = RecordingFiles()
    assert _retry(root, files) is not None
    kinds = [operation.kind for operation in files.operations if operation.kind in ("create", "link", "rename")]
    assert kinds == ["create", "create", "link", "rename", "rename"]
    _assert_open_once(root)
    assert _retry(root) is None  # what waits has not ended


@pytest.mark.parametrize("after", (False, True))
def test_a_crash_at_any_operation_then_the_same_again(tmp_path, after):
    at = 0
    while True:
        root = _ended(tmp_path / f"s{at}")
        try:
            _retry(root, CrashingFiles(at=at, after=after))
        except Crash:
            _retry(root)
            _assert_open_once(root)
        else:
            assert at > 10
            return
        at += 1


@pytest.mark.parametrize("retransmitted", (False, True))
@pytest.mark.parametrize("lost", (False, True))
def test_an_error_or_a_lost_reply_at_any_operation_then_the_same_again(tmp_path, lost, retransmitted):
    probe = RecordingFiles()
    _retry(_ended(tmp_path / "probe"), probe)
    for at in range(len(probe.operations)):
        root = _ended(tmp_path / f"s{at}")
        files = (
            LostReplyFiles(lose=nth(at), retransmitted=retransmitted)
            if lost
            else FaultyFiles(fault=failing(5, nth(at)))
        )
        try:
            _retry(root, files)
        except (OSError, OutOfReach):
            assert files.inner is not None
        _retry(root)
        _assert_open_once(root)


@settings(max_examples=30)
@given(
    order=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 8)), max_size=15),
    kills=st.sets(st.tuples(st.sampled_from(["q0", "q1"]), st.integers(0, 30)), max_size=1),
)
def test_several_people_ask_at_once_and_one_of_them_may_die(tmp_path_factory, order, kills):
    root = _ended(tmp_path_factory.mktemp("retry") / "s")
    play = Interleaver()
    for number in range(3):
        play.add(f"q{number}", lambda files: _retry(root, files))
    plan = Plan(order, slice_steps=4)

    def turn(waiting):
        steps = {name: play.actors[name].steps for name in waiting}
        name, act = plan(waiting, steps)
        return name, Act.KILL if (name, steps[name]) in kills else act

    play.run(turn)
    _assert_open_once(root)
