"""Claim, split, give back, release: each in its order, and every failure leaves every task covered."""

from __future__ import annotations

import errno
import os

import pytest

from fleetcraft.core.errors import LifeEnded
from fleetcraft.core.names import CLAIM, DRAFT, FENCED, Token, parse_token
from fleetcraft.spool.claims import CoverUnknown, Piece, release, return_whole, split, take
from fleetcraft.spool.life import Life, find_state, state_path
from fleetcraft.spool.spool import Spool
from fleetcraft.spool.tokens import Moved, move
from fleetcraft.store.files import Files
from fleetcraft.store.journal import JournalEnded
from fleetcraft.testing.clock import ManualClock
from fleetcraft.testing.files import (
    Crash,
    CrashingFiles,
    FaultyFiles,
    FullFiles,
    LostReplyFiles,
    RecordingFiles,
    StaleFiles,
    WrappedFiles,
    nth,
)
from tests.property.spool_play import publish

COUNT = 10


class Inner(WrappedFiles):
    """A seam whose inside a test may exchange while a life goes on."""


@pytest.fixture
def spool(tmp_path):
    spool = Spool.open(str(tmp_path / "s"), create=True, files=Inner(), clock=ManualClock())
    publish(spool, [f"t{number}" for number in range(COUNT)])
    return spool


@pytest.fixture
def life(spool):
    return Life.begin(spool)


def names(spool):
    return sorted(os.listdir(spool.layout.tokens))


def waiting(spool):
    return next(token for token in spool.tokens().tokens if not token.form)


def claimed(life):
    taken = take(life, waiting(life.spool))
    assert taken is not None
    return taken[0]


def covered(spool):
    """Positions that a name leads to, in the order of names; a draft inside its owner's claim leads nowhere."""
    tokens = [token for name in names(spool) if (token := parse_token(name))]
    solid = [
        token
        for token in tokens
        if token.form != DRAFT or not any(wide.form == CLAIM and wide.covers(token) for wide in tokens)
    ]
    return sorted(index for token in solid for index in range(token.start, token.stop))


def faulty(spool, files):
    """Put a fake under the life for one block."""
    spool.files.inner = files
    return files


def healthy(spool):
    spool.files.inner = Files()


def test_a_claim_is_one_rename_then_a_look_at_our_state_then_a_sync(spool, life):
    recording = faulty(spool, RecordingFiles())
    token = waiting(spool)
    recording.operations.clear()
    taken = take(life, token)
    assert taken is not None
    assert taken[0] == token.owned(CLAIM, life.id)
    assert taken[1].number == 1
    assert [operation.kind for operation in recording.operations][:3] == ["rename", "exists", "sync_folder"]
    assert names(spool) == [taken[0].name]


def test_of_two_claimers_one_gets_it(spool, life):
    token, other = waiting(spool), Life.begin(spool)
    assert take(life, token) is not None
    assert take(other, token) is None
    assert names(spool) == [token.owned(CLAIM, life.id).name]


@pytest.mark.parametrize("retransmitted", (False, True))
def test_a_claim_whose_reply_was_lost_is_recognized_by_our_id(spool, life, retransmitted):
    token = waiting(spool)
    files = faulty(
        spool, LostReplyFiles(lose=lambda operation: operation.kind == "rename", retransmitted=retransmitted)
    )
    taken = take(life, token)
    assert taken is not None
    assert taken[0].life == life.id
    assert len(files.lost) == 1


def test_a_success_is_never_inferred_from_the_source_being_gone(spool, life):
    token = waiting(spool)
    os.unlink(spool.layout.token(token.name))
    assert take(life, token) is None
    assert move(spool.files, spool.layout.token(token.name), spool.layout.token("x")) is Moved.NO


def test_estale_is_absence(spool, life):
    token = waiting(spool)
    faulty(spool, FaultyFiles(fault=lambda operation: errno.ESTALE if operation.kind == "rename" else None))
    assert take(life, token) is None
    healthy(spool)
    assert names(spool) == [token.name]


def test_an_answer_that_never_comes_is_unknown_and_bounded(spool, life):
    token = waiting(spool)
    files = faulty(
        spool, FaultyFiles(fault=lambda operation: errno.EIO if operation.kind in ("rename", "exists") else None)
    )
    assert take(life, token) is None
    assert len(files.failed) <= 6


def test_a_life_that_was_taken_for_dead_lets_its_late_claim_go(spool, life):
    token = waiting(spool)
    Files().rename(state_path(life.folder, "live"), state_path(life.folder, "reaping"))
    with pytest.raises(LifeEnded, match="taken for dead"):
        take(life, token)
    assert names(spool) == [token.name]


