"""Compaction loses and doubles no record, whoever crashes, sleeps or reads meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from typing import Any

import pytest

from fleetcraft.core.errors import FleetcraftError
from fleetcraft.core.outcome import Fold
from fleetcraft.spool.check import check
from fleetcraft.spool.compact import compact
from fleetcraft.spool.life import Life, find_state
from fleetcraft.spool.logs import log_name, read_log
from fleetcraft.spool.maintenance import COMPACTION, take_permit
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.segments import BLOCK_BYTES, open_segment, segment_records
from fleetcraft.spool.spool import Spool
from fleetcraft.testing.files import Crash, CrashingFiles
from tests.support import upkeep
from tests.support.upkeep import AtOperation, Template, bury_the_dead, drain, publish, succeed

TEXT = b"".join(b"line %d of what a task wrote\n" % place for place in range(2000))


def ended_lives(spool: Spool) -> None:
    """Two worker lives that ended, with a success, a failure, a loss and output; and one batch that goes on."""
    publish(spool, [f"t{place}" for place in range(6)])
    publish(spool, ["open"])
    first, second = Life.begin(spool), Life.begin(spool)
    for name in os.listdir(spool.layout.tokens):
        if ".1.0-6." in name:
            os.unlink(spool.layout.token(name))
    succeed(first, 1, 0, 3)
    body = {"b": 1, "i": 3, "g": 0, "a": 1}
    first.record({"t": "started", **body, "s": 0, "at": 0.0})
    second.record({"t": "lost", **body, "life": first.id, "cause": "worker_gone", "counted": True})
    second.record(
        {"t": "receipt", **body, "a": 2, "s": 1, "o": "failed", "final": "failed", "exit": 3, "log": [1, 5, 900]}
    )
    succeed(second, 1, 4, 6, attempt=2)
    for life in (first, second):
        for slot in (0, 1):
            with open(os.path.join(life.folder, log_name(slot, 1)), "wb") as log:
                log.write(TEXT * (slot + 1))
        assert life.close()


@pytest.fixture
def spool(tmp_path):
    spool = Spool.open(str(tmp_path / "spool"), create=True)
    ended_lives(spool)
    return spool


def answers(root: str, *, shortcuts: bool = True) -> dict[str, Any]:
    """Everything that a fold says, in a form that does not depend on the order of records."""
    reader = SpoolFold(Spool.open(root), shortcuts=shortcuts)
    reader.refresh()
    data = reader.fold.as_json()
    return {
        "ok": {batch: sorted(map(tuple, pairs)) for batch, pairs in data["ok"].items()},
        "events": sorted(map(tuple, data["events"])),
        "open": sorted(str(entry) for entry in data["open"]),
        "counts": reader.fold.counts(),
    }


def lives(root: str) -> list[str]:
    return sorted(os.listdir(os.path.join(root, "workers")))


def test_ended_lives_become_one_segment_that_says_the_same(spool):
    root = spool.layout.root
    before, names = answers(root), lives(root)

    report = compact(spool, grace_s=0)

    assert (report.packed, report.removed, report.segment, report.kept) == (2, 2, 1, {})
    assert lives(root) == []
    assert answers(root) == answers(root, shortcuts=False) == before
    reader = SpoolFold(Spool.open(root))
    reader.refresh()
    assert sorted(reader.lives) == names
    assert {reading.state for reading in reader.lives.values()} == {"dead"}
    assert {reading.identity.pid for reading in reader.lives.values() if reading.identity} == {os.getpid()}
    assert [number for number, _ in enumerate(segment_records(spool, 1))][-1] + 1 == report.records
    assert check(None, Spool.open(root)).findings == []
    assert json.loads(json.dumps(report.as_json()))["removed"] == 2


def test_a_life_with_an_unfinished_batch_stays(spool):
    worker = Life.begin(spool)
    worker.record({"t": "started", "b": 2, "i": 0, "g": 0, "a": 1, "s": 0, "at": 0.0})
    assert worker.close()

    report = compact(spool, grace_s=0)

    assert report.kept == {worker.id: "batch 2 has not ended"}
    assert lives(spool.layout.root) == [worker.id]


def test_lives_that_are_not_proven_ended_stay(spool):
    live, fenced = Life.begin(spool), Life.begin(spool)
    os.rename(os.path.join(fenced.folder, "state.live"), os.path.join(fenced.folder, "state.fenced"))

    compact(spool, grace_s=0)

    assert lives(spool.layout.root) == sorted([live.id, fenced.id])


def test_output_is_found_by_range_in_the_folder_and_in_the_segment(spool):
    life = lives(spool.layout.root)[0]
    big = random.Random(7).randbytes(3 * BLOCK_BYTES // 2) + TEXT * 40
    with open(os.path.join(spool.layout.life(life), log_name(2, 3)), "wb") as log:
        log.write(big)
    edge = BLOCK_BYTES
    ranges = [(0, 0), (0, 10), (edge - 3, edge + 3), (5, 2 * edge + 9), (edge, edge + 1), (len(big) - 4, len(big) + 50)]

    before = [b"".join(read_log(spool, life, 3, 2, start, end)) for start, end in ranges]
    compact(spool, grace_s=0)
    after = [b"".join(read_log(spool, life, 3, 2, start, end)) for start, end in ranges]

    assert before == after == [big[start:end] for start, end in ranges]
    assert b"".join(read_log(spool, life, 3, 2, 7)) == big[7:]
    assert b"".join(read_log(spool, life, 1, 1, 0)) == TEXT * 2
    with pytest.raises(FileNotFoundError):
        read_log(spool, life, 9, 9, 0)


def test_the_grace_is_waited_with_a_heartbeat_before_anything_is_removed(spool):
    waits: list[float] = []
    seen: list[int] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        seen.append(len(lives(spool.layout.root)))

    compact(spool, grace_s=25, pause=pause)

    assert waits == [10, 10, 5]
    assert seen == [3, 3, 3], "two ended lives and the one that compacts"
    assert lives(spool.layout.root) == []


def test_a_folder_that_was_written_to_after_packing_stays_until_the_next_time(spool):
    life = lives(spool.layout.root)[0]
    path = os.path.join(spool.layout.life(life), "journal.jsonl")

    def wake(_seconds: float) -> None:
        from fleetcraft.core.records import encode_line

        with open(path, "ab") as journal:
            journal.write(
                encode_line(
                    '{"n":99,"t":"receipt","b":1,"i":3,"g":0,"a":1,"s":0,"o":"abandoned","final":"","wall":2.5}'
                )
            )

    first = compact(spool, grace_s=1, pause=wake)
    second = compact(spool, grace_s=0)

    assert first.kept == {life: "it was written to after it was packed"}
    assert (first.removed, second.removed, second.packed) == (1, 1, 1)
    reader = SpoolFold(spool)
    reader.refresh()
    event = reader.fold.events[1, 3][0, 1, life]
    assert event.outcome == "abandoned"
    assert check(None, spool).findings == []


def test_damaged_journal_lines_are_kept_as_they_are(spool):
    life = lives(spool.layout.root)[0]
    path = os.path.join(spool.layout.life(life), "journal.jsonl")
    with open(path, "rb") as source:
        data = source.read()
    broken = data.replace(b'"t"', b'"\0"', 1)
    with open(path, "wb") as target:
        target.write(broken)

    compact(spool, grace_s=0)

    packed = open_segment(spool, 1).lives[life]
    assert packed.damaged == 1
    from fleetcraft.spool.logs import _from_blocks, find_packed

    found = find_packed(spool, life, "journal.jsonl")
    assert found is not None
    assert b"".join(_from_blocks(spool, *found, 0, None)) == broken


def test_a_shortcut_is_only_a_shortcut(spool):
    root = spool.layout.root
    before = answers(root)
    compact(spool, grace_s=0)
    path = os.path.join(root, "segments", "1.summary.json")
    for damage in (b"", b"\0" * 50, b'{"covers": 1}', b'{"version":1,"covers":0,"fold":{}}'):
        with open(path, "wb") as target:
            target.write(damage)
        assert answers(root) == before
    os.unlink(path)
    assert answers(root) == before


@pytest.mark.slow
def test_a_crash_anywhere_in_a_compaction_loses_and_doubles_nothing(tmp_path):
    template = Template(tmp_path, ended_lives)
    expected = answers(template.source)
    names = lives(template.source)
    at = 0
    while True:
        root = template.copy()
        files = CrashingFiles(at=at)
        try:
            compact(Spool.open(root, files=files), grace_s=0)
        except Crash:
            bury_the_dead(Spool.open(root))
            assert answers(root) == expected, files.crashed
            report = check(None, Spool.open(root), repair=True)
            assert report.problems == [], (files.crashed, report.findings)
            again = compact(Spool.open(root), grace_s=0)
            assert not again.busy, files.crashed
            assert not set(names) & set(lives(root)), files.crashed
            assert answers(root) == answers(root, shortcuts=False) == expected, files.crashed
            for name in names:
                assert b"".join(read_log(Spool.open(root), name, 1, 1, 0)) == TEXT * 2, files.crashed
            check(None, Spool.open(root), repair=True)
            # A life that died before it wrote who it is stays: it may as well be about to write it.
            left = {finding.kind for finding in check(None, Spool.open(root)).findings}
            assert left <= {"life_empty"}, files.crashed
        else:
            break
        shutil.rmtree(root)
        at += 1
    assert at > 60


@pytest.mark.slow
def test_a_reader_at_any_moment_of_a_compaction_sees_every_record(tmp_path):
    template = Template(tmp_path, ended_lives)
    expected = answers(template.source)
    at = 0
    while True:
        root = template.copy()
        seen: list[dict[str, Any]] = []
        files = AtOperation(at, lambda root=root, seen=seen: seen.append(answers(root)))  # type: ignore[misc]
        compact(Spool.open(root, files=files), grace_s=0)
        if not files.acted:
            break
        assert seen == [expected], at
        shutil.rmtree(root)
        at += 1
    assert at > 60


@pytest.mark.slow
def test_a_compaction_at_any_moment_of_a_reader_is_not_noticed(tmp_path):
    template = Template(tmp_path, ended_lives)
    expected = answers(template.source)["counts"]
    at = 0
    while True:
        root = template.copy()
        files = AtOperation(at, lambda root=root: compact(Spool.open(root), grace_s=0))  # type: ignore[misc]
        reader = SpoolFold(Spool.open(root, files=files))
        reader.refresh()
        if not files.acted:
            break
        assert reader.fold.counts() == expected, at
        shutil.rmtree(root)
        at += 1
    assert at > 15


@pytest.mark.slow
def test_two_compactions_do_the_work_once_even_when_one_sleeps_and_is_reaped(tmp_path):
    template = Template(tmp_path, ended_lives)
    expected = answers(template.source)

    def other(root: str) -> None:
        bury_the_dead(Spool.open(root))
        compact(Spool.open(root), grace_s=0)

    at = 0
    while True:
        root = template.copy()
        files = AtOperation(at, lambda root=root: other(root))  # type: ignore[misc]
        with contextlib.suppress(OSError, FleetcraftError):
            compact(Spool.open(root, files=files), grace_s=0)
        if not files.acted:
            break
        bury_the_dead(Spool.open(root))
        compact(Spool.open(root), grace_s=0)
        assert answers(root) == expected, at
        assert check(None, Spool.open(root), repair=True).problems == [], at
        shutil.rmtree(root)
        at += 1
    assert at > 60


def test_a_second_compaction_gives_way(spool):
    other = Life.begin(spool)
    assert take_permit(other, COMPACTION)

    report = compact(spool, grace_s=0)

    assert report.busy
    assert len(lives(spool.layout.root)) == 3


def test_damage_in_a_segment_is_found(spool):
    compact(spool, grace_s=0)
    path = os.path.join(spool.layout.segments, "1.jsonl")
    with open(path, "rb") as source:
        data = source.read()
    logs = open_segment(spool, 1).logs

    with open(path, "wb") as target:
        target.write(data.replace(b'"t":"lost"', b'"t":"last"'))
    os.truncate(logs, 5)
    found = check(None, Spool.open(spool.layout.root))
    with open(path, "wb") as target:
        target.write(data[30:])
    worse = check(None, Spool.open(spool.layout.root))

    assert [finding.kind for finding in found.problems] == ["segment_damaged", "output_damaged"]
    assert [finding.kind for finding in worse.problems] == ["segment_damaged"]


def test_compaction_folds_what_ended_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr("fleetcraft.spool.foldgroups.FOLD_AT", 3)
    spool = Spool.open(str(tmp_path / "spool"), create=True)
    upkeep.publish_many(spool, 4)
    worker = Life.begin(spool)
    drain(spool, worker)
    assert worker.close()

    report = compact(spool, grace_s=0)

    assert (report.fold.folded, report.packed, report.removed) == (4, 1, 1)
    assert upkeep.count_entries(spool.layout.root) < 25
    reader = SpoolFold(Spool.open(spool.layout.root))
    reader.refresh()
    assert reader.fold.counts() == Fold().counts() | {"succeeded": 4}
    assert find_state(spool.files, worker.folder) is None
