"""Field cases of area 1 (queues and locks on shared file systems), each as a test of its kind.

Left to the rooms that they belong to: what a remote upload does to modification times, purge warnings of doctor
(F1-26), and sentences about HDF5 in a task's own output (F1-30).
"""

from __future__ import annotations

import ast
import errno
import fcntl
import json
import os
import random
import resource
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.core.errors import LifeEnded, OutOfReach, SpoolDamaged, SpoolError, StorageFull
from fleetcraft.core.names import CLAIM
from fleetcraft.core.records import dump
from fleetcraft.core.states import TaskState
from fleetcraft.spool import host
from fleetcraft.spool.check import check
from fleetcraft.spool.claims import Piece, release, return_whole, split, take
from fleetcraft.spool.evidence import Evidence, Liveness, ReapPolicy
from fleetcraft.spool.life import HEARTBEAT, Life, read_identity, read_json
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.reap import Reaper
from fleetcraft.spool.requests import STOP, RequestLog, ask
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files, ensure_folder, publish_file
from fleetcraft.store.journal import JournalEnded, JournalWriter, is_storage_full, read_lines
from fleetcraft.testing.clock import ManualClock
from fleetcraft.testing.files import (
    DelayedFiles,
    FaultyFiles,
    FullFiles,
    LostReplyFiles,
    PwriteNfsFiles,
    RecordingFiles,
    StaleFiles,
)
from fleetcraft.testing.scheduler import Act
from fleetcraft.workers.payload import prove_outputs
from tests.property.spool_play import Script, Stage, Worker, publish, publisher, reap
from tests.support.descriptors import closing_leftovers


@pytest.fixture(autouse=True)
def descriptors():
    with closing_leftovers():
        yield


SOURCE = Path(__file__).parents[2] / "src" / "fleetcraft"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def spool(tmp_path, clock):
    return Spool.open(str(tmp_path / "s"), create=True, clock=clock)


def _fold(spool):
    spool.refresh()
    reader = SpoolFold(spool)
    reader.refresh()
    return reader


def _in_threads(count, work):
    """Run `work(number)` in threads that start together; what one of them raises fails the test."""
    barrier, errors = threading.Barrier(count), []

    def run(number):
        barrier.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001  handed to the test below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


def _spread(spool, count):
    """One batch whose tasks stand under a token each."""
    publish(spool, [f"t{number}" for number in range(count)])
    life = Life.begin(spool, kind="maintenance")
    taken = take(life, spool.tokens().tokens[0])
    assert taken is not None
    split(life, taken[0], None, [Piece(number, number + 1, 1) for number in range(count)])
    life.close()


def _contend(spool, workers):
    """Workers that take, run and release one task at a time until nothing waits; which task ran how often."""
    ran: Counter[int] = Counter()
    lock = threading.Lock()

    def work(number):
        mine = Spool(spool.layout.root)
        life = Life.begin(mine)
        while tokens := [token for token in mine.tokens().tokens if not token.form]:
            random.Random(number + len(tokens)).shuffle(tokens)
            for token in tokens[:20]:
                taken = take(life, token)
                if taken is None:
                    continue
                with lock:
                    ran[token.start] += 1
                body = {"b": 1, "i": token.start, "g": 0, "a": 1}
                life.record({"t": "started", **body})
                life.record({"t": "receipt", **body, "o": "succeeded", "final": "succeeded"})
                release(life, taken[0])
        life.close()

    _in_threads(workers, work)
    return ran


# F1-01


def test_f1_01_two_appenders_damage_a_shared_file_and_every_intact_record_is_read(tmp_path):
    path = str(tmp_path / "shared.jsonl")
    first = PwriteNfsFiles()
    one = JournalWriter(first, path)
    second = PwriteNfsFiles()
    two = second.open_shared(path)
    dice = random.Random(7)
    written = 0
    for number in range(500):
        one.append(dump({"n": number, "who": "one", "pad": "x" * dice.randrange(30)}))
        if number % 3 == 0:
            written += second.write(two, b'{"who":"two"}\n' + b"\0" * dice.randrange(40))
    lines = list(read_lines(Files(), path))
    damaged = [line for line in lines if line.record is None]
    intact = [line.record for line in lines if line.record is not None]
    content = Path(path).read_bytes()
    assert damaged
    assert all(0 <= line.offset < len(content) and line.length > 0 for line in damaged)
    assert [record["n"] for record in intact] == sorted({record["n"] for record in intact})
    for line in lines:  # what is called intact stands in the file exactly so
        if line.record is not None:
            assert dump(line.record).encode() in content[line.offset : line.offset + line.length]