@pytest.mark.parametrize("held", (False, True))
def test_a_ledger_that_hides_gives_the_claim_back(tmp_path, held):
    clock = ManualClock()
    root = str(tmp_path / "s")
    Spool.open(root, create=True)
    stale = StaleFiles(None, clock, 60.0)
    spool = Spool(root, files=stale, clock=clock)
    life = Life.begin(spool)
    assert not stale.exists(spool.layout.ledger(1))
    spool.refresh()  # both look-ups are in the client's cache now
    other = Spool(root)
    publish(other, ["a"])
    token = other.tokens().tokens[0]
    if held:
        Files().rename(spool.layout.token(token.name), spool.layout.token(token.held().name))
        token = token.held()
    assert take(life, token) is None
    assert names(spool) == [token.name]
    clock.advance(60.0)
    assert take(life, token) is not None


def test_give_back_is_one_rename_and_keeps_the_attempt(spool, life):
    token = waiting(spool)
    claim = claimed(life)
    recording = faulty(spool, RecordingFiles())
    return_whole(life, claim)
    assert [operation.kind for operation in recording.operations] == ["rename"]
    assert names(spool) == [token.name]


def test_a_split_drafts_last_first_then_commits_then_offers(spool, life):
    claim = claimed(life)
    recording = faulty(spool, RecordingFiles())
    kept = split(life, claim, (0, 4), [Piece(4, 7, 1), Piece(7, 10, 1, held=True)])
    assert kept == claim.part(0, 4)
    steps = [str(operation).replace(life.id, "W").replace("c1.500.1.", "") for operation in recording.operations]
    assert steps == [
        "create 7-10.g0.a1~W",
        "create 4-7.g0.a1~W",
        "sync_folder tokens",
        "rename 0-10.g0.a1@W -> 0-4.g0.a1@W",
        "rename 7-10.g0.a1~W -> 7-10.g0.a1.held",
        "rename 4-7.g0.a1~W -> 4-7.g0.a1",
    ]
    assert covered(spool) == list(range(COUNT))


def test_a_task_loses_its_cover_only_after_the_journal_is_durable(spool, life):
    claim = claimed(life)
    life.note("work")
    recording = faulty(spool, RecordingFiles())
    split(life, claim, (6, 10), [Piece(5, 6, 2)])  # 0 to 4 have ended
    kinds = [operation.kind for operation in recording.operations]
    assert kinds.index("sync") < kinds.index("rename")
    life.note("work")
    recording.operations.clear()
    split(life, claim.part(6, 10), None, [Piece(6, 10, 2)])
    kinds = [operation.kind for operation in recording.operations]
    assert kinds.index("sync") < kinds.index("unlink")
    assert covered(spool) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("keep", ((0, 4), (2, 4), None))
@pytest.mark.parametrize("after", (False, True))
def test_a_crash_at_any_operation_of_a_split_keeps_every_task_covered(tmp_path, keep, after):
    pieces = [Piece(start, start + 2, 1) for start in (4, 6, 8)] + ([Piece(0, 4, 2)] if keep is None else [])
    kept = set(range(COUNT)) - (set(range(2)) if keep == (2, 4) else set())
    for at in range(20):
        spool = Spool.open(str(tmp_path / f"s{at}"), create=True, files=Inner(), clock=ManualClock())
        publish(spool, [f"t{number}" for number in range(COUNT)])
        life = Life.begin(spool)
        claim = claimed(life)
        files = faulty(spool, CrashingFiles(at=at, after=after))
        try:
            split(life, claim, keep, pieces)
        except Crash:
            healthy(spool)
            found = covered(spool)
            assert set(found) >= kept
            assert len(found) == len(set(found)), names(spool)
        else:
            healthy(spool)
            assert set(covered(spool)) == kept
            assert at >= files.count
            return
    raise AssertionError("the split never ended")


@pytest.mark.parametrize("error", (errno.ENOSPC, errno.EDQUOT, errno.EROFS))
@pytest.mark.parametrize("kind", ("create", "sync_folder", "rename"))
def test_a_full_disk_leaves_the_claim_whole_and_no_draft(spool, life, kind, error):
    claim = claimed(life)
    faulty(spool, FullFiles(error=error, kinds=frozenset({kind}), spare=1 if kind == "create" else 0))
    with pytest.raises(OSError, match=os.strerror(error)):
        split(life, claim, (0, 4), [Piece(4, 7, 1), Piece(7, 10, 1)])
    healthy(spool)
    assert names(spool) == [claim.name]
    kept = split(life, claim, (0, 4), [Piece(4, 7, 1), Piece(7, 10, 1)])
    assert kept is not None
    assert covered(spool) == list(range(COUNT))


