"""Frozen scripts: what was enqueued runs, whatever happens to the file afterwards."""

from __future__ import annotations

import hashlib
import os
import stat

import pytest

from fleetcraft.actions.enqueue import EnqueueOptions
from fleetcraft.actions.snapshots import freeze
from fleetcraft.core.errors import SpoolDamaged, StorageFull, TaskInvalid, UsageError
from fleetcraft.testing.files import Crash, CrashingFiles, FullFiles
from tests.support.enqueuing import batches, make_spool, stream, tasks

SCRIPT = b"#!/bin/sh\necho one\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of the person, who stands in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "run.sh").write_bytes(SCRIPT)
    return folder


@pytest.fixture
def spool(tmp_path):
    return make_spool(tmp_path)


def frozen_options(*paths, **defaults):
    return EnqueueOptions(defaults=defaults, snapshot=paths)


def frozen_path(spool, name="run.sh", content=SCRIPT):
    return f"{spool.layout.snapshots}/{hashlib.sha256(content).hexdigest()}/{name}"


def test_a_frozen_file_keeps_its_content_and_stands_under_its_digest(spool, place):
    os.chmod(place / "run.sh", 0o750)
    frozen = freeze(spool, "run.sh")
    (place / "run.sh").write_bytes(b"changed")
    assert frozen.path == frozen_path(spool)
    assert frozen.sha256 == hashlib.sha256(SCRIPT).hexdigest()
    assert frozen.size_bytes == len(SCRIPT)
    with open(frozen.path, "rb") as source:
        assert source.read() == SCRIPT
    assert stat.S_IMODE(os.stat(frozen.path).st_mode) == 0o500
    assert [name for name in os.listdir(spool.layout.snapshots) if name.startswith(".")] == []


def test_the_same_content_is_kept_once_and_other_content_beside_it(spool, place):
    one = freeze(spool, "run.sh")
    again = freeze(spool, str(place / "run.sh"))
    (place / "run.sh").write_bytes(SCRIPT + b"# more\n")
    other = freeze(spool, "run.sh")
    assert one.path == again.path != other.path
    assert len(os.listdir(spool.layout.snapshots)) == 2


def test_an_edited_copy_is_found_out(spool, place):
    frozen = freeze(spool, "run.sh")
    os.chmod(frozen.path, 0o600)
    with open(frozen.path, "ab") as target:
        target.write(b"# oops\n")
    with pytest.raises(SpoolDamaged, match="was changed after it was made"):
        freeze(spool, "run.sh")


@pytest.mark.parametrize("after", (False, True))
def test_a_death_at_any_step_leaves_nothing_that_another_try_trusts(tmp_path, place, after):
    counting = CrashingFiles()
    freeze(make_spool(tmp_path / "count", counting), "run.sh")
    for at in range(counting.count):
        folder = tmp_path / str(at)
        with pytest.raises(Crash):
            freeze(make_spool(folder, CrashingFiles(at=at, after=after)), "run.sh")
        frozen = freeze(make_spool(folder), "run.sh")
        with open(frozen.path, "rb") as source:
            assert source.read() == SCRIPT


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, place):
    files = FullFiles(spare=1)
    spool = make_spool(tmp_path, files)
    with pytest.raises(StorageFull, match=r"Cannot freeze run\.sh"):
        freeze(spool, "run.sh")
    files.full = False
    assert os.listdir(spool.layout.snapshots) == []


@pytest.mark.parametrize("path", ("nowhere.sh", "."))
def test_what_is_no_file_cannot_be_frozen(spool, place, path):
    with pytest.raises(UsageError):
        freeze(spool, path)


@pytest.mark.parametrize(
    ("content", "said"),
    (
        (b"#!/bin/sh\r\necho\r\n", "line 1 has a CR"),
        (b"#!/usr/bin/env python\r", "line 1 has a CR"),
        (b"\xef\xbb\xbf#!/bin/sh\necho\n", "line 1 begins with a byte order mark"),
    ),
)
def test_scripts_that_the_kernel_would_misread_are_refused(spool, place, content, said):
    (place / "bad.sh").write_bytes(content)
    with pytest.raises(TaskInvalid, match=f"bad.sh: {said}"):
        freeze(spool, "bad.sh")
    for command in (["./bad.sh"], [str(place / "bad.sh")]):
        with pytest.raises(TaskInvalid, match=r"^list:2: .*bad\.sh: line 1"):
            stream(spool, [{"command": ["true"]}, {"name": "x", "command": command}], EnqueueOptions())
    assert batches(spool) == []