def test_f1_01_no_file_of_a_spool_has_two_writers(tmp_path):
    stage = Stage(str(tmp_path / "s"), fails={(0, 1)})
    with stage.patched():
        stage.enter("first", publisher(stage, ["a", "b", "c", "d"]))
        for number in range(3):
            stage.enter(f"w{number}", Worker(stage, f"w{number}", Script([number, 2, 1, 3])))
        stage.enter("r", reap(stage, "r"))
        dice = random.Random(3)
        stage.play.run(lambda waiting: (dice.choice(list(waiting)), Act.GRANT))
    writers: dict[str, set[str]] = {}
    for name, _, operation in stage.play.log:
        if operation.kind in ("write", "open_new"):
            writers.setdefault(operation.path, set()).add(name)
    assert len(writers) > 10
    assert {path: names for path, names in writers.items() if len(names) > 1} == {}


# F1-03


def test_f1_03_four_hundred_ends_in_one_second_are_four_hundred_statuses(spool):
    publish(spool, [f"t{number}" for number in range(400)])

    def work(number):
        life = Life.begin(Spool(spool.layout.root))
        for index in range(number * 50, number * 50 + 50):
            body = {"b": 1, "i": index, "g": 0, "a": 1}
            life.record({"t": "started", **body})
            outcome = "failed" if index % 10 == 0 else "succeeded"
            life.record({"t": "receipt", **body, "o": outcome, "final": outcome})
        life.close()

    _in_threads(8, work)
    reader = _fold(spool)
    assert reader.fold.counts()[TaskState.SUCCEEDED] == 360
    assert reader.fold.counts()[TaskState.FAILED] == 40
    for life in spool.lives():  # a summary is derived: with it and without it the answer is the same
        folder = spool.layout.life(life)
        one = SpoolFold(spool)
        one._read(one.lives.setdefault(life, reader.lives[life].__class__(life)))
        body = {"version": 1, "covers": one.lives[life].offset, "fold": one.fold.as_json()}
        publish_file(Files(), os.path.join(folder, "summary.json"), dump(body).encode())
    assert _fold(spool).fold.counts() == reader.fold.counts()


# F1-04 and F1-05


