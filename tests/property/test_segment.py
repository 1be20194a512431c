"""A segment gives back what was written, whatever was cut off, torn or mixed in; and nothing is passed over unsaid."""

from __future__ import annotations

import os
import tempfile
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.store.files import Files
from fleetcraft.telemetry.api import Device, DeviceState, Reading, Reason
from fleetcraft.telemetry.fields import FIELDS, NAMES
from fleetcraft.telemetry.segment import (
    COLUMNS,
    Header,
    Slot,
    decode_reasons,
    encode_reasons,
    encode_row,
    number_text,
    parse_statement,
    statement,
)
from fleetcraft.telemetry.segment_read import Reader, columns_of, offset_since
from fleetcraft.telemetry.segment_write import SegmentWriter

_TEXT = st.text(max_size=12)
_DECIMALS = {field.name: field.decimals for field in FIELDS}


@st.composite
def _values(draw):
    names = draw(st.sets(st.sampled_from(NAMES), max_size=len(NAMES)))
    return {
        name: draw(st.floats(0, 1e14, allow_nan=False) if _DECIMALS[name] else st.integers(0, 1 << 50).map(float))
        for name in sorted(names)
    }


@st.composite
def _readings(draw):
    values = draw(_values())
    absent = draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(Reason), max_size=8))
    values = {name: value for name, value in values.items() if name not in absent}
    return Reading(uuid="GPU-0", state=draw(st.sampled_from(DeviceState)), values=values, reasons=absent)


def _header(**more):
    slots = tuple(Slot(n=n, device=Device(uuid=f"GPU-{n}", index=n, name="x", memory_bytes=1 << 36)) for n in range(2))
    return Header(host="node1", started_utc_ms=1_800_000_000_000, slots=slots, **more)


@given(
    host=_TEXT, job=_TEXT, interval=st.floats(1, 60), baseline=st.lists(_TEXT, max_size=3),
    names=st.lists(_TEXT, max_size=3), memory=st.none() | st.integers(0, 1 << 50),
    extra=st.sampled_from(({}, {"z": [1]})),
)  # fmt: skip
def test_a_head_comes_back_as_it_was(host, job, interval, baseline, names, memory, extra):
    header = Header(
        host=host, job=job, interval_s=interval, baseline=tuple(baseline), extra=extra,
        slots=tuple(
            Slot(n=n, device=Device(uuid=f"u{n}", index=n, name=name, memory_bytes=memory), baseline_bytes=memory)
            for n, name in enumerate(names)
        ),
    )  # fmt: skip
    line = header.line()
    assert "\n" not in line
    assert line.isascii()
    assert Header.parse(line) == header


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(Reason)))
def test_reasons_come_back_as_they_were(reasons):
    cell = encode_reasons(reasons)
    assert decode_reasons(cell) == reasons
    assert "," not in cell
    assert "\n" not in cell


@given(st.text(alphabet="0123456789abcdef:;,x- ", max_size=30))
def test_no_cell_of_reasons_ends_the_reading(cell):
    for name, reason in decode_reasons(cell).items():
        assert name in NAMES
        assert isinstance(reason, Reason)


@given(_readings(), st.integers(0, 10**9), st.none() | st.integers(0, 10**6))
def test_a_row_comes_back_as_it_was(reading, seq, interval_ms):
    line = encode_row(seq, 1_800_000_000_123, 55, interval_ms, 1, reading)
    cells = line.split(",")
    assert len(cells) == len(COLUMNS)
    one = columns_of([cells], COLUMNS)[1]
    assert (one.seq, one.utc_ms, one.mono_ms) == ([seq], [1_800_000_000_123], [55])
    assert one.states == [reading.state.value]
    assert cells[3] == ("" if interval_ms is None else str(interval_ms))
    for name in NAMES:
        told = one.values[name][0]
        if name in reading.values:
            assert told == pytest.approx(reading.values[name], abs=0.51 * 10 ** -_DECIMALS[name], rel=1e-12)
        else:
            assert told is None  # absent is not zero
    assert decode_reasons(one.reasons[0]) == reading.reasons
    assert one.malformed == 0


@given(st.floats(), st.integers(0, 4))
def test_a_number_is_short_and_true(value, decimals):
    text = number_text(value, decimals)
    if not isfinite(value):
        assert text == ""
    else:
        assert float(text) == pytest.approx(value, abs=0.51 * 10**-decimals)
        assert "e" not in text
        assert not (text.endswith("0") and "." in text)


