"""Names are unique even where their hashes are not, whichever way two batches are compared."""

from __future__ import annotations

import pytest

from fleetcraft.core.errors import NameTaken
from fleetcraft.core.resources import Request
from fleetcraft.spool import publish, uniqueness
from fleetcraft.spool.publish import LedgerWriter
from fleetcraft.spool.spool import Spool
from fleetcraft.spool.uniqueness import Known, Spill, SpilledRun
from tests.support.enqueuing import leftovers, make_spool, names


@pytest.fixture
def spool(tmp_path):
    return make_spool(tmp_path)


def write(spool, listed, *, content="true", request=None):
    writer = LedgerWriter(spool, request or Request(), 500, held=False, defaults=[{"cwd": "/"}])
    for name in listed:
        writer.add(name, b'{"command":["%b"],"name":"%b"}' % (content.encode(), name.encode()))
    return writer.commit()


def listed(count, first=0):
    return [f"t{number}" for number in range(first, first + count)]


@pytest.mark.parametrize(("old", "new"), ((10, 10), (3, 100), (500, 5), (500, 400), (5, 500), (1, 1), (70, 70)))
def test_only_new_names_are_added_whatever_the_sizes(spool, old, new):
    write(spool, listed(old))
    result = write(spool, listed(new, first=old // 2))
    known = max(0, min(new, old - old // 2))
    assert (result.added, result.existing) == (new - known, known)
    assert sorted(names(spool)) == sorted(set(listed(old)) | set(listed(new, first=old // 2)))
    assert leftovers(spool) == []


@pytest.mark.parametrize(("old", "new"), ((10, 10), (3, 100), (500, 5), (500, 400)))
def test_other_content_is_found_whatever_the_sizes(spool, old, new):
    write(spool, listed(old))
    with pytest.raises(NameTaken, match=r"task 0: the name .t2. exists already .*first is task 1\.2"):
        write(spool, ["t2", *listed(new - 1, first=1000)], content="false")
    assert len(names(spool)) == old
    assert leftovers(spool) == []


@pytest.mark.parametrize(("old", "new"), ((10, 10), (3, 100), (300, 5), (80, 70)))
def test_colliding_hashes_lose_and_double_nothing(spool, monkeypatch, old, new):
    """All names share three hashes, so every comparison must be settled by the lines."""
    for module in (publish,):
        monkeypatch.setattr(module, "name_hash", lambda name: int(name[1:]) % 3)
    monkeypatch.setattr("fleetcraft.spool.ledger.name_hash", lambda name: int(name[1:]) % 3)
    write(spool, listed(old))
    assert write(spool, listed(old)).added == 0
    result = write(spool, [*listed(new, first=old - 2), *listed(2, first=old - 2)])
    assert (result.added, result.existing) == (new - 2, 4)
    assert sorted(names(spool)) == sorted(listed(old + new - 2))
    spool.refresh()
    for name in listed(old + new - 2):
        task = spool.find(name)
        assert task is not None
        assert spool.task(task)["name"] == name
    with pytest.raises(NameTaken):
        write(spool, ["t1"], content="false")


def test_repeats_inside_a_batch_are_dropped_however_often(spool):
    result = write(spool, ["a", "b", "a", "c", "a", "b"])
    assert (result.added, result.existing) == (3, 3)
    assert names(spool) == ["a", "b", "c"]


def test_a_large_batch_spills_its_hashes_and_finds_all(spool, monkeypatch):
    monkeypatch.setattr(publish, "_RUN_TASKS", 1000)
    many = listed(20_000)
    writer = LedgerWriter(spool, Request(), 500, held=False, defaults=[{"cwd": "/"}])
    for name in many:
        writer.add(name, b'{"command":["true"],"name":"%b"}' % name.encode())
    assert any(isinstance(run, SpilledRun) for run in writer.runs)
    assert writer.commit().added == 20_000
    again = write(spool, [*many, "t20000"])
    assert (again.added, again.existing) == (1, 20_000)
    spool.refresh()
    entries = list(spool.batches()[0].name_entries())
    assert entries == sorted(entries)
    assert len(entries) == 20_000
    for number in (0, 999, 1000, 12_345, 19_999, 20_000):
        assert spool.find(f"t{number}") is not None
    assert leftovers(spool) == []


def test_defaults_that_differ_only_in_the_recorded_environment_are_the_same_tasks(spool):
    one = LedgerWriter(spool, Request(), 500, held=False, defaults=[{"cwd": "/", "base_env": {"PATH": "/a"}}])
    other = LedgerWriter(spool, Request(), 500, held=False, defaults=[{"cwd": "/", "base_env": {"PATH": "/b"}}])
    for writer in (one, other):
        writer.add("a", b'{"command":["true"],"name":"a"}')
    assert one.commit().added == 1
    assert other.commit().existing == 1


def test_equal_lines_under_other_resources_or_defaults_are_other_tasks(spool):
    write(spool, ["a"])
    with pytest.raises(NameTaken, match="the resources differ"):
        write(spool, ["a"], request=Request(gpus=1.0))
    other = LedgerWriter(spool, Request(), 500, held=False, defaults=[{"cwd": "/tmp"}])
    other.add("a", b'{"command":["true"],"name":"a"}')
    with pytest.raises(NameTaken, match="cwd differ"):
        other.commit()


def test_stretches_left_are_the_gaps_between_marks():
    known = Known()
    assert known.left(3) == [(0, 3)]
    for position in (0, 3, 4, 9):
        known.mark(position)
    assert known.left(12) == [(1, 3), (5, 9), (10, 12)]
    assert known.left(10) == [(1, 3), (5, 9)]


def test_a_spilled_run_reads_like_a_list(spool, tmp_path):
    from array import array

    spill = Spill(spool.files, str(tmp_path / "spill"))
    spill.add(array("Q", [1, 5, 9]))
    spill.add(array("Q", range(10, 20)))
    assert not (tmp_path / "spill").exists()
    first, second = spill.runs
    assert list(first) == [1, 5, 9]
    assert list(second) == list(range(10, 20))
    assert (second[0], second[9], len(second), list(second[3:5]), list(second[5:2])) == (10, 19, 10, [13, 14], [])
    with pytest.raises(IndexError):
        second[10]
    assert uniqueness.entries_between(spill.runs, 5, 12) == [5, 9, 10, 11]
    spill.close()


def test_the_index_of_a_batch_outlives_an_error_after_its_commit(tmp_path):
    """Once a batch is linked, its index belongs to everybody."""
    from fleetcraft.core.errors import OutOfReach
    from fleetcraft.testing.files import FaultyFiles

    spool = make_spool(tmp_path)
    committed = []

    def fault(operation):
        if operation.kind == "link":
            committed.append(operation)
        return 5 if committed and operation.kind == "sync_folder" else None

    with pytest.raises(OutOfReach, match="while batch 1 was published"):
        write(Spool.open(spool.layout.root, files=FaultyFiles(fault=fault)), listed(100))
    spool.refresh()
    assert spool.find("t99") is not None
    assert write(spool, listed(100)).existing == 100
    assert [token.name for token in spool.tokens().tokens] == ["c1.500.1.0-100.g0.a1"]