def test_f1_04_no_lock_of_any_kind_is_used():
    # The claim is the spool's. What lies in a person's own home, beside it, may be locked.
    rooms = ("core", "store", "spool", "workers", "telemetry", "fleet", "actions", "readmodel", "cli")
    found = []
    for path in (path for room in rooms for path in (SOURCE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            name = node.attr if isinstance(node, ast.Attribute) else node.name if isinstance(node, ast.alias) else ""
            if name in {"flock", "lockf", "F_SETLK", "F_SETLKW", "F_OFD_SETLK", "LOCK_EX", "O_EXLOCK"}:
                found.append(f"{path}: {name}")
    assert found == []


@pytest.mark.parametrize("number", (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, 524, 0))
def test_f1_05_claiming_does_not_depend_on_locks_that_fail_or_exclude_nobody(spool, monkeypatch, number):
    def lock(*_):
        if number:
            raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", lock)
    monkeypatch.setattr(fcntl, "lockf", lock)
    count = 300
    _spread(spool, count)
    ran = _contend(spool, 4)
    assert ran == Counter(range(count))
    assert _fold(spool).fold.counts()[TaskState.SUCCEEDED] == count


# F1-06


@pytest.mark.parametrize("number", (errno.ESTALE, errno.ENOENT))
@pytest.mark.parametrize("kind", ("rename", "exists", "read", "open_read", "unlink", "size", "modified_ns"))
def test_f1_06_estale_means_gone_and_is_asked_again(spool, kind, number):
    publish(spool, ["a", "b"])
    worker = Life.begin(spool)
    once = iter([number])
    files = FaultyFiles(fault=lambda operation: next(once, None) if operation.kind == kind else None)
    other = Spool(spool.layout.root, files=files, clock=spool.clock)
    life = Life.begin(spool)
    life.spool, life.files = other, files
    other.refresh()
    reader = SpoolFold(other, durable=True)
    reader.refresh()
    RequestLog(other).refresh()
    taken = take(life, other.tokens().tokens[0]) or take(life, other.tokens().tokens[0])
    assert taken is not None
    release(life, taken[0])
    reader.refresh()
    assert set(reader.lives) >= {worker.id, life.id}


# F1-08


def test_f1_08_the_receipt_decides_and_an_invisible_output_is_not_a_failure(spool, tmp_path):
    from fleetcraft.readmodel.verify import Found, verify_outputs

    publish(spool, ["a"], outputs=["model.pt"])
    life = Life.begin(spool)
    body = {"b": 1, "i": 0, "g": 0, "a": 1}
    life.record({"t": "started", **body})
    proof = {"path": str(tmp_path / "model.pt"), "size": 3, "sha256": "0" * 64}
    life.record({"t": "receipt", **body, "o": "succeeded", "final": "succeeded", "outputs": [proof]})
    life.close()
    assert _fold(spool).fold.verdict(1, 0).state is TaskState.SUCCEEDED
    assert [(entry.found, entry.good) for entry in verify_outputs(spool)] == [(Found.MISSING, False)]
    assert _fold(spool).fold.verdict(1, 0).state is TaskState.SUCCEEDED


def test_f1_08_a_ledger_that_hides_gives_the_claim_back_within_bounds(tmp_path, clock):
    root = str(tmp_path / "s")
    Spool.open(root, create=True)
    stale = StaleFiles(None, clock, 40.0)
    spool = Spool(root, files=stale, clock=clock)
    life = Life.begin(spool)
    stale.exists(spool.layout.ledger(1))
    spool.refresh()
    publish(Spool(root), ["a"])
    token = Spool(root).tokens().tokens[0]
    assert take(life, token) is None
    assert Spool(root).tokens().tokens == [token]
    assert stale.stale_answers < 40
    clock.advance(40.0)
    assert take(life, token) is not None


# F1-09


def test_f1_09_many_processes_create_one_spool_at_once(tmp_path):
    root = str(tmp_path / "deep" / "er" / "s")
    _in_threads(50, lambda _: Spool.open(root, create=True).tokens())
    assert Spool.open(root).tokens().tokens == []


def test_f1_09_a_folder_that_exists_but_is_not_seen_yet_is_made(tmp_path, clock, monkeypatch):
    files = StaleFiles(
        LostReplyFiles(lose=lambda operation: operation.kind == "make_folder", retransmitted=True), clock, 2.0
    )
    path = str(tmp_path / "tokens")
    assert not files.exists(path)
    ensure_folder(files, path)
    monkeypatch.setattr(os, "makedirs", lambda *_, **__: (_ for _ in ()).throw(FileExistsError(errno.EEXIST, "exists")))
    assert Spool.open(str(tmp_path / "s"), create=True).tokens().tokens == []


# F1-11

_STRAYS = (
    ".nfs000000000001", ".task.json.Z5oY3j", "a.json~", "._a.json", "core.123", "c1.500.1.0-1.g0.a1.tmp",
    "c1.500.1.0-1.g0.a1@", "C1.500.1.0-1.g0.a1", "c1.500.1.1-1.g0.a1", "x" * 230, "\u00e4\udcff", " ",
)  # fmt: skip


@pytest.mark.parametrize("folder", ("tokens", "batches", "requests", "uses", "segments"))
def test_f1_11_foreign_names_are_counted_and_neither_opened_nor_deleted(spool, folder):
    publish(spool, ["a"])
    path = os.path.join(spool.layout.root, folder)
    for name in _STRAYS:
        Path(os.fsdecode(os.path.join(path, name))).touch()
    os.mkdir(os.path.join(path, "subdirectory"))
    os.mkfifo(os.path.join(path, "9.json"))  # opening it would block for ever
    os.mkfifo(os.path.join(path, "9.jsonl"))
    files = RecordingFiles()
    other = Spool(spool.layout.root, files=files, clock=spool.clock)
    before = sorted(os.listdir(path))
    _fold(other)
    life = Life.begin(other)
    Reaper(life, SpoolFold(other, durable=True)).step()
    check(None, other, repair=True, pause=spool.clock.advance)
    life.close()
    assert set(os.listdir(path)) >= set(before)
    foreign = {*_STRAYS, "9.json", "9.jsonl", "subdirectory"}
    opened = {
        os.path.basename(operation.path) for operation in files.operations if operation.kind in ("read", "open_read")
    }
    assert opened & foreign == set()
    if folder == "tokens":
        assert other.tokens().foreign == len(foreign)


# F1-12


def _elsewhere(life):
    """Make a life one of another machine, whose processes cannot be looked at from here."""
    path = os.path.join(life.folder, "identity.json")
    changed = json.loads(Path(path).read_bytes()) | {"boot_id": "another", "machine_id": "another", "host": "far"}
    Path(path).write_text(json.dumps(changed))


@settings(max_examples=25)
@given(
    skew_s=st.floats(-86_400, 86_400),
    steps=st.lists(st.tuples(st.integers(0, 40), st.floats(-7_200, 86_400)), max_size=3),
    dies_at=st.integers(10, 30),
)
def test_f1_12_silence_is_counted_on_the_observers_own_clock(tmp_path_factory, skew_s, steps, dies_at):
    observer, far = ManualClock(), ManualClock(utc_s=1_700_000_000.0 + skew_s)
    root = str(tmp_path_factory.mktemp("skew") / "s")
    publish(Spool.open(root, create=True, clock=observer), ["a"])
    worker = Life.begin(Spool(root, clock=far))
    taken = take(worker, worker.spool.tokens().tokens[0])
    assert taken is not None
    _elsewhere(worker)
    spool = Spool(root, clock=observer)
    spool.refresh()
    reaper = Reaper(Life.begin(spool), SpoolFold(spool, durable=True), ReapPolicy(lease_s=60.0))
    reaped_at = None
    for turn in range(60):
        if turn < dies_at:
            worker.beat({"state": "up"})
        for clock in (observer, far):
            clock.advance(10.0)
        for at, step in steps:
            if at == turn:
                observer.jump_utc(step)
        if any(report.state == "dead" for report in reaper.step()):
            reaped_at = turn
            break
    assert reaped_at is not None
    assert 5 <= reaped_at - dies_at <= 7


# F1-16


def test_f1_16_the_first_change_is_a_rename_to_a_name_with_the_claimants_id(spool):
    publish(spool, ["a"])
    recording = RecordingFiles()
    other = Spool(spool.layout.root, files=recording, clock=spool.clock)
    life = Life.begin(other)
    token = other.tokens().tokens[0]
    recording.operations.clear()
    assert take(life, token) is not None
    first = recording.operations[0]
    assert (first.kind, first.target) == ("rename", other.layout.token(token.owned(CLAIM, life.id).name))
    assert "read" not in [operation.kind for operation in recording.operations[:2]]


def test_f1_16_many_workers_and_tasks_of_no_length_each_run_once(spool):
    count = 1_200
    _spread(spool, count)
    ran = _contend(spool, 16)
    assert ran == Counter(range(count))
    reader = _fold(spool)
    assert reader.fold.counts()[TaskState.SUCCEEDED] == count
    assert spool.tokens().tokens == []


# F1-18


def test_f1_18_a_resumed_worker_finds_that_it_lost_everything_and_counts_nothing(spool, clock, monkeypatch):
    monkeypatch.setattr(host, "processes_marked", lambda *_: [])
    publish(spool, ["a"])
    paused = Life.begin(spool)
    other = Life.begin(spool)
    assert paused.id != other.id  # one host, one process: the id is of the start, not of the machine
    taken = take(paused, spool.tokens().tokens[0])
    assert taken is not None
    body = {"b": 1, "i": 0, "g": 0}
    paused.record({"t": "started", "a": 1, **body})

    def paused_seems_dead(identity, *_, **__):
        liveness = Liveness.DEAD if identity.life == paused.id else Liveness.ALIVE
        return Evidence(liveness=liveness, reason="x")

    Reaper(other, SpoolFold(spool, durable=True), judge=paused_seems_dead).step()
    second = take(other, spool.tokens().tokens[0])
    assert second is not None
    assert second[0].attempt == 2
    other.record({"t": "started", "a": 2, **body})
    # The first one wakes.
    with pytest.raises(LifeEnded):
        paused.check_live()
    for wish in (
        lambda: release(paused, taken[0]),
        lambda: split(paused, taken[0], None, [Piece(0, 1, 2)]),
        paused.check_live,
    ):
        with pytest.raises(LifeEnded):
            wish()
    assert [token.name for token in spool.tokens().tokens] == [second[0].name]
    paused.record({"t": "receipt", "a": 1, **body, "o": "abandoned"})
    other.record({"t": "receipt", "a": 2, **body, "o": "succeeded", "final": "succeeded"})
    verdict = _fold(spool).fold.verdict(1, 0)
    assert (verdict.state, verdict.duplicates, verdict.losses) == (TaskState.SUCCEEDED, 0, 0)


# F1-20


def test_f1_20_an_observer_with_a_slow_storage_takes_nobody_for_dead(spool, clock, monkeypatch):
    monkeypatch.setattr(host, "processes_marked", lambda *_: [])
    publish(spool, ["a"])
    worker = Life.begin(spool)
    taken = take(worker, spool.tokens().tokens[0])
    assert taken is not None
    worker.beat({"state": "up"})
    _elsewhere(worker)
    slow = DelayedFiles(delay_s=0.0, sleep=clock.advance)
    observer = Spool(spool.layout.root, files=slow, clock=clock)
    observer.refresh()
    reaper = Reaper(Life.begin(observer), SpoolFold(observer, durable=True), ReapPolicy(lease_s=120.0))
    reaper.step()
    slow.delay_s = 60.0
    until_s = clock.mono() + 1_800.0
    while clock.mono() < until_s:  # nobody's heartbeat gets through meanwhile
        reaper.life.beat({"state": "up"})
        assert {report.state for report in reaper.step()} <= {"live"}
    slow.delay_s = 0.0
    assert [token.name for token in spool.tokens().tokens] == [taken[0].name]
    clock.advance(100.0)
    reaper.life.beat({"state": "up"})
    reaper.step()
    assert [token.name for token in spool.tokens().tokens] == [taken[0].name]
    clock.advance(100.0)  # with a quick storage silence means something again
    reaper.step()
    reaper.step()
    assert [token.attempt for token in spool.tokens().tokens] == [2]


# F1-23


def test_f1_23_any_number_of_failed_saves_leaves_the_old_state(spool):
    publish(spool, ["a"])
    full = FullFiles(full=False)
    other = Spool(spool.layout.root, files=full, clock=spool.clock)
    life = Life.begin(other)
    life.beat({"state": "up", "counts": {"succeeded": 3}})
    ask(other, STOP, reason="x")
    before = {path: path.read_bytes() for path in Path(other.layout.root).rglob("*") if path.is_file()}
    full.full = True
    for _ in range(20):
        for save in (
            lambda: life.beat({"state": "up"}),
            lambda: ask(other, STOP),
            lambda: publish(other, ["b"]),
            lambda: publish_file(full, other.layout.marker, b"{}"),
            lambda: publish_file(full, os.path.join(life.folder, "summary.json"), b"{}"),
            lambda: SpoolFold(other).write_cache(),
        ):
            try:
                save()
            except (OSError, StorageFull):
                continue
    after = {path: path.read_bytes() for path in Path(other.layout.root).rglob("*") if path.is_file()}
    assert after == before


# F1-24


@pytest.mark.parametrize("kind", ("write", "sync", "close", "open_new", "rename"))
@pytest.mark.parametrize("error", (errno.EDQUOT, errno.ENOSPC, errno.EFBIG, errno.EROFS, errno.EIO))
def test_f1_24_every_storage_error_is_told_wherever_it_comes(spool, kind, error):
    publish(spool, ["a"])
    full = FullFiles(error=error, kinds=frozenset({kind}), full=False)
    other = Spool(spool.layout.root, files=full, clock=spool.clock)
    life = Life.begin(other)
    taken = take(life, other.tokens().tokens[0])
    assert taken is not None
    full.full = True
    if kind in ("write", "close", "open_new", "rename"):
        with pytest.raises(OSError, match=os.strerror(error)) as caught:
            life.beat({"state": "up"})
        assert is_storage_full(caught.value) == (error != errno.EIO)
    if kind == "write":
        with pytest.raises(OSError, match=os.strerror(error)):
            life.note("x")
    if kind == "sync":
        life.note("x")
        for _ in range(2):
            with pytest.raises(JournalEnded, match=r"sync"):
                release(life, taken[0])
    if kind == "close":
        with pytest.raises(OSError, match=os.strerror(error)):
            life.journal.close()
    if kind != "close":  # a publication has synced everything before it closes anything
        with pytest.raises(OutOfReach) as told:
            publish(other, ["b"])
        assert told.value.exit_code == 75
    assert taken[0] in spool.tokens().tokens
    full.full = False
    result = publish(other, ["b"])  # work is taken again once there is space
    assert result.added + result.existing == 1
    assert [token.batch for token in spool.tokens().tokens if not token.form] == [2]


def test_f1_24_a_file_size_limit_of_the_kernel_is_a_full_storage(spool):
    life = Life.begin(spool)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with pytest.raises(OSError, match=r"File too large|short write") as caught:
            life.note("x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert is_storage_full(caught.value)
    life.note("y")
    whole = [line.record for line in read_lines(Files(), life.journal.path)]
    assert whole[-1] is not None
    assert whole[-1]["what"] == "y"
    assert whole[:-1] in ([], [None])


# F1-25


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), short=st.booleans())
def test_f1_25_what_was_acknowledged_while_the_storage_wavered_is_there(tmp_path_factory, seed, short):
    dice = random.Random(seed)
    full = FullFiles(kinds=frozenset({"write"}), short_writes=short)
    writer = JournalWriter(full, str(tmp_path_factory.mktemp("flaky") / "journal.jsonl"))
    told, kinds = [], set()
    for number in range(200):
        full.full = dice.random() < 0.05
        try:
            writer.append(dump({"n": writer.number + 1, "value": number}))
        except OSError as error:
            kinds.add(is_storage_full(error))
        else:
            told.append(number)
    full.full = False
    assert kinds <= {True}
    writer.sync()
    writer.close()
    assert [line.record["value"] for line in read_lines(Files(), writer.path) if line.record] == told


def test_f1_25_an_exit_code_of_zero_does_not_vouch_for_outputs(tmp_path):
    good, empty, missing = tmp_path / "good", tmp_path / "empty", tmp_path / "missing"
    good.write_bytes(b"x")
    empty.touch()
    assert prove_outputs({"cwd": str(tmp_path), "outputs": ["good"]})[1] is None
    for path in (empty, missing):
        problem = prove_outputs({"cwd": str(tmp_path), "outputs": ["good", path.name]})[1]
        assert problem is not None
        assert path.name in problem


def test_f1_25_free_space_decides_about_no_outcome():
    for room in ("core", "store", "spool"):
        for path in (SOURCE / room).rglob("*.py"):
            assert not {"statvfs", "disk_usage"} & {
                node.attr for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Attribute)
            }, path