@given(st.dictionaries(_TEXT.filter(lambda key: key not in ("t", "utc_ms", "kind")), _TEXT, max_size=4))
def test_a_statement_comes_back_as_it_was(body):
    line = statement("gap", 5, **body)
    told = parse_statement(line)
    assert (told.kind, told.utc_ms, told.body) == ("gap", 5, body)
    assert "\n" not in line
    assert line.startswith("#")


def _idle(utc_ms, n=0, util=1.0):
    return encode_row(
        0, utc_ms, utc_ms - 1_700_000_000_000, None, n, Reading(uuid=f"GPU-{n}", values={"util_pct": util})
    )


def _segment(lines):
    return "\n".join([_header().line(), ",".join(COLUMNS), *lines, ""]).encode()


def _ten():
    rows = [_idle(1_800_000_000_000 + 1000 * at, n) for at in range(5) for n in range(2)]
    return [*rows[:4], statement("gap", 1_800_000_002_000, why="late"), *rows[4:]]


@given(st.data())
def test_any_cut_leaves_the_lines_before_it(data):
    whole = _segment(_ten())
    cut = data.draw(st.integers(0, len(whole)))
    lines = whole[:cut].count(b"\n")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "s.csv")
        with open(path, "wb") as target:
            target.write(whole[:cut])
        reader = Reader(path)
        piece = reader.read()
        assert len(piece.rows) + len(piece.statements) == max(0, lines - 2)
        assert piece.malformed == 0
        assert piece.cut_tail == ((cut > 0 and not whole[:cut].endswith(b"\n")) or 0 < lines < 2)
        # What comes later completes the line that was held back.
        with open(path, "ab") as target:
            target.write(whole[cut:])
        rest = reader.read()
        assert len(piece.rows) + len(rest.rows) == 10
        assert len(piece.statements) + len(rest.statements) == 1
        assert reader.finish() == 0


_GARBAGE = st.binary(min_size=1, max_size=80).map(lambda data: data.replace(b"\n", b"")).filter(len)


@given(st.lists(st.tuples(st.integers(0, 11), _GARBAGE | st.just(b"\0" * 100)), min_size=1, max_size=4))
def test_garbage_lines_are_counted_and_cost_no_row(garbage):
    lines = [line.encode() for line in _ten()]
    for at, junk in garbage:
        lines.insert(at, junk)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "s.csv")
        with open(path, "wb") as target:
            target.write(_segment([]) + b"\n".join(lines) + b"\n")
        reader = Reader(path)
        piece = reader.read()
    assert len(piece.rows) == 10
    assert len(piece.statements) == 1
    assert piece.malformed == len(garbage)


@given(st.binary(max_size=400))
def test_a_file_of_anything_is_read_without_an_error(content):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "s.csv")
        with open(path, "wb") as target:
            target.write(content)
        reader = Reader(path)
        piece = reader.read()
        offset_since(path, 0)
        assert not piece.rows or reader.columns == COLUMNS


@given(st.integers(0, 3000), st.integers(-10, 3010))
def test_the_last_minutes_are_found_from_the_end(count, since):
    rows = [_idle(1_800_000_000_000 + at) for at in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "s.csv")
        with open(path, "wb") as target:
            target.write(_segment(rows))
        offset = offset_since(path, 1_800_000_000_000 + since)
        found = [int(row[1]) for row in Reader(path, offset).read().rows]
    wanted = list(range(max(0, since), count))
    assert [stamp - 1_800_000_000_000 for stamp in found] == wanted


class _Short(Files):
    """Takes a part of each write, as a disk that is nearly full does."""

    def __init__(self, takes):
        self.takes = list(takes)

    def write(self, descriptor, data):
        if self.takes:
            part = min(self.takes.pop(0), len(data))
            if part == 0:
                raise OSError(28, "no space")
            return super().write(descriptor, data[:part])
        return super().write(descriptor, data)


@given(st.lists(st.integers(0, 400), max_size=6))
def test_a_torn_write_costs_its_own_tick_only(takes):
    with tempfile.TemporaryDirectory() as folder:
        files = _Short([])
        writer = SegmentWriter(files, folder, _header(), 0.0)
        files.takes = list(takes)
        kept = 0
        for at in range(8):
            begin = None
            try:
                begin = writer.append([_idle(1_800_000_000_000 + at), _idle(1_800_000_000_000 + at, 1)])
            except OSError:
                continue
            with open(writer.path, "rb") as source:
                source.seek(begin)
                assert source.readline().split(b",")[1] == b"%d" % (1_800_000_000_000 + at)
            kept += 1
        writer.close()
        piece = Reader(writer.path).read()
        assert len(piece.rows) >= 2 * kept
        assert writer.size == os.path.getsize(writer.path)
        assert kept >= 8 - len(takes)
