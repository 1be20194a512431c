"""Whole or not at all: publishing a file, its order of operations, and what every error leaves behind."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from fleetcraft.core.errors import NotAllowed, OutOfReach, StorageFull
from fleetcraft.store.files import (
    Files,
    ensure_folder,
    explain,
    is_private,
    publish_file,
    write_all,
)
from fleetcraft.testing.files import (
    Crash,
    CrashingFiles,
    FaultyFiles,
    FullFiles,
    LostReplyFiles,
    RecordingFiles,
)


def _steps(tmp_path, *, durable=True):
    recording = RecordingFiles()
    publish_file(recording, str(tmp_path / "state.json"), b"new", durable=durable)
    return [operation.kind for operation in recording.operations]


def test_the_order_is_aside_sync_rename_sync_folder(tmp_path):
    assert _steps(tmp_path) == ["open_new", "write", "sync", "close", "rename", "sync_folder"]
    assert _steps(tmp_path, durable=False) == ["open_new", "write", "close", "rename"]
    assert (tmp_path / "state.json").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["state.json"]


@pytest.mark.parametrize("error", (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO))
@pytest.mark.parametrize("at", range(5))
def test_an_error_at_any_step_leaves_the_old_content_and_nothing_else(tmp_path, at, error):
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    steps = iter(range(6))
    files = FaultyFiles(fault=lambda operation: error if operation.kind != "unlink" and next(steps) == at else None)
    with pytest.raises(OSError, match=os.strerror(error)) as caught:
        publish_file(files, str(path), b"new")
    assert caught.value.errno == error
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.json"]


@pytest.mark.parametrize("after", (False, True))
@pytest.mark.parametrize("at", range(6))
def test_a_crash_at_any_step_leaves_old_or_new_whole(tmp_path, at, after):
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    with pytest.raises(Crash):
        publish_file(CrashingFiles(at=at, after=after), str(path), b"new")
    assert path.read_bytes() == (b"new" if at + after > 4 else b"old")


def test_a_disk_that_fills_up_in_the_middle_of_a_write_changes_nothing(tmp_path):
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="No space left"):
        publish_file(FullFiles(kinds=frozenset({"write"}), short_writes=True), str(path), b"new content")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.json"]


def test_two_writers_never_share_a_name_aside(tmp_path):
    path = str(tmp_path / "state.json")
    recording = RecordingFiles()
    for _ in range(2):
        publish_file(recording, path, b"x")
    asides = [operation.path for operation in recording.operations if operation.kind == "open_new"]
    assert len(set(asides)) == 2


def test_write_all_goes_on_after_short_writes(tmp_path):
    class Short(Files):
        def write(self, descriptor, data):
            return super().write(descriptor, data[:3])

    files = Short()
    descriptor = files.open_new(str(tmp_path / "x"))
    write_all(files, descriptor, b"0123456789")
    files.close(descriptor)
    assert (tmp_path / "x").read_bytes() == b"0123456789"


def test_only_regular_files_are_listed_and_nothing_is_opened(tmp_path):
    (tmp_path / "plain").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    os.symlink(tmp_path / "plain", tmp_path / "link")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    listener.close()
    assert Files().names(str(tmp_path)) == (["plain"], 4)
    assert Files().folders(str(tmp_path)) == ["folder"]


@pytest.mark.parametrize("number", (errno.ENOENT, errno.ESTALE))
def test_absence_has_two_spellings(tmp_path, monkeypatch, number):
    def gone(path):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "lstat", gone)
    assert Files().exists("x") is False
    assert Files().identity("x") is None


def test_an_error_is_never_read_as_absence(monkeypatch):
    def broken(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "lstat", broken)
    for look in (Files().exists, Files().identity):
        with pytest.raises(OSError, match="Input/output"):
            look("x")


def test_a_folder_that_somebody_else_just_made_is_fine(tmp_path):
    path = str(tmp_path / "tokens")
    ensure_folder(Files(), path)
    ensure_folder(Files(), path)
    assert is_private(path)
    # Made, and the server answers the client's second try: it exists.
    ensure_folder(LostReplyFiles(lose=lambda _: True, retransmitted=True), str(tmp_path / "workers"))
    with pytest.raises(StorageFull, match="Cannot create"):
        ensure_folder(FullFiles(), str(tmp_path / "requests"))


@pytest.mark.parametrize(
    ("number", "kind", "name"),
    (
        (errno.ENOSPC, StorageFull, "ENOSPC"),
        (errno.EDQUOT, StorageFull, "EDQUOT"),
        (errno.EFBIG, StorageFull, "EFBIG"),
        (errno.EROFS, StorageFull, "EROFS"),
        (errno.EIO, OutOfReach, "EIO"),
        (errno.EACCES, NotAllowed, "EACCES"),
    ),
)
def test_the_sentence_names_the_error(number, kind, name):
    error = explain(OSError(number, os.strerror(number)), "Cannot sync /x/journal")
    assert type(error) is kind
    assert str(error).startswith("Cannot sync /x/journal: ")
    assert name in str(error)
    assert error.exit_code == (2 if kind is NotAllowed else 75)


@pytest.mark.parametrize(
    ("number", "exit_code", "word"),
    (
        (errno.EACCES, 2, "permissions of that path"),
        (errno.EPERM, 2, "permissions of that path"),
        (errno.ENOTDIR, 2, "a file and no folder"),
        (errno.ESTALE, 75, "run the same command again"),
        (errno.EIO, 75, "run the same command again"),
        (errno.EROFS, 75, "mounted for writing"),
    ),
)
def test_only_where_a_permission_is_the_cause_the_same_command_is_no_help(number, exit_code, word):
    error = explain(OSError(number, os.strerror(number), "/x/records"), "Cannot write into /x")
    assert isinstance(error, OutOfReach)
    assert error.exit_code == exit_code
    assert word in error.hint