# F1-26


@pytest.mark.parametrize("purged", ("*.jsonl", "*.idx", "*.names"))
def test_f1_26_purged_files_are_a_finding_and_never_an_empty_success(spool, purged):
    names = [f"t{number}" for number in range(70)]
    publish(spool, names)
    publish(spool, ["later"])
    for path in Path(spool.layout.batches).glob(purged):
        if path.name != "2.jsonl":
            path.unlink()
    fresh = Spool(spool.layout.root, clock=spool.clock)
    report = check(None, fresh, pause=spool.clock.advance)
    assert report.problems != []
    fresh = Spool(spool.layout.root, clock=spool.clock)
    fresh.refresh()
    reader = _fold(fresh)
    assert reader.fold.counts()[TaskState.SUCCEEDED] == 0


# F1-27


def test_f1_27_a_listing_is_no_snapshot_and_proves_no_absence(spool):
    count, stop = 120, threading.Event()
    _spread(spool, count)
    real = Spool(spool.layout.root)
    findings: list[object] = []
    totals: list[int] = []

    def work(number):
        if number == 0:
            try:
                for _ in range(12):
                    totals.append(len({token.start for token in Spool(spool.layout.root).tokens().tokens}))
                    report = check(None, Spool(spool.layout.root), pause=lambda _: None)
                    findings.extend(finding for finding in report.findings if finding.serious)
            finally:
                stop.set()
            return
        mine = Spool(real.layout.root)
        life = Life.begin(mine)
        while not stop.is_set():
            for token in [token for token in mine.tokens().tokens if not token.form][number::3]:
                taken = take(life, token)
                if taken is not None:
                    return_whole(life, taken[0])
        life.close()

    _in_threads(4, work)
    assert findings == []
    assert max(totals) == count


