"""The worker's side of progress files: bounded, not fooled by what a task puts there, gone after the attempt."""

from __future__ import annotations

import os

import pytest

from fleetcraft.core.progress import MAX_FILE_BYTES, encode
from fleetcraft.store.files import Files
from fleetcraft.testing.files import RecordingFiles
from fleetcraft.workers.payload import Place, slot_environment
from fleetcraft.workers.progress import ProgressFiles

WORD = encode({"done": 1}, task="1.0", attempt="1", at_utc=1.0)


@pytest.fixture
def progress(tmp_path):
    return ProgressFiles(Files(), str(tmp_path))


def put(progress, data=WORD):
    with open(progress.path(0), "wb") as target:
        target.write(data)


def test_reading_leaves_the_file_and_taking_does_not(progress):
    put(progress)
    assert progress.read(0, "1.0", 1) == progress.take(0, "1.0", 1, wall_s=1.0, now_s=9.0) == {"done": 1, "at_utc": 1.0}
    assert progress.read(0, "1.0", 1) is None
    assert progress.take(0, "1.0", 1, wall_s=1.0, now_s=9.0) is None


def test_another_attempts_file_is_removed_and_not_believed(progress):
    put(progress)
    assert progress.take(0, "1.1", 1, wall_s=1.0, now_s=9.0) is None
    assert not os.path.exists(progress.path(0))


def test_tasks_of_a_moment_cost_no_look_up_but_one_in_a_while(tmp_path):
    files = RecordingFiles()
    progress = ProgressFiles(files, str(tmp_path))
    for place in range(1000):
        progress.take(place % 4, f"1.{place}", 1, wall_s=0.001, now_s=place * 0.004)
    assert [operation.kind for operation in files.operations] == ["read_small"] * 4


def test_what_a_short_attempt_left_is_not_believed_until_somebody_looked(progress):
    unnamed = b'{"schema":"fleetcraft.progress/1","done":1}'
    assert progress.take(0, "1.0", 1, wall_s=0.001, now_s=1.0) is None
    assert progress.take(0, "1.1", 1, wall_s=0.001, now_s=1.1) is None
    put(progress, unnamed)
    assert progress.read(0, "1.2", 1) is None
    assert progress.take(0, "1.2", 1, wall_s=1.0, now_s=2.1) is None
    put(progress, unnamed)
    assert progress.read(0, "1.3", 1) == progress.take(0, "1.3", 1, wall_s=1.0, now_s=3.1) == {"done": 1}


def test_too_much_is_not_read(progress):
    put(progress, WORD.rstrip() + b" " * MAX_FILE_BYTES)
    assert progress.read(0, "1.0", 1) is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ("pipe", "link"))
def test_a_pipe_or_a_link_holds_nobody_up(progress, tmp_path, kind):
    if kind == "pipe":
        os.mkfifo(progress.path(0))
    else:
        (tmp_path / "elsewhere").write_bytes(WORD)
        os.symlink(tmp_path / "elsewhere", progress.path(0))
    assert progress.read(0, "1.0", 1) is None
    assert progress.take(0, "1.0", 1, wall_s=1.0, now_s=9.0) is None
    assert not os.path.lexists(progress.path(0))


def test_only_a_slot_of_its_own_gets_the_variable():
    def variable(progress: str) -> bytes | None:
        place = Place(life="h-1-0", slot=0, gpus=(), deadline_utc=None, progress=progress)
        return slot_environment({b"FLEETCRAFT_PROGRESS": b"/another"}, place).get(b"FLEETCRAFT_PROGRESS")

    assert variable("/life/progress-0.json") == b"/life/progress-0.json"
    assert variable("") is None
