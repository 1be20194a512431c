"""One suite for the file seam: the real file system and every shipped fake with its fault switched off.

The second half shows each fake's fault, so that a test that uses it stands on something seen.
"""

from __future__ import annotations

import errno
import os

import pytest

from fleetcraft.store.files import Files, write_all
from fleetcraft.testing.clock import ManualClock
from fleetcraft.testing.files import (
    GROWING,
    METADATA,
    Crash,
    CrashingFiles,
    DelayedFiles,
    FaultyFiles,
    FullFiles,
    LostReplyFiles,
    PwriteNfsFiles,
    RecordingFiles,
    StaleFiles,
    TornListingFiles,
    WrappedFiles,
)
from fleetcraft.testing.scheduler import Act, Interleaver, in_turns
from tests.support.descriptors import closing_leftovers


@pytest.fixture(autouse=True)
def descriptors():
    with closing_leftovers():
        yield


_KINDS = {
    "real": Files,
    "wrapped": WrappedFiles,
    "recording": RecordingFiles,
    "faulty": FaultyFiles,
    "lost replies": LostReplyFiles,
    "delayed": lambda: DelayedFiles(delay_s=0.0),
    "full": lambda: FullFiles(full=False),
    "crashing": CrashingFiles,
    "stale": lambda: StaleFiles(None, ManualClock(), 0.0),
    "a stale cache of one client": lambda: StaleFiles(None, ManualClock(), 60.0),
    "torn listings": TornListingFiles,
    "appends by position": PwriteNfsFiles,
    "stacked": lambda: LostReplyFiles(StaleFiles(FullFiles(full=False), ManualClock(), 60.0)),
}


@pytest.fixture(params=_KINDS, ids=lambda kind: kind.replace(" ", "-"))
def files(request):
    return _KINDS[request.param]()


@pytest.fixture
def at(tmp_path):
    return lambda name: str(tmp_path / name)


def test_create_is_exclusive_and_empty(files, at):
    assert not files.exists(at("a"))
    files.create(at("a"))
    assert files.exists(at("a"))
    assert (files.read(at("a")), files.size(at("a"))) == (b"", 0)
    with pytest.raises(FileExistsError):
        files.create(at("a"))
    assert os.stat(at("a")).st_mode & 0o777 == 0o600


def test_rename_moves_replaces_and_fails_without_a_source(files, at):
    files.create(at("a"))
    files.rename(at("a"), at("b"))
    assert (files.exists(at("a")), files.exists(at("b"))) == (False, True)
    files.create(at("a"))
    files.rename(at("a"), at("b"))
    assert files.names(at(""))[0] == ["b"]
    with pytest.raises(FileNotFoundError):
        files.rename(at("a"), at("c"))


def test_link_is_exclusive_and_shares_the_inode(files, at):
    files.create(at("a"))
    files.link(at("a"), at("b"))
    assert files.identity(at("a")) == files.identity(at("b"))
    files.create(at("c"))
    with pytest.raises(FileExistsError):
        files.link(at("c"), at("b"))
    assert files.identity(at("c")) != files.identity(at("b"))
    assert files.identity(at("d")) is None


def test_unlink_and_remove_folder(files, at):
    files.create(at("a"))
    files.unlink(at("a"))
    assert not files.exists(at("a"))
    with pytest.raises(FileNotFoundError):
        files.unlink(at("a"))
    files.make_folder(at("f"))
    files.create(at("f/x"))
    with pytest.raises(OSError, match="not empty"):
        files.remove_folder(at("f"))
    files.unlink(at("f/x"))
    files.remove_folder(at("f"))
    assert files.folders(at("")) == []


def test_listing_shows_regular_files_and_counts_the_rest(files, at):
    files.make_folder(at("folder"))
    files.create(at("a"))
    os.symlink(at("a"), at("link"))
    assert files.names(at("")) == (["a"], 2)
    assert files.folders(at("")) == ["folder"]
    assert os.stat(at("folder")).st_mode & 0o777 == 0o700
    with pytest.raises(FileExistsError):
        files.make_folder(at("folder"))
    with pytest.raises(FileNotFoundError):
        files.names(at("nowhere"))