def test_f1_27_a_task_that_three_listings_and_all_records_miss_is_reported(spool):
    publish(spool, ["a", "b"])
    os.unlink(spool.layout.token(spool.tokens().tokens[0].name))
    report = check(None, Spool(spool.layout.root, clock=spool.clock), pause=spool.clock.advance)
    assert [finding.kind for finding in report.problems] == ["uncovered"]


# F1-29


def test_f1_29_the_order_of_a_publication_is_written_down_in_its_trace(tmp_path):
    recording = RecordingFiles()
    publish_file(recording, str(tmp_path / "x"), b"content")
    assert [operation.kind for operation in recording.operations] == [
        "open_new", "write", "sync", "close", "rename", "sync_folder",
    ]  # fmt: skip


@pytest.mark.parametrize("damage", (b"", b"\0" * 300, b"{", b"[]", b"\xff\xfe"))
def test_f1_29_a_state_file_of_zeros_is_damage_and_journals_still_speak(spool, damage):
    publish(spool, ["a"])
    life = Life.begin(spool)
    life.beat({"state": "up"})
    body = {"b": 1, "i": 0, "g": 0, "a": 1}
    life.record({"t": "receipt", **body, "o": "succeeded", "final": "succeeded"})
    ask(spool, STOP)
    for path in (
        os.path.join(life.folder, HEARTBEAT), os.path.join(life.folder, "summary.json"),
        os.path.join(life.folder, "identity.json"), os.path.join(spool.layout.segments, "dead.json"),
        os.path.join(spool.layout.requests, "1.json"),
    ):  # fmt: skip
        Path(path).write_bytes(damage)
    assert read_json(Files(), os.path.join(life.folder, HEARTBEAT)) is None
    assert read_identity(Files(), life.folder) is None
    reader = _fold(Spool(spool.layout.root, clock=spool.clock))
    assert reader.fold.verdict(1, 0).state is TaskState.SUCCEEDED
    assert reader.requests.damaged == 1
    Path(spool.layout.ledger(1)).write_bytes(damage)
    with pytest.raises(SpoolDamaged, match=r"1\.jsonl"):
        Spool(spool.layout.root).batch(1)
    Path(spool.layout.marker).write_bytes(damage)
    with pytest.raises(SpoolError, match=r"spool\.json"):
        Spool.open(spool.layout.root)


# F1-30


_BANNED = {"h5py", "tables", "sqlite3", "netCDF4", "dbm", "shelve"}


def test_f1_30_our_own_files_need_no_hdf5_and_no_sqlite():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {module.partition(".")[0] for module in modules} & _BANNED, path
