"""Reading a journal: every intact record comes back, damage is counted with its place, and nothing raises."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.core.records import dump, encode_line
from fleetcraft.store import journal
from fleetcraft.store.files import Files
from fleetcraft.store.journal import read_lines
from tests.property.test_records import RECORDS

_RECORD = ("record", RECORDS)
_DAMAGE = st.one_of(
    st.tuples(st.just("zeros"), st.integers(1, 64)),
    st.tuples(st.just("torn"), st.tuples(RECORDS, st.integers(1, 200))),
    st.tuples(st.just("glued"), st.tuples(RECORDS, RECORDS)),
    st.tuples(
        st.just("noise"), st.binary(min_size=1, max_size=40).filter(lambda raw: b"\n" not in raw and raw.strip(b"\0"))
    ),
    st.tuples(st.just("utf16"), RECORDS),
    st.tuples(st.just("changed"), st.tuples(RECORDS, st.integers(0, 10**6))),
    st.tuples(st.just("blank"), st.integers(1, 3)),
)
_PIECES = st.lists(st.tuples(st.just("record"), RECORDS) | _DAMAGE, max_size=8)


def _bytes_of(kind, value):
    """The bytes of one piece, and whether it ends its line."""
    if kind == "record":
        return encode_line(dump(value))
    if kind == "zeros":
        return b"\0" * value
    if kind == "torn":
        line = encode_line(dump(value[0]))
        return line[: 1 + value[1] % (len(line) - 2)] + b"\n"
    if kind == "glued":
        return encode_line(dump(value[0]))[:-1] + encode_line(dump(value[1]))
    if kind == "noise":
        return value.lstrip(b"\0") + b"\n"
    if kind == "utf16":
        return dump(value).encode("utf-16-be").replace(b"\n", b"") + b"x\n"
    if kind == "changed":
        changed = bytearray(encode_line(dump(value[0])))
        changed[0] ^= 1 + value[1] % 7  # never an opening brace any more, never a zero byte or a newline
        return bytes(changed)
    return b"\n" * value


def _read(path, offset=0, stop=None):
    return list(read_lines(Files(), str(path), offset, stop))


@settings(max_examples=150)
@given(
    pieces=_PIECES,
    tail=st.binary(max_size=12).filter(lambda raw: b"\n" not in raw),
    chunk=st.sampled_from([1, 7, 64, 1 << 20]),
)
def test_intact_records_come_back_and_damage_is_placed(tmp_path_factory, pieces, tail, chunk):
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    data = b"".join(_bytes_of(kind, value) for kind, value in pieces)
    path.write_bytes(data + tail)
    expected = [value for kind, value in pieces if kind == "record"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "_CHUNK_BYTES", chunk)
        lines = _read(path)
    assert [line.record for line in lines if line.record is not None] == expected
    damaged = [line for line in lines if line.record is None]
    assert bool(damaged) == any(kind not in ("record", "blank") for kind, _ in _seen(pieces))
    position = 0
    for line in lines:  # what is not returned is blank: every damaged byte is counted once, at its place
        assert data[position : line.offset].strip(b"\n") == b""
        position = line.offset + line.length
    assert data[position:].strip(b"\n").strip(b"\0") == b""


def _seen(pieces):
    """Zero bytes at the very end are held back with the torn line that they may become."""
    last = len(pieces)
    while last and pieces[last - 1][0] == "zeros":
        last -= 1
    return pieces[:last]


@settings(max_examples=60)
@given(records=st.lists(RECORDS, min_size=1, max_size=6), data=st.data())
def test_a_file_cut_at_any_byte_gives_the_whole_lines_before_it(tmp_path_factory, records, data):
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    lines = [encode_line(dump(record)) for record in records]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    count = sum(len(b"".join(lines[: place + 1])) <= cut for place in range(len(lines)))
    assert [line.record for line in _read(path)] == records[:count]
    path.write_bytes(whole)
    assert [line.record for line in _read(path, stop=cut)] == records[:count]


@settings(max_examples=60)
@given(pieces=_PIECES, data=st.data())
def test_reading_on_from_any_returned_line_gives_the_rest(tmp_path_factory, pieces, data):
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    path.write_bytes(b"".join(_bytes_of(kind, value) for kind, value in pieces))
    lines = _read(path)
    place = data.draw(st.integers(0, len(lines)))
    offset = lines[place - 1].offset + lines[place - 1].length if place else 0
    assert _read(path, offset) == lines[place:]


def test_zeros_at_the_end_are_held_back_until_their_line_is_whole(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(encode_line('{"n":1}') + b"\0" * 100)
    assert [line.record for line in _read(path)] == [{"n": 1}]
    with path.open("ab") as target:
        target.write(encode_line('{"n":2}'))
    first, zeros, second = _read(path)
    assert (first.record, second.record) == ({"n": 1}, {"n": 2})
    assert (zeros.record, zeros.length) == (None, 100)
    assert zeros.offset + zeros.length == second.offset


@pytest.mark.parametrize("size_mib", (1, 16))
def test_a_run_of_zeros_costs_time_in_proportion(tmp_path, size_mib):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"\0" * (size_mib << 20) + encode_line('{"n":1}') + encode_line('{"n":2}'))
    began = time.process_time()
    lines = _read(path)
    assert time.process_time() - began < 0.1 * size_mib + 0.2
    assert [(line.length, line.record) for line in lines] == [(size_mib << 20, None), (17, {"n": 1}), (17, {"n": 2})]


def test_a_line_too_long_for_any_record_is_one_piece_of_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "_LONGEST_BYTES", 1 << 16)
    monkeypatch.setattr(journal, "_CHUNK_BYTES", 1 << 12)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"{" * 1_000_000 + b"\n" + encode_line('{"n":1}'))
    assert [(line.offset, line.length, line.record) for line in _read(path)] == [
        (0, 1_000_001, None),
        (1_000_001, 17, {"n": 1}),
    ]
