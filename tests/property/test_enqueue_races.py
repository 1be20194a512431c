"""A name is published once: whoever publishes meanwhile, and wherever a publisher dies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fleetcraft.core.errors import NameTaken, OutOfReach
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files
from fleetcraft.testing.files import Crash, CrashingFiles, FaultyFiles, LostReplyFiles, Operation, WrappedFiles
from tests.support.enqueuing import cover, make_spool, names, options, stream, tasks

T = TypeVar("T")

Described = list[dict[str, Any]]

SMALL: Described = [{"name": f"s{place}", "command": ["true"]} for place in range(3)]
# Two resource shapes and one task that waits: three batches. The first is large enough to have an index.
MIXED: Described = [
    *({"name": f"m{place}", "command": ["true"]} for place in range(70)),
    {"name": "gpu", "command": ["true"], "gpus": 1},
    {"name": "late", "command": ["true"], "after": ["m1", "gpu"]},
]


class Interrupting(WrappedFiles):
    """Lets somebody else do something just before operation number `at`."""

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


def _count_operations(folder: Path, described: Described) -> int:
    files = CrashingFiles()
    stream(make_spool(folder, files), described)
    return files.count


def _check_once(root: Path, described: Described) -> None:
    fresh = Spool.open(str(root / "spool"))
    assert sorted(names(fresh)) == sorted(str(task["name"]) for task in described)
    assert set(cover(fresh).values()) == {1}
    assert sum(cover(fresh).values()) == len(described)


@pytest.mark.slow
@pytest.mark.parametrize("described", (SMALL, MIXED), ids=("one batch", "three batches"))
def test_a_publisher_that_meets_another_at_any_step_adds_nothing_twice(tmp_path, described):
    steps = _count_operations(tmp_path / "count", described)
    assert steps > 10
    for at in range(steps):
        folder = tmp_path / str(at)
        added: list[int] = []

        def publish(folder: Path = folder, added: list[int] = added) -> None:
            added.append(stream(Spool.open(str(folder / "spool")), described).added)

        mine = stream(make_spool(folder, Interrupting(at, publish)), described)
        assert mine.added + sum(added) == len(described), f"step {at}"
        _check_once(folder, described)


def test_with_other_content_one_of_two_is_refused_at_every_step(tmp_path):
    one: Described = [{"name": "n", "command": ["one"]}]
    other: Described = [{"name": "n", "command": ["other"]}]
    steps = _count_operations(tmp_path / "count", one)
    for at in range(steps):
        folder = tmp_path / str(at)
        refused: list[NameTaken] = []

        def publish(folder: Path = folder, refused: list[NameTaken] = refused) -> None:
            try:
                stream(Spool.open(str(folder / "spool")), other)
            except NameTaken as error:
                refused.append(error)

        try:
            stream(make_spool(folder, Interrupting(at, publish)), one)
        except NameTaken as error:
            refused.append(error)
        assert len(refused) == 1, f"step {at}"
        assert "the first is task 1.0" in str(refused[0])
        _check_once(folder, one)


@pytest.mark.slow
@pytest.mark.parametrize("after", (False, True), ids=("before", "after"))
@pytest.mark.parametrize("described", (SMALL, MIXED), ids=("one batch", "three batches"))
def test_a_publisher_that_dies_at_any_step_is_made_good_by_the_same_command(tmp_path, described, after):
    steps = _count_operations(tmp_path / "count", described)
    for at in range(steps):
        folder = tmp_path / str(at)
        with pytest.raises(Crash):
            stream(make_spool(folder, CrashingFiles(at=at, after=after)), described)
        again = stream(Spool.open(str(folder / "spool")), described)
        assert again.added + again.existing == len(described), f"step {at}"
        _check_once(folder, described)


@pytest.mark.slow
@pytest.mark.parametrize("described", (SMALL, MIXED), ids=("one batch", "three batches"))
def test_an_error_at_any_step_leaves_no_damage(tmp_path, described):
    """Every operation fails once with EIO: the answer is an error or success, and the next try ends it."""
    for at in range(_count_operations(tmp_path / "count", described)):
        folder = tmp_path / str(at)
        left = [at]

        def fail_once(operation: Operation, left: list[int] = left) -> int | None:
            del operation
            left[0] -= 1
            return 5 if left[0] == -1 else None

        try:
            stream(make_spool(folder, FaultyFiles(fault=fail_once)), described)
        except OutOfReach as error:
            assert error.hint  # noqa: PT017  success is as good an answer
        again = stream(Spool.open(str(folder / "spool")), described)
        assert again.added + again.existing == len(described), f"step {at}"
        _check_once(folder, described)
        assert [task["command"] for task in tasks(Spool.open(str(folder / "spool")))] == [["true"]] * len(described)


def test_a_lost_reply_to_the_commit_is_taken_for_what_it_was(tmp_path):
    files = LostReplyFiles(lose=lambda operation: operation.kind == "link", retransmitted=True)
    result = stream(make_spool(tmp_path, files), SMALL)
    assert files.lost
    assert (result.added, result.batches) == (3, [1])
    _check_once(tmp_path, SMALL)


def test_many_publishers_at_once_publish_every_name_once(tmp_path):
    """Eight threads with lists that overlap, all held at the same start."""
    root = str(tmp_path / "spool")
    Spool.open(root, create=True)
    start = threading.Barrier(8)
    added: list[int] = []

    def publish(place: int) -> None:
        spool = Spool.open(root)
        start.wait()
        for turn in range(5):
            described = [{"name": f"t{turn}-{(place + step) % 10}", "command": ["true"]} for step in range(5)]
            added.append(stream(spool, described).added)

    threads = [threading.Thread(target=publish, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert sum(added) == 50
    _check_once(tmp_path, [{"name": f"t{turn}-{place}"} for turn in range(5) for place in range(10)])


def test_enqueuing_one_by_one_folds_small_batches_and_loses_none(tmp_path):
    spool = make_spool(tmp_path)
    for place in range(400):
        stream(spool, [{"name": f"t{place}", "command": ["true"]}], options())
    fresh = Spool.open(str(tmp_path / "spool"))
    assert len(names(fresh)) == 400
    assert set(cover(fresh).values()) == {1}
    assert len(fresh.batches()) < 300
