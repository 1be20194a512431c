"""The writer of a journal: one write per record, damage kept inside one line, and no trust after a failed sync."""

from __future__ import annotations

import errno

import pytest

from fleetcraft.core.records import dump, encode_line
from fleetcraft.store.files import Files
from fleetcraft.store.journal import JournalEnded, JournalWriter, is_storage_full, read_lines
from fleetcraft.testing.files import FaultyFiles, FullFiles, LostReplyFiles, PwriteNfsFiles, RecordingFiles


def _records(path):
    return [line.record for line in read_lines(Files(), str(path))]


def _write(writer, count=1):
    for _ in range(count):
        writer.append(dump({"n": writer.number + 1}))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


def test_one_write_per_record_and_one_sync_for_many(path):
    recording = RecordingFiles()
    writer = JournalWriter(recording, str(path))
    _write(writer, 3)
    assert (writer.number, writer.durable) == (3, 0)
    writer.sync()
    writer.sync()
    writer.close()
    assert [operation.kind for operation in recording.operations] == [
        "open_new",
        "write",
        "write",
        "write",
        "sync",
        "close",
    ]
    assert writer.durable == writer.length == path.stat().st_size
    assert _records(path) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_journal_is_never_opened_twice(path):
    JournalWriter(Files(), str(path)).close()
    with pytest.raises(FileExistsError):
        JournalWriter(Files(), str(path))


@pytest.mark.parametrize("short", (False, True))
def test_after_a_failed_write_the_next_record_begins_a_new_line(path, short):
    full = FullFiles(kinds=frozenset({"write"}), full=False, short_writes=short)
    writer = JournalWriter(full, str(path))
    _write(writer)
    full.full = True
    for _ in range(3):
        with pytest.raises(OSError, match=r"No space|short write") as caught:
            _write(writer)
        assert is_storage_full(caught.value)
    full.full = False
    _write(writer)
    writer.sync()
    assert [record for record in _records(path) if record] == [{"n": 1}, {"n": 5}]
    assert writer.length == writer.durable == path.stat().st_size


def test_a_record_whose_reply_was_lost_keeps_its_number_to_itself(path):
    lose: list[bool] = []
    writer = JournalWriter(LostReplyFiles(lose=lambda operation: operation.kind == "write" and bool(lose)), str(path))
    _write(writer)
    lose.append(True)
    with pytest.raises(OSError, match="Input/output"):
        _write(writer)
    lose.clear()
    _write(writer)
    assert _records(path) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert writer.length == path.stat().st_size


def test_a_failed_sync_ends_the_journal_even_when_the_next_one_would_succeed(path):
    answers = iter([errno.EIO])
    writer = JournalWriter(
        FaultyFiles(fault=lambda operation: next(answers, None) if operation.kind == "sync" else None), str(path)
    )
    _write(writer)
    for _ in range(2):
        with pytest.raises(JournalEnded, match=r"sync|durable") as caught:
            writer.sync()
        assert caught.value.exit_code == 75
    with pytest.raises(JournalEnded, match="no more records"):
        _write(writer)
    assert (writer.durable, writer.ended) == (0, True)
    assert _records(path) == [{"n": 1}]


def test_an_error_at_close_is_told(path):
    writer = JournalWriter(
        FaultyFiles(fault=lambda operation: errno.EDQUOT if operation.kind == "close" else None), str(path)
    )
    with pytest.raises(OSError, match="quota"):
        writer.close()


def test_one_writer_is_safe_where_appends_go_to_a_remembered_end(path):
    writer = JournalWriter(PwriteNfsFiles(), str(path))
    _write(writer, 5)
    writer.close()
    assert _records(path) == [{"n": number} for number in range(1, 6)]


def test_appending_never_reads_what_is_there(path):
    writer = JournalWriter(Files(), str(path))
    with open(path, "ab") as other:  # a torn tail inside a character, as a crash leaves it
        other.write(b'{"m":"caf\xc3')
    writer._torn = True
    _write(writer)
    writer.close()
    assert path.read_bytes() == b'{"m":"caf\xc3\n' + encode_line('{"n":1}')
    assert _records(path) == [None, {"n": 1}]
