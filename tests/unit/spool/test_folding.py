"""Folding at every point where something may go wrong: crashes, errors, lost replies, and other people at work."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from fleetcraft.core.errors import FleetcraftError, LifeEnded
from fleetcraft.core.names import CLAIM, DRAFT, TaskId, Token
from fleetcraft.core.resources import Request
from fleetcraft.core.states import TaskState
from fleetcraft.spool import foldgroups
from fleetcraft.spool.check import check
from fleetcraft.spool.claims import take
from fleetcraft.spool.cover import remaining
from fleetcraft.spool.foldgroups import FoldLimits
from fleetcraft.spool.folding import fold_small, maybe_fold
from fleetcraft.spool.layout import Layout
from fleetcraft.spool.life import Life
from fleetcraft.spool.maintenance import FOLDING, fold_publication, permit_holder, settle_folded, take_permit
from fleetcraft.spool.publish import LedgerWriter
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.requests import commit
from fleetcraft.spool.spool import Spool
from fleetcraft.testing.files import Crash, CrashingFiles, FaultyFiles, LostReplyFiles, Operation
from tests.support import upkeep
from tests.support.upkeep import (
    AtOperation,
    Template,
    bury_the_dead,
    drain,
    names_of_all,
    offers,
    publish,
    publish_many,
)

CHANGING = ("rename", "link", "unlink", "create")


@pytest.fixture
def small_classes(monkeypatch):
    """Fold at 3 batches, and let classes grow by 3."""
    monkeypatch.setattr(foldgroups, "FOLD_AT", 3)
    monkeypatch.setattr(foldgroups, "FACTOR", 100)


@pytest.fixture
def spool(tmp_path):
    return Spool.open(str(tmp_path / "spool"), create=True)


def exactly_once(root: str, expected: dict[tuple[int, int], int] | None = None) -> None:
    found = offers(root)
    assert found, "nothing is offered at all"
    assert set(found.values()) == {1}, [task for task, count in found.items() if count != 1]
    if expected is not None:
        assert {(batch, index) for batch, index, _ in found} == set(expected)


def tasks_of(batches: list[int], size: int) -> dict[tuple[int, int], int]:
    return {(batch, index): 1 for batch in batches for index in range(size)}


def leftovers(root: str) -> list[str]:
    """Files that a spool at rest does not have: asides, drafts, claims, indexes of nobody."""
    spool = Spool.open(root)
    spool.refresh()
    known = {f"{batch.number}.jsonl" for batch in spool.batches()}
    large = [batch.publication for batch in spool.batches() if not batch.is_small]
    known |= {f"{publication}.{end}" for publication in large for end in ("idx", "names")}
    return sorted(set(os.listdir(spool.layout.batches)) - known) + [
        token.name for token in spool.tokens().tokens if token.life
    ]


def test_64_batches_become_one_with_the_same_ids_names_and_contents(spool):
    numbers = publish_many(spool, 64)

    report = fold_small(spool)

    assert (report.folded, report.into) == (64, [65])
    assert sorted(os.listdir(spool.layout.batches)) == ["65.jsonl"]
    assert os.listdir(spool.layout.tokens) == ["c1.500.65.0-64.g0.a1"]
    fresh = Spool.open(spool.layout.root)
    fresh.refresh()
    assert fresh.total() == 64
    assert [fresh.find(f"t{place}-0") for place in range(64)] == [TaskId(number, 0) for number in numbers]
    assert fresh.task(TaskId(8, 0)) == {"cwd": "/", "name": "t7-0", "command": ["true", "t7-0"]}
    assert os.listdir(spool.layout.workers) == [], "a fold leaves no life behind"


def test_63_batches_stay_as_they_are(spool):
    publish_many(spool, 63)

    assert fold_small(spool).folded == 0
    assert len(os.listdir(spool.layout.batches)) == 63
    assert maybe_fold(spool) is None


def test_folds_are_folded_again_and_every_id_survives(spool, monkeypatch):
    monkeypatch.setattr(foldgroups, "FOLD_AT", 4)
    monkeypatch.setattr(foldgroups, "FACTOR", 4)
    numbers: list[int] = []
    for place in range(37):
        numbers += publish_many(spool, 1, first=place)
        fold_small(spool)

    assert len(spool.batches()) <= 3 * 3
    fresh = Spool.open(spool.layout.root)
    fresh.refresh()
    assert fresh.total() == 37
    assert [fresh.find(f"t{place}-0") for place in range(37)] == [TaskId(number, 0) for number in numbers]
    assert sum(token.count for token in fresh.tokens().tokens) == 37
    exactly_once(spool.layout.root, tasks_of(numbers, 1))
    assert check(None, fresh).findings == []


def test_only_equal_requests_and_priorities_share_a_ledger(spool, small_classes):
    for place in range(3):
        publish(spool, [f"plain{place}"])
        publish(spool, [f"gpu{place}"], request=Request(gpus=1))
        publish(spool, [f"urgent{place}"], priority=900)

    assert fold_small(spool).folded == 9
    assert sorted((batch.lane, batch.priority, batch.count) for batch in spool.batches()) == [
        ("c1", 500, 3), ("c1", 900, 3), ("g1", 500, 3),
    ]  # fmt: skip


def test_what_somebody_holds_is_left_alone(spool, small_classes):
    numbers = publish_many(spool, 4)
    publish(spool, ["waits"], held=True)
    worker = Life.begin(spool)
    token = next(token for token in spool.tokens().tokens if token.batch == numbers[0])
    os.rename(spool.layout.token(token.name), spool.layout.token(token.owned(CLAIM, worker.id).name))

    assert fold_small(spool).folded == 3
    assert {batch.number for batch in spool.batches()} == {numbers[0], 5, 6}
    exactly_once(spool.layout.root)


def test_defaults_are_shared_and_their_size_is_bounded(spool, small_classes):
    for place in range(6):
        publish(spool, [f"t{place}"], defaults={"cwd": "/", "env": {"N": str(place % 2) * 1000}})

    assert fold_small(spool, limits=FoldLimits(defaults_bytes=1500)).into == [7, 8]

    spool.refresh()
    assert [len(batch.header["defaults"]) for batch in spool.batches()] == [1, 1]
    assert {spool.task(TaskId(number, 0))["env"]["N"][0] for number in (1, 3, 5)} == {"0"}


def test_ended_batches_are_folded_without_an_offer(spool, small_classes):
    numbers = publish_many(spool, 3, size=2)
    worker = Life.begin(spool)
    drain(spool, worker)

    report = fold_small(spool)

    assert report.folded == 3
    assert os.listdir(spool.layout.tokens) == []
    assert [batch.header["offers"] for batch in spool.batches()] == [False]
    reader = SpoolFold(spool)
    reader.refresh()
    assert all(reader.fold.verdict(number, 1).state == "succeeded" for number in numbers)
    assert check(None, spool).problems == []


def test_a_batch_with_one_unfinished_task_has_not_ended(spool, small_classes):
    numbers = publish_many(spool, 3, size=2)
    worker = Life.begin(spool)
    drain(spool, worker)
    os.unlink(os.path.join(worker.folder, "journal.jsonl"))
    again = Life.begin(spool)
    for number in numbers:
        upkeep.succeed(again, number, 0, 1)

    assert fold_small(spool).folded == 0


def test_a_retry_that_was_offered_while_its_batch_was_folded_moves_along(spool, small_classes):
    numbers = publish_many(spool, 3, size=2)
    drain(spool, Life.begin(spool))
    fold_small(spool)
    late = Token(lane="c1", priority=500, batch=numbers[1], start=1, stop=2, gen=1)
    spool.files.create(spool.layout.token(late.name))

    assert settle_folded(spool, spool.tokens().tokens) == (1, 0)
    assert os.listdir(spool.layout.tokens) == ["c1.500.4.3-4.g1.a1"]


def test_ended_batches_are_left_to_others_where_reading_would_take_long(spool, small_classes):
    publish_many(spool, 3)
    drain(spool, Life.begin(spool))

    assert fold_small(spool, limits=FoldLimits(journal_bytes=10)).folded == 0
    assert fold_small(spool, limits=FoldLimits(journal_bytes=100_000)).folded == 3


def test_a_damaged_ledger_is_left_for_check_to_show(spool, small_classes):
    numbers = publish_many(spool, 4)
    path = spool.layout.ledger(numbers[2])
    with open(path, "rb+") as ledger:
        ledger.truncate(os.path.getsize(path) - 5)
    fresh = Spool.open(spool.layout.root)

    report = fold_small(fresh)

    assert report.folded == 3
    assert str(path) in report.damaged[0]
    assert os.path.exists(path)


# --- crashes -------------------------------------------------------------------------------------------------------


def crash_points(template: Template, act: Callable[[Spool], object]) -> Iterator[tuple[str, Operation]]:
    """Run `act` and die before every single file operation, each time in a fresh copy."""
    at = 0
    while True:
        root = template.copy()
        files = CrashingFiles(at=at)
        try:
            act(Spool.open(root, files=files))
        except Crash:
            assert files.crashed is not None
            yield root, files.crashed
        else:
            assert files.crashed is None
            assert at > 20, "the action did not do what this test is about"
            return
        finally:
            shutil.rmtree(root)
        at += 1


def waiting_batches(spool: Spool) -> None:
    publish_many(spool, 3, size=25)


def ended_batches(spool: Spool) -> None:
    publish_many(spool, 3, size=25)
    life = Life.begin(spool)
    drain(spool, life)
    assert life.close()


def fold_waiting(spool: Spool) -> None:
    fold_small(spool)


@pytest.mark.slow
def test_a_crash_anywhere_in_a_fold_loses_and_doubles_nothing(tmp_path, small_classes):
    template = Template(tmp_path, waiting_batches)
    expected = tasks_of([1, 2, 3], 25)
    ends: Counter[str] = Counter()
    for root, crashed in crash_points(template, fold_waiting):
        spool = Spool.open(root)
        bury_the_dead(spool)
        report = check(None, spool, repair=True)
        assert report.problems == [], (crashed, report.findings)
        exactly_once(root, expected)
        assert sorted(names_of_all(root)) == sorted(f"t{a}-{b}" for a in range(3) for b in range(25)), crashed
        assert leftovers(root) == [], crashed
        ends["folded" if spool.is_folded(1) else "as before"] += 1
        # Whoever folds next is not hindered by what was left.
        fold_small(Spool.open(root))
        exactly_once(root, expected)
        spool.refresh()
        assert spool.is_folded(1), crashed
    assert ends["folded"] > 5
    assert ends["as before"] > 5


@pytest.mark.slow
def test_a_crash_anywhere_in_a_fold_of_ended_batches_changes_no_outcome(tmp_path, small_classes):
    template = Template(tmp_path, ended_batches)
    for root, crashed in crash_points(template, fold_waiting):
        spool = Spool.open(root)
        bury_the_dead(spool)
        report = check(None, spool, repair=True)
        assert report.problems == [], (crashed, report.findings)
        assert (report.tasks, report.unfinished, report.tokens) == (75, 0, 0), crashed
        assert leftovers(root) == [], crashed
        fold_small(Spool.open(root))
        spool.refresh()
        assert spool.is_folded(1), crashed
        assert len(set(names_of_all(root))) == 75, crashed


@pytest.mark.parametrize("number", (errno.EIO, errno.ESTALE))
@pytest.mark.slow
def test_an_error_anywhere_in_a_fold_loses_and_doubles_nothing(tmp_path, small_classes, number):
    template = Template(tmp_path, waiting_batches)
    at = 0
    while True:
        root = template.copy()
        count = iter(range(10_000))
        files = FaultyFiles(fault=lambda _operation, n=at, count=count: number if next(count) == n else None)  # type: ignore[misc]
        try:
            fold_small(Spool.open(root, files=files))
        except (OSError, FleetcraftError):
            pass
        exactly_once(root, tasks_of([1, 2, 3], 25)) if not files.failed else None
        bury_the_dead(Spool.open(root))
        assert check(None, Spool.open(root), repair=True).problems == [], files.failed
        exactly_once(root, tasks_of([1, 2, 3], 25))
        assert leftovers(root) == [], files.failed
        shutil.rmtree(root)
        if not files.failed:
            break
        at += 1
    assert at > 20


@pytest.mark.slow
def test_a_lost_reply_anywhere_in_a_fold_loses_and_doubles_nothing(tmp_path, small_classes):
    template = Template(tmp_path, waiting_batches)
    at = 0
    while True:
        root = template.copy()
        count = iter(range(10_000))
        files = LostReplyFiles(
            lose=lambda operation, n=at, count=count: operation.kind in CHANGING and next(count) == n,  # type: ignore[misc]
            retransmitted=True,
        )
        try:
            fold_small(Spool.open(root, files=files))
        except (OSError, FleetcraftError):
            pass
        bury_the_dead(Spool.open(root))
        assert check(None, Spool.open(root), repair=True).problems == [], files.lost
        exactly_once(root, tasks_of([1, 2, 3], 25))
        shutil.rmtree(root)
        if not files.lost:
            break
        at += 1
    assert at > 10


# --- others at work ------------------------------------------------------------------------------------------------


def interleave(template: Template, other: Callable[[str], object]) -> Iterator[str]:
    """Fold, with `other` acting at every single operation, each time in a fresh copy."""
    at = 0
    while True:
        root = template.copy()
        files = AtOperation(at, lambda root=root: other(root))  # type: ignore[misc]
        fold_small(Spool.open(root, files=files))
        if not files.acted:
            assert at > 20
            return
        yield root
        shutil.rmtree(root)
        at += 1


@pytest.mark.slow
def test_an_enqueue_at_any_moment_of_a_fold_keeps_its_number_and_its_name(tmp_path, small_classes):
    def enqueue(root: str) -> None:
        spool = Spool.open(root)
        assert publish(spool, ["late"]) in (4, 5)

    for root in interleave(Template(tmp_path, waiting_batches), enqueue):
        exactly_once(root)
        assert Counter(names_of_all(root)).most_common(1)[0][1] == 1
        assert len(names_of_all(root)) == 76
        assert check(None, Spool.open(root)).findings == []


@pytest.mark.slow
def test_the_same_enqueue_at_any_moment_of_a_fold_finds_its_names(tmp_path, small_classes):
    def enqueue_again(root: str) -> None:
        writer = LedgerWriter(Spool.open(root), Request(), 500, False, [upkeep.DEFAULTS])
        writer.add("t1-7", b'{"command":["true","t1-7"],"name":"t1-7"}')
        done = writer.commit()
        assert (done.added, done.existing) == (0, 1)

    for root in interleave(Template(tmp_path, waiting_batches), enqueue_again):
        exactly_once(root, tasks_of([1, 2, 3], 25))
        assert len(names_of_all(root)) == 75


@pytest.mark.slow
def test_a_second_folder_at_any_moment_gives_way(tmp_path, small_classes):
    for root in interleave(Template(tmp_path, waiting_batches), lambda root: fold_small(Spool.open(root))):
        exactly_once(root, tasks_of([1, 2, 3], 25))
        assert leftovers(root) == []


@pytest.mark.slow
def test_check_with_repair_at_any_moment_of_a_fold_disturbs_nothing(tmp_path, small_classes):
    def repair(root: str) -> None:
        assert check(None, Spool.open(root), repair=True).problems == []

    for root in interleave(Template(tmp_path, waiting_batches), repair):
        exactly_once(root, tasks_of([1, 2, 3], 25))
        assert leftovers(root) == []


@pytest.mark.slow
def test_a_worker_that_drains_at_any_moment_of_a_fold_runs_each_task_once(tmp_path, small_classes):
    def work(root: str) -> None:
        spool = Spool.open(root)
        life = Life.begin(spool)
        drain(spool, life)
        life.close()

    for root in interleave(Template(tmp_path, waiting_batches), work):
        work(root)
        reader = SpoolFold(Spool.open(root))
        reader.refresh()
        assert reader.fold.counts()[TaskState.SUCCEEDED] == 75
        assert sum(reader.fold.verdict(batch, index).duplicates for batch in (1, 2, 3) for index in range(25)) == 0
        assert check(None, Spool.open(root)).problems == []


@pytest.mark.parametrize("fate", ("waits", "claimed", "reaped"))
@pytest.mark.slow
def test_a_retry_at_any_moment_of_a_fold_of_its_ended_batch_is_offered_once(tmp_path, small_classes, fate):
    """It is opened in the coordinates of the old batch, and somebody may claim it and die, all during the fold."""

    def retry(root: str) -> None:
        spool = Spool.open(root)
        spool.refresh()
        place = spool.places()[2]
        at = place.offset + 7
        token = Token(lane="c1", priority=500, batch=place.cover.number, start=at, stop=at + 1, gen=1)
        spool.files.create(spool.layout.token(token.owned(DRAFT, "q01").name))
        commit(spool, {"kind": "retry", "owner": "q01", "items": [[2, 1, [[7, 8]]]]}, lambda _number: "b2.1.json", 1)
        os.rename(spool.layout.token(token.owned(DRAFT, "q01").name), spool.layout.token(token.name))
        if fate == "waits":
            return
        worker = Life.begin(spool)
        os.rename(spool.layout.token(token.name), spool.layout.token(token.owned(CLAIM, worker.id).name))
        if fate == "reaped":
            upkeep.pretend_dead(spool, worker.id)
            upkeep.reap_all(spool)

    for root in interleave(Template(tmp_path, ended_batches), retry):
        bury_the_dead(Spool.open(root))
        worker = Life.begin(Spool.open(root))
        taken = None
        for _ in range(3):
            worker.spool.refresh()
            for token in worker.spool.tokens().tokens:
                taken = taken or (None if token.form else take(worker, token))
        assert taken is not None
        assert [origin[:3] for origin in taken[1].origins(taken[0].start, taken[0].stop)] == [(2, 7, 8)]
        assert taken[0].gen == 1
        assert len(remaining(worker.spool, taken[1], taken[0], SpoolFold(worker.spool).fold)) == 1
        assert len(os.listdir(worker.spool.layout.tokens)) == 1
        assert check(None, Spool.open(root)).problems == []


@pytest.mark.slow
def test_a_folder_that_was_reaped_while_it_slept_cannot_commit_any_more(tmp_path, small_classes):
    """At any moment: its claims go back, somebody runs them, and what it wakes up to do changes nothing."""
    template = Template(tmp_path, waiting_batches)
    at, stopped, finished = 0, 0, 0
    while True:
        root = template.copy()
        running: list[tuple[Life, list[Token]]] = []
        files = AtOperation(at, lambda root=root, running=running: running.append(reap_and_claim(root)))  # type: ignore[misc]
        try:
            fold_small(Spool.open(root, files=files))
            finished += 1
        except (LifeEnded, FleetcraftError, OSError):
            stopped += 1
        if not files.acted:
            break
        finish(*running[0])
        bury_the_dead(Spool.open(root))
        spool = Spool.open(root)
        assert check(None, spool, repair=True).problems == [], at
        last = Life.begin(spool)
        drain(spool, last)
        reader = SpoolFold(spool)
        reader.refresh()
        assert reader.fold.counts()[TaskState.SUCCEEDED] == 75, at
        assert sum(reader.fold.verdict(batch, index).duplicates for batch in (1, 2, 3) for index in range(25)) == 0, at
        shutil.rmtree(root)
        at += 1
    assert stopped > 10
    assert finished > 1


def reap_and_claim(root: str) -> tuple[Life, list[Token]]:
    """The sleeper is taken for dead, and a worker takes everything that waits then."""
    spool = Spool.open(root)
    bury_the_dead(spool)
    life = Life.begin(spool)
    claims = []
    for token in spool.tokens().tokens:
        if not token.form:
            claims.append(token.owned(CLAIM, life.id))
            os.rename(spool.layout.token(token.name), spool.layout.token(claims[-1].name))
    spool.refresh()
    # What it runs it knows by now: the batch may be folded before it is done.
    for claim in claims:
        batch = spool.batch(claim.batch)
        assert batch is not None
        for number, first, last, _ in batch.origins(claim.start, claim.stop):
            upkeep.succeed(life, number, first, last, attempt=claim.attempt)
    return life, claims


def finish(life: Life, claims: list[Token]) -> None:
    for claim in claims:
        os.unlink(life.spool.layout.token(claim.name))
    assert life.close()


@pytest.mark.slow
def test_a_slow_publisher_never_takes_the_number_of_a_folded_batch(tmp_path, small_classes):
    """Between its look at the numbers and its link, three others publish, fold, and the old names disappear."""
    folded: list[int] = []

    def others(root: str) -> None:
        spool = Spool.open(root)
        publish_many(spool, 3)
        folded.append(fold_small(spool).folded)

    template = Template(tmp_path, lambda _spool: None)
    numbers: list[int] = []
    while True:
        root = template.copy()
        files = AtOperation(len(numbers), lambda root=root: others(root))  # type: ignore[misc]
        number = publish(Spool.open(root, files=files), ["slow"])
        if not files.acted:
            break
        numbers.append(number)
        exactly_once(root)
        assert sorted(names_of_all(root)) == ["slow", "t0-0", "t1-0", "t2-0"]
        assert check(None, Spool.open(root), repair=True).problems == []
        exactly_once(root)
        assert leftovers(root) == []
        shutil.rmtree(root)
    assert folded.count(3) > 5
    assert set(numbers) >= {1, 5}


# --- the permit ----------------------------------------------------------------------------------------------------


def test_a_folder_that_died_is_reaped_by_the_next_enqueue(spool, small_classes, monkeypatch):
    publish_many(spool, 3)
    spool.refresh()
    monkeypatch.setattr(os, "urandom", bytes)  # the one call in 16 that takes a closer look
    dead = Life.begin(spool, kind="maintenance")
    assert take_permit(dead, FOLDING)
    assert maybe_fold(spool) is None
    upkeep.pretend_dead(spool, dead.id)

    report = maybe_fold(spool)

    assert report is not None
    assert report.folded == 3
    assert permit_holder(spool, FOLDING) is None


def test_maybe_fold_reports_no_storage_error(tmp_path, small_classes, monkeypatch):
    root = str(tmp_path / "spool")
    publish_many(Spool.open(root, create=True), 3)
    monkeypatch.setattr(os, "urandom", bytes)
    full = FaultyFiles(fault=lambda operation: errno.ENOSPC if operation.kind == "make_folder" else None)
    spool = Spool.open(root, files=full)
    spool.refresh()

    assert maybe_fold(spool) is None
    assert full.failed
    exactly_once(root, tasks_of([1, 2, 3], 1))


def test_paths_of_folds_name_their_life():
    layout = Layout("/spool")
    publication = fold_publication("node-1-abc")
    assert publication.endswith("-node-1-abc")
    assert layout.aside(publication).startswith("/spool/batches/.f")