@pytest.mark.parametrize("retransmitted", (False, True))
@pytest.mark.parametrize("keep", ((0, 4), None))
def test_a_lost_reply_to_any_change_of_a_split_is_settled_by_looking(spool, keep, retransmitted):
    pieces = [Piece(4, 10, 1)] + ([Piece(0, 4, 2)] if keep is None else [])
    for at in range(8):
        life = Life.begin(spool)
        claim = claimed(life)
        change = nth(at, ("create", "rename", "unlink"))
        faulty(spool, LostReplyFiles(lose=change, retransmitted=retransmitted))
        kept = split(life, claim, keep, pieces)
        healthy(spool)
        assert covered(spool) == list(range(COUNT))
        assert not [name for name in names(spool) if DRAFT in name]
        if kept is not None:
            return_whole(life, kept)
        for name in names(spool):
            os.unlink(spool.layout.token(name))
        Files().create(spool.layout.token(claim.waiting().name))


def _silent_after(done_kind):
    """The change is done, its reply lost, and from then on no question is answered."""
    state = {"silent": False}

    class Silent(WrappedFiles):
        def _around(self, operation, do):
            if state["silent"]:
                raise OSError(errno.EIO, "no answer")
            result = do()
            if operation.kind == done_kind:
                state["silent"] = True
                raise OSError(errno.EIO, "reply lost")
            return result

    return Silent()


@pytest.mark.parametrize("keep", ((0, 4), None))
def test_a_split_without_an_answer_keeps_what_may_be_the_only_cover(spool, life, keep):
    claim = claimed(life)
    faulty(spool, _silent_after("unlink" if keep is None else "rename"))
    with pytest.raises((CoverUnknown, OSError)):
        split(life, claim, keep, [Piece(4, 10, 1)] + ([Piece(0, 4, 2)] if keep is None else []))
    healthy(spool)
    assert covered(spool) == list(range(COUNT))
    assert find_state(Files(), life.folder) == "live"


def test_one_lost_reply_and_one_failed_look_are_not_proof_that_nothing_was_done(spool, life):
    claim = claimed(life)
    silent = iter([True])

    class Wavering(WrappedFiles):
        def _around(self, operation, do):
            if operation.kind == "exists" and operation.path.endswith(claim.part(0, 4).name) and next(silent, False):
                raise OSError(errno.EIO, "no answer")
            result = do()
            if operation.kind == "rename" and operation.path.endswith(claim.name):
                raise OSError(errno.EIO, "reply lost")
            return result

    faulty(spool, Wavering())
    with pytest.raises(CoverUnknown, match="did not say whether"):
        split(life, claim, (0, 4), [Piece(4, 10, 1)])
    healthy(spool)
    assert covered(spool) == list(range(COUNT))


def test_a_reaped_life_undoes_its_split(spool, life):
    claim = claimed(life)
    Files().rename(spool.layout.token(claim.name), spool.layout.token(claim.owned(FENCED, life.id).name))
    Files().rename(state_path(life.folder, "live"), state_path(life.folder, "fenced"))
    for keep in ((0, 4), None):
        with pytest.raises(LifeEnded):
            split(life, claim, keep, [Piece(4, 10, 1)])
        assert names(spool) == [claim.owned(FENCED, life.id).name]
    with pytest.raises(LifeEnded):
        release(life, claim)


def test_release_syncs_first_and_keeps_the_claim_when_that_fails(spool, life):
    claim = claimed(life)
    life.note("work")
    recording = faulty(spool, RecordingFiles())
    release(life, claim)
    assert [operation.kind for operation in recording.operations] == ["sync", "unlink"]
    assert names(spool) == []
    other = Life.begin(spool)
    claim = claim.owned(CLAIM, other.id)
    Files().create(spool.layout.token(claim.name))
    other.note("work")
    faulty(spool, FaultyFiles(fault=lambda operation: errno.EIO if operation.kind == "sync" else None))
    with pytest.raises(JournalEnded):
        release(other, claim)
    assert names(spool) == [claim.name]


def test_a_lost_reply_to_a_release_is_no_loss_of_life(spool, life):
    for retransmitted in (False, True):
        claim = Token(lane="c1", priority=500, batch=1, start=0, stop=1, form=CLAIM, life=life.id)
        Files().create(spool.layout.token(claim.name))
        faulty(spool, LostReplyFiles(lose=lambda operation: operation.kind == "unlink", retransmitted=retransmitted))
        release(life, claim)
        healthy(spool)
        assert claim.name not in names(spool)


def test_a_life_that_owns_something_does_not_call_itself_dead(spool, life):
    claim = claimed(life)
    assert life.close() is False
    assert find_state(Files(), life.folder) == "live"
    other = Life.begin(spool)
    other.note("x")
    os.unlink(spool.layout.token(claim.name))
    assert other.close() is True
    assert find_state(Files(), other.folder) == "dead"


def test_a_life_that_was_reaped_meanwhile_closes_without_a_word(spool, life):
    Files().rename(state_path(life.folder, "live"), state_path(life.folder, "reaping"))
    assert life.close() is False
    assert find_state(Files(), life.folder) == "reaping"


def test_a_maintenance_life_that_recorded_nothing_leaves_no_folder(spool):
    life = Life.begin(spool, kind="maintenance")
    assert life.close() is True
    assert not os.path.exists(life.folder)