def test_a_file_that_is_there_is_added_to(files, at):
    with pytest.raises(FileNotFoundError):
        files.open_append(at("a"))
    descriptor = files.open_new(at("a"), append=True)
    write_all(files, descriptor, b"one\n")
    files.close(descriptor)
    descriptor = files.open_append(at("a"))
    write_all(files, descriptor, b"two\n")
    files.close(descriptor)
    assert files.read(at("a")) == b"one\ntwo\n"


@pytest.mark.parametrize("append", (False, True))
def test_a_new_file_is_written_synced_and_read(files, at, append):
    descriptor = files.open_new(at("a"), append=append)
    assert files.write(descriptor, b"one ") == 4
    assert files.write(descriptor, b"two") == 3
    files.sync(descriptor)
    files.close(descriptor)
    files.sync_folder(at(""))
    assert files.read(at("a")) == b"one two"
    assert (files.size(at("a")), files.modified_ns(at("a"))) == (7, os.stat(at("a")).st_mtime_ns)
    reader = files.open_read(at("a"))
    assert os.read(reader, 100) == b"one two"
    files.close(reader)
    with pytest.raises(FileExistsError):
        files.open_new(at("a"))
    with pytest.raises(FileNotFoundError):
        files.read(at("b"))
    with pytest.raises(FileNotFoundError):
        files.open_read(at("b"))


def test_every_operation_of_the_seam_is_wrapped(at):
    seam = {name for name in vars(Files) if not name.startswith("_")}
    assert {name for name in vars(WrappedFiles) if not name.startswith("_")} == seam
    assert seam >= METADATA | GROWING


def test_recording_names_what_was_done(at):
    files = RecordingFiles()
    descriptor = files.open_new(at("a"))
    files.write(descriptor, b"x")
    files.close(descriptor)
    files.rename(at("a"), at("b"))
    assert [str(operation) for operation in files.operations] == ["open_new a", "write a", "close a", "rename a -> b"]


def test_faulty_fails_before_anything_happens(at):
    files = FaultyFiles(fault=lambda operation: errno.EDQUOT if operation.kind == "create" else None)
    with pytest.raises(OSError, match="quota") as caught:
        files.create(at("a"))
    assert caught.value.errno == errno.EDQUOT
    assert not os.path.exists(at("a"))


@pytest.mark.parametrize(("retransmitted", "number"), ((False, errno.EIO), (True, errno.EEXIST)))
def test_a_lost_reply_comes_after_the_deed(at, retransmitted, number):
    files = LostReplyFiles(lose=lambda operation: operation.kind == "create", retransmitted=retransmitted)
    with pytest.raises(OSError, match="a") as caught:
        files.create(at("a"))
    assert caught.value.errno == number
    assert os.path.exists(at("a"))
    assert [operation.kind for operation in files.lost] == ["create"]


def test_delays_are_for_metadata_only(at):
    clock = ManualClock()
    files = DelayedFiles(delay_s=0.5, sleep=clock.advance)
    descriptor = files.open_new(at("a"))
    files.write(descriptor, b"x")
    files.sync(descriptor)
    files.close(descriptor)
    files.rename(at("a"), at("b"))
    assert clock.mono() == 1_001.0


@pytest.mark.parametrize("kind", ("write", "sync", "close"))
def test_a_full_disk_may_say_so_late(at, kind):
    files = FullFiles(kinds=frozenset({kind}), spare=1)
    first = files.open_new(at("a"))
    second = files.open_new(at("b"))
    step = {"write": lambda descriptor: files.write(descriptor, b"xx"), "sync": files.sync, "close": files.close}[kind]
    step(first)
    with pytest.raises(OSError, match="No space left"):
        step(second)
    files.full = False
    if kind != "close":
        step(second)
        files.close(first)
        files.close(second)


def test_a_short_write_stores_half(at):
    files = FullFiles(kinds=frozenset({"write"}), short_writes=True)
    descriptor = files.open_new(at("a"))
    assert files.write(descriptor, b"123456") == 3
    with pytest.raises(OSError, match="No space left"):
        files.write(descriptor, b"4")
    files.full = False
    assert files.write(descriptor, b"45") == 2
    assert files.read(at("a")) == b"12345"


