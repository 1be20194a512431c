"""Field cases of area 4 (event logs and journals), each as a test of its kind.

Left to the rooms that they belong to: everything that is shown over HTTP.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.actions.intake import InputNotes, line_blocks
from fleetcraft.core.errors import UsageError
from fleetcraft.core.records import dump, encode_line
from fleetcraft.core.states import TaskState
from fleetcraft.readmodel.logs import decoded
from fleetcraft.spool.check import check
from fleetcraft.spool.claims import take
from fleetcraft.spool.life import HEARTBEAT, JOURNAL, Life, read_json
from fleetcraft.spool.logs import read_log
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files
from fleetcraft.store.journal import JournalWriter, read_lines
from fleetcraft.testing.clock import ManualClock
from fleetcraft.testing.files import FullFiles
from tests.property.spool_play import publish
from tests.support.descriptors import closing_leftovers


@pytest.fixture(autouse=True)
def descriptors():
    with closing_leftovers():
        yield


_CUTS = "a\u2028b\u2029c\x85d\re\x0bf\x0cg\x1ch"


@pytest.fixture
def spool(tmp_path):
    spool = Spool.open(str(tmp_path / "s"), create=True, clock=ManualClock())
    publish(spool, ["a", "b", "c"])
    spool.refresh()
    return spool


@pytest.fixture
def life(spool):
    return Life.begin(spool)


def _succeed(life, index):
    life.record({"t": "started", "b": 1, "i": index, "g": 0, "a": 1})
    life.record({"t": "receipt", "b": 1, "i": index, "g": 0, "a": 1, "o": "succeeded", "final": "succeeded"})


def _journal(life):
    return Path(life.folder) / JOURNAL


def _read(path):
    return list(read_lines(Files(), str(path)))


def _reader(spool):
    reader = SpoolFold(Spool(spool.layout.root, clock=spool.clock))
    reader.spool.refresh()
    reader.refresh()
    return reader


def strict(text):
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


# F4-02


def test_f4_02_a_tail_cut_inside_a_character_stops_neither_writer_nor_reader(tmp_path):
    full = FullFiles(kinds=frozenset({"write"}), full=False, short_writes=True)
    writer = JournalWriter(full, str(tmp_path / "journal.jsonl"))
    writer.append('{"n":1}')
    full.full = True
    with pytest.raises(OSError, match="short write"):
        writer.append('{"m":"xxxxxxxxxx\u00e9yyyy"}')  # half of the line ends inside the accented character
    assert (tmp_path / "journal.jsonl").read_bytes().endswith(b"xxxx\xc3")
    with pytest.raises(OSError, match=r"short write|No space"):
        writer.append('{"n":3}')  # a failed append is always told
    full.full = False
    writer.append('{"n":4}')
    assert [line.record for line in _read(writer.path) if line.record] == [{"n": 1}, {"n": 4}]
    assert any(line.record is None for line in _read(writer.path))


# F4-03


@pytest.mark.parametrize("tail", (b'{"t":"recei', b'\n{"t":"recei', b'{"m":"caf\xc3', b"\0" * 50))
def test_f4_03_a_torn_tail_stops_nobody_from_starting(spool, life, tail):
    taken = take(life, spool.tokens().tokens[0])
    assert taken is not None
    _succeed(life, 0)
    size = _journal(life).stat().st_size
    with _journal(life).open("ab") as target:
        target.write(tail)
    reader = _reader(spool)
    assert reader.fold.ok[1] is not None
    assert 0 in reader.fold.ok[1]
    second = Life.begin(Spool(spool.layout.root, clock=spool.clock))
    second.beat({"state": "up"})
    report = check(second, Spool(spool.layout.root, clock=spool.clock), pause=spool.clock.advance)
    assert report.problems == []
    assert _journal(life).read_bytes()[size:] == tail  # reading changes nothing
    assert _reader(spool).fold.ok == reader.fold.ok


# F4-04


def test_f4_04_two_glued_records_are_one_damaged_line_and_the_rest_stands_alone(spool, life):
    _succeed(life, 0)
    first, second = encode_line('{"n":90,"t":"note"}'), encode_line('{"n":91,"t":"note"}')
    glued_at = _journal(life).stat().st_size
    with _journal(life).open("ab") as target:
        target.write(first[:-1] + second)
    _succeed(life, 1)
    lines = _read(_journal(life))
    assert [(line.offset, line.length) for line in lines if line.record is None] == [
        (glued_at, len(first) + len(second) - 1)
    ]
    reader = _reader(spool)
    assert list(reader.fold.ok[1]) == [(0, 2)]
    assert reader.lives[life.id].damaged == 1
    report = check(None, Spool(spool.layout.root, clock=spool.clock), pause=spool.clock.advance)
    damaged = [finding for finding in report.findings if finding.kind == "journal_damaged"]
    assert [(finding.place, finding.facts["count"]) for finding in damaged] == [(str(_journal(life)), 1)]
    assert damaged[0].facts["lines"][0][0] == glued_at


# F4-07


def test_f4_07_only_the_byte_0a_ends_a_line(spool, tmp_path):
    name = f"odd {_CUTS}"
    other = Spool(spool.layout.root, clock=spool.clock)
    publish(other, [name, *(f"n{number}" for number in range(70))], env={"A": _CUTS})
    other.refresh()
    task = other.find(name)
    assert task is not None
    found = other.task(task)
    assert found is not None
    assert (found["name"], found["env"]) == (name, {"A": _CUTS})
    writer = JournalWriter(Files(), str(tmp_path / "journal.jsonl"))
    for raw in ({"m": _CUTS}, {"m": "second"}):
        writer.append(json.dumps(raw, ensure_ascii=False))
    assert [line.record for line in _read(writer.path)] == [{"m": _CUTS}, {"m": "second"}]
    blocks = list(line_blocks(io.BytesIO(json.dumps({"name": _CUTS}, ensure_ascii=False).encode()), "in", InputNotes()))
    assert [len(lines) for _, lines in blocks] == [1]


# F4-08

_BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize("records", (1, 5))
@pytest.mark.parametrize("at", (0, 3))
def test_f4_08_a_byte_order_mark_hides_no_record(tmp_path, records, at):
    lines = [encode_line(dump({"n": number})) for number in range(records)]
    if at < records:
        lines[at] = _BOM + lines[at]
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(lines))
    assert [line.record for line in _read(path)] == [{"n": number} for number in range(records)]
    notes = InputNotes()
    tasks = [_BOM * (number == at) + b"echo" for number in range(records)]
    found = [line for _, lines in line_blocks(io.BytesIO(b"\n".join(tasks) + b"\n"), "in", notes) for line in lines]
    assert found == [b"echo"] * records
    assert notes.marks == ([at + 1] if at < records else [])


@pytest.mark.parametrize("encoding", ("utf-16", "utf-16-le", "utf-16-be", "utf-32"))
def test_f4_08_wide_encodings_are_refused_by_name_and_counted_as_damage(tmp_path, encoding):
    text = '{"name":"a","command":["x"]}\n' * 3
    with pytest.raises(UsageError, match=r"UTF-(16|32)"):
        list(line_blocks(io.BytesIO(text.encode(encoding)), "tasks.jsonl", InputNotes()))
    path = tmp_path / "journal.jsonl"
    path.write_bytes(text.encode(encoding) + b"\n" + encode_line('{"n":1}'))
    lines = _read(path)
    assert [line.record for line in lines if line.record] == [{"n": 1}]
    assert any(line.record is None for line in lines)


# F4-09


@given(
    text=st.text(max_size=40),
    chunk=st.integers(1, 7),
    wrong=st.sampled_from([b"", b"\xff\xfe", "Привет".encode("cp1251")]),
)
def test_f4_09_wrong_bytes_are_shown_replaced_and_characters_stay_whole(text, chunk, wrong):
    raw = text.encode("utf-8", "replace") + wrong
    pieces = [raw[start : start + chunk] for start in range(0, len(raw), chunk)]
    assert "".join(decoded(iter(pieces))) == raw.decode("utf-8", "replace")


def test_f4_09_the_bytes_of_a_log_are_kept_as_they_came(spool, life):
    raw = b"\xff\xfe" + "Привет".encode("cp1251") + b"\0\r\n" + "é".encode() * 1000
    (Path(life.folder) / "output-0.log").write_bytes(raw)
    assert b"".join(read_log(spool, life.id, 0, 0, 0, None)) == raw
    assert b"".join(read_log(spool, life.id, 0, 0, 3, 9)) == raw[3:9]


# F4-12 and F4-13

_METRICS = {
    "nan": float("nan"), "inf": float("inf"), "minus_inf": float("-inf"), "huge": float("1e400"), "zero": -0.0,
    "half": np.float16(1.5), "single": np.float32(0.1), "double": np.float64("nan"), "decimal": Decimal("2.5"),
    "big": 2**53 + 1, "numpy_big": np.int64(2**53 + 1), "flag": np.bool_(True),
}  # fmt: skip


def test_f4_12_everything_on_disk_is_strict_json(spool, life):
    life.beat({"state": "up", "metrics": _METRICS})
    life.note("metrics", **_METRICS)
    life.record(
        {"t": "receipt", "b": 1, "i": 0, "g": 0, "a": 1, "o": "succeeded", "final": "succeeded", "value": _METRICS}
    )
    values = [strict((Path(life.folder) / HEARTBEAT).read_bytes())["metrics"]]
    for line in _journal(life).read_bytes().split(b"\n")[:-1]:
        record = strict(line[:-9])
        values.append(record.get("value", record))
    assert (read_json(Files(), os.path.join(life.folder, HEARTBEAT)) or {})["metrics"] == values[0]
    for value in values:
        assert (value["nan"], value["double"], value["inf"], value["minus_inf"], value["huge"]) == (
            "NaN", "NaN", "Infinity", "-Infinity", "Infinity",
        )  # fmt: skip
        assert (value["big"], value["numpy_big"]) == (2**53 + 1, 2**53 + 1)
        assert (value["half"], value["decimal"], value["flag"], str(value["zero"])) == (1.5, 2.5, True, "-0.0")
    for path in Path(spool.layout.root).rglob("*.json*"):
        for line in path.read_bytes().split(b"\n"):
            if line and path.name != JOURNAL:
                strict(line)
    assert _reader(spool).fold.verdict(1, 0).state is TaskState.SUCCEEDED


def test_f4_13_a_step_whose_value_is_not_a_number_is_the_same_for_every_type_and_not_dropped(life):
    kinds: tuple[Callable[[str], object], ...] = (
        float,
        np.float16,
        np.float32,
        np.float64,
        Decimal,
        lambda text: np.array(float(text)),
    )
    for step, kind in enumerate(kinds):
        life.note("step", step=step, loss=kind("nan"))
    found = [(line.record["step"], line.record["loss"]) for line in _read(_journal(life)) if line.record]
    assert found == [(step, "NaN") for step in range(len(kinds))]


# F4-17


def test_f4_17_a_mebibyte_of_zeros_is_damage_that_costs_little_and_hides_nothing(spool, life):
    _succeed(life, 0)
    before = _journal(life).stat().st_size
    with _journal(life).open("ab") as target:
        target.write(b"\0" * (1 << 20))
    _succeed(life, 1)
    began = time.process_time()
    lines = _read(_journal(life))
    assert time.process_time() - began < 0.5
    assert [(line.offset, line.length) for line in lines if line.record is None] == [(before, 1 << 20)]
    reader = _reader(spool)
    assert list(reader.fold.ok[1]) == [(0, 2)]
    assert reader.lives[life.id].damaged == 1