@pytest.mark.parametrize(
    "content", (b"#!/bin/sh\necho a\r\n", b"no script\r\n", b"#!/bin/sh", b"", b"\xef\xbb\xbftext")
)
def test_other_content_is_none_of_our_business(spool, place, content):
    (place / "ok.sh").write_bytes(content)
    assert stream(spool, [{"command": ["./ok.sh"]}, {"command": ["./absent.sh"]}], EnqueueOptions()).added == 2


@pytest.mark.parametrize("word", ("run.sh", "./run.sh", "{place}/run.sh"))
@pytest.mark.parametrize("given", ("run.sh", "./run.sh", "{place}/run.sh"))
def test_every_way_to_write_the_path_is_replaced(spool, place, word, given):
    word, given = word.format(place=place), given.format(place=place)
    stream(spool, [{"name": "a", "command": ["sh", word, "--in", "run.shx", "x=run.sh"]}], frozen_options(given))
    task = tasks(spool)[0]
    path = frozen_path(spool)
    assert task["command"] == ["sh", path, "--in", "run.shx", "x=run.sh"]
    assert task["snapshot"] == {path: hashlib.sha256(SCRIPT).hexdigest()}


def test_a_task_that_does_not_name_the_file_stays_as_it_is(spool, place):
    stream(spool, [{"command": ["sh", "run.sh"]}, {"name": "other", "command": ["true"]}], frozen_options("run.sh"))
    assert "snapshot" not in tasks(spool)[1]


def test_from_another_folder_a_relative_path_is_another_file(spool, place, tmp_path):
    listed = [{"command": ["sh", "run.sh"]}, {"command": ["sh", "run.sh"], "cwd": str(tmp_path)}]
    stream(spool, [*listed, {"command": ["sh", "work/run.sh"], "cwd": str(tmp_path)}], frozen_options("run.sh"))
    assert [task["command"][1].startswith(spool.layout.snapshots) for task in tasks(spool)] == [True, False, True]


@pytest.mark.parametrize(
    ("line", "frozen"),
    (
        ("sh run.sh", "sh {}"),
        ("cd x && sh ./run.sh; echo $HOME", "cd x && sh {}; echo $HOME"),
        ("sh 'run.sh' a", "sh {} a"),
        ('sh "run.sh"|cat', "sh {}|cat"),
        ("(sh run.sh)", "(sh {})"),
        ("sh run.sh>out", "sh {}>out"),
        ("sh run.sh2 my-run.sh run.sh", "sh run.sh2 my-run.sh {}"),
    ),
)
def test_in_a_shell_line_the_path_is_replaced_where_it_is_a_word(spool, place, line, frozen):
    stream(spool, line, frozen_options("run.sh"))
    assert tasks(spool)[0]["shell"] == frozen.format(frozen_path(spool))
    assert len(tasks(spool)[0]["snapshot"]) == 1


@pytest.mark.parametrize(
    "line", ("bash -c 'sh run.sh'", "sh --file=run.sh", 'sh "$HOME"run.sh', 'sh run.sh && eval "sh run.sh"')
)
def test_in_quotes_or_inside_a_word_it_is_refused_with_a_way_out(spool, place, line):
    with pytest.raises(TaskInvalid, match=r"list:1: the shell line names 'run\.sh' where it cannot be frozen"):
        stream(spool, line, frozen_options("run.sh"))


def test_a_file_that_no_task_names_is_refused(spool, place):
    with pytest.raises(TaskInvalid, match=r"--snapshot run\.sh: no task's command has it as a word"):
        stream(spool, "true", frozen_options("run.sh"))
    assert batches(spool) == []


def test_odd_names_are_quoted_in_shell_lines(tmp_path, place):
    odd = "it's a \u00e9.sh"
    (place / odd).write_bytes(SCRIPT)
    spool = make_spool(tmp_path / "my spool")
    stream(spool, "sh 'it'\\''s a \u00e9.sh' x", frozen_options(odd))
    path = frozen_path(spool, odd)
    quoted = "'" + path.replace("'", "'\"'\"'") + "'"
    assert tasks(spool)[0]["shell"] == f"sh {quoted} x"
    assert os.path.exists(path)


def test_enqueuing_again_is_idempotent_and_an_edit_is_other_content(spool, place):
    listed = [{"name": "a", "command": ["sh", "run.sh"]}]
    assert stream(spool, listed, frozen_options("run.sh")).added == 1
    assert stream(spool, listed, frozen_options("run.sh")).existing == 1
    (place / "run.sh").write_bytes(SCRIPT + b"#\n")
    with pytest.raises(UsageError, match="command, snapshot differ"):
        stream(spool, listed, frozen_options("run.sh"))