@pytest.mark.parametrize("after", (False, True))
def test_a_dead_process_does_nothing_more(at, after):
    files = CrashingFiles(at=1, after=after)
    files.create(at("a"))
    with pytest.raises(Crash):
        files.create(at("b"))
    for last_wish in (lambda: files.unlink(at("a")), lambda: files.names(at("")), lambda: files.create(at("c"))):
        with pytest.raises(Crash):
            last_wish()
    assert sorted(os.listdir(at(""))) == (["a", "b"] if after else ["a"])
    assert not issubclass(Crash, Exception)


def test_a_stale_client_sees_its_own_deeds_and_others_only_later(at):
    clock = ManualClock()
    mine, other = StaleFiles(None, clock, 5.0), Files()
    assert mine.names(at(""))[0] == []
    assert not mine.exists(at("theirs"))
    other.create(at("theirs"))
    mine.create(at("mine"))
    assert mine.names(at(""))[0] == ["mine"]
    assert not mine.exists(at("theirs"))
    assert mine.identity(at("theirs")) is None
    with pytest.raises(FileNotFoundError):
        mine.open_read(at("theirs"))
    clock.advance(5.0)
    assert sorted(mine.names(at(""))[0]) == ["mine", "theirs"]
    assert mine.read(at("theirs")) == b""
    other.unlink(at("theirs"))
    assert mine.exists(at("theirs"))
    with pytest.raises(OSError, match="Stale") as caught:
        mine.read(at("theirs"))
    assert caught.value.errno == errno.ESTALE
    other.create(at("late"))
    with pytest.raises(FileExistsError):
        mine.create(at("late"))
    assert mine.exists(at("late"))


def test_a_rename_in_the_middle_of_a_torn_listing_shows_twice_or_not_at_all(at):
    seen = set()
    for number in range(16):
        source, target = at(f"{number}"), at(f"{number}-renamed")
        Files().create(source)
        moves = iter([lambda source=source, target=target: os.rename(source, target)])

        class Meanwhile(Files):
            def names(self, folder, moves=moves):
                found = super().names(folder)
                next(moves, lambda: None)()
                return found

        seen.add(len(TornListingFiles(Meanwhile()).names(at(""))[0]))
        os.unlink(target)
    assert seen == {0, 1, 2}


def test_two_clients_that_append_by_position_overwrite_each_other(at):
    first, second = PwriteNfsFiles(), PwriteNfsFiles()
    one = first.open_new(at("log"), append=True)
    two = second.open_shared(at("log"))
    first.write(one, b"aaaa")
    second.write(two, b"bb")
    second.write(two, b"bbbbbb")
    first.write(one, b"aa")
    first.close(one)
    second.close(two)
    assert first.read(at("log")) == b"bbbbaabb"


def test_actors_take_turns_as_told_and_a_killed_one_leaves_no_trace_more(at):
    def work(name, count):
        def run(files):
            try:
                for number in range(count):
                    files.create(at(f"{name}{number}"))
            finally:
                files.create(at(f"{name}-last-wish"))

        return run

    def play(order):
        stage = Interleaver()
        stage.add("a", work("a", 3))
        stage.add("b", work("b", 3))
        turns = iter(order)
        stage.run(lambda waiting: (next(turns, None) or next(iter(waiting)), in_turns(waiting)[1]))
        return [f"{name} {operation}" for name, _, operation in stage.log]

    told = play("abba")
    assert told[:4] == ["a create a0", "b create b0", "b create b1", "a create a1"]
    assert len(told) == 8
    for name in os.listdir(at("")):
        os.unlink(at(name))
    assert play("abba") == told


def test_a_kill_falls_between_two_operations(at):
    def run(files):
        try:
            files.create(at("one"))
            files.create(at("two"))
        finally:
            files.unlink(at("one"))

    stage = Interleaver()
    actor = stage.add("a", run)
    stage.step("a")
    stage.step("a", Act.KILL)
    assert (actor.ended, actor.killed, os.listdir(at(""))) == (True, True, ["one"])
    lost = stage.add("b", lambda files: files.create(at("three")))
    stage.step("b", Act.LOSE)
    assert isinstance(lost.error, OSError)
    assert os.path.exists(at("three"))
    with pytest.raises(OSError, match="Input/output"):
        stage.run(in_turns)
