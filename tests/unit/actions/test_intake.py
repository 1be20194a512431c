"""Lines of a task list: what is cut, stripped, noted and refused."""

from __future__ import annotations

import io

import pytest

from fleetcraft.actions import intake
from fleetcraft.actions.intake import InputNotes, line_blocks
from fleetcraft.core.errors import TaskInvalid

BOM = b"\xef\xbb\xbf"


def read(raw: bytes) -> tuple[list[bytes], InputNotes]:
    notes = InputNotes()
    lines: list[bytes] = []
    for first, block in line_blocks(io.BytesIO(raw), "list", notes):
        assert first == len(lines) + 1
        lines += block
    return lines, notes


@pytest.mark.parametrize(
    ("raw", "lines"),
    (
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"\n\na\n", [b"", b"", b"a"]),
        ("a\u2028b\u2029c\x85d\n".encode(), ["a\u2028b\u2029c\x85d".encode()]),
        (b"a\x0bb\x0cc\x1cd\n", [b"a\x0bb\x0cc\x1cd"]),
    ),
)
def test_lines_end_at_the_newline_byte_and_nowhere_else(raw, lines):
    assert read(raw)[0] == lines


def test_cr_goes_only_with_its_newline_and_is_counted():
    lines, notes = read(b"a\r\nb\nc\r\n")
    assert lines == [b"a", b"b", b"c"]
    assert notes.sentences() == ["2 lines ended in CRLF; the CR was stripped"]


def test_a_lone_cr_is_kept_and_said():
    lines, notes = read(b"ok\na\rb\nlast\r")
    assert lines == [b"ok", b"a\rb", b"last\r"]
    assert notes.sentences() == ["2 lines had a CR that is no part of a line end; it was kept (first at line 2)"]


def test_two_crs_before_a_newline_lose_one():
    lines, notes = read(b"a\r\r\n")
    assert lines == [b"a\r"]
    assert notes.crlf == notes.lone_cr == 1


def test_byte_order_marks_at_line_starts_are_stripped_and_noted():
    lines, notes = read(BOM + b"a\nb\n" + BOM + b"c\nd" + BOM + b"\n")
    assert lines == [b"a", b"b", b"c", b"d" + BOM]
    assert notes.sentences() == ["a byte order mark was stripped at line 1, 3"]


@pytest.mark.parametrize("size", range(1, 12))
def test_the_size_of_blocks_changes_nothing(monkeypatch, size):
    raw = BOM + b"a\r\nbb\rb\n\n" + BOM + b"ccc\r\nd"
    whole = read(raw)
    monkeypatch.setattr(intake, "_BLOCK_BYTES", size)
    assert read(raw) == whole


@pytest.mark.parametrize(
    ("encoding", "said"),
    (
        ("utf-16", "UTF-16 (little endian)"),
        ("utf-16-le", "UTF-16 (little endian)"),
        ("utf-16-be", "UTF-16 (big endian)"),
        ("utf-32", "UTF-32 (little endian)"),
        ("utf-32-be", "UTF-32"),
    ),
)
def test_wide_encodings_are_named(encoding, said):
    with pytest.raises(TaskInvalid) as error:
        read('{"name": "a", "command": ["true"]}\n{"name": "b"}\n'.encode(encoding))
    assert str(error.value).startswith(f"list:1: this looks like {said}")
    assert "iconv" in str(error.value)


def test_a_wide_part_in_the_middle_is_refused_with_its_line():
    with pytest.raises(TaskInvalid, match=r"list:3: this looks like UTF-16, and"):
        read(b"echo a\necho b\n" + "echo c\necho d\n".encode("utf-16-le"))


def test_a_zero_byte_is_refused_with_its_line():
    with pytest.raises(TaskInvalid, match="list:2: this looks like binary data"):
        read(b"echo a\necho a long line with one \0 in it\n")


def test_a_line_without_end_is_refused_before_it_fills_the_memory(monkeypatch):
    monkeypatch.setattr(intake, "_MAX_LINE_BYTES", 100)
    monkeypatch.setattr(intake, "_BLOCK_BYTES", 64)
    with pytest.raises(TaskInvalid, match="list:2: the line is longer than"):
        read(b"a\n" + b"x" * 1000)
