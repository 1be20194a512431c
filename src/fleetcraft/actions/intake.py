"""Lines of a task list as bytes: cut at 0x0A only, with what editors leave behind taken off and counted.

A line is never altered in silence: what was stripped, or looks odd and was kept, stands in the notes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from fleetcraft.core.errors import TaskInvalid, UsageError

_BLOCK_BYTES = 1 << 20
_MAX_LINE_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"
# UTF-32 comes first: its little-endian mark begins with the one of UTF-16.
_MARKS = (
    (b"\xff\xfe\0\0", "UTF-32 (little endian)"),
    (b"\0\0\xfe\xff", "UTF-32 (big endian)"),
    (b"\xff\xfe", "UTF-16 (little endian)"),
    (b"\xfe\xff", "UTF-16 (big endian)"),
)


@dataclass(slots=True)
class InputNotes:
    """What was odd about an input, for the person."""

    crlf: int = 0
    marks: list[int] = field(default_factory=list)
    lone_cr: int = 0
    first_lone_cr: int = 0
    comments: int = 0

    def sentences(self) -> list[str]:
        """The notes as they are shown."""
        found = []
        if self.crlf:
            found.append(f"{_lines(self.crlf)} ended in CRLF; the CR was stripped")
        if self.marks:
            found.append(f"a byte order mark was stripped at line {', '.join(map(str, self.marks[:5]))}")
        if self.lone_cr:
            found.append(
                f"{_lines(self.lone_cr)} had a CR that is no part of a line end; it was kept "
                f"(first at line {self.first_lone_cr})"
            )
        if self.comments:
            found.append(f"{_lines(self.comments)} that began with # {'was' if self.comments == 1 else 'were'} skipped")
        return found


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


def line_blocks(source: BinaryIO, label: str, notes: InputNotes) -> Iterator[tuple[int, list[bytes]]]:
    """(number of the first line, lines without their end), block by block, so that memory stays flat.

    Raises TaskInvalid when the input is not a list of lines in an encoding that contains ASCII.
    """
    number = 1
    pending = b""
    while block := _read(source, label):
        if number == 1 and not pending:
            _refuse_wide(block, label)
        *lines, pending = (pending + block if pending else block).split(b"\n")
        if len(pending) > _MAX_LINE_BYTES:
            raise TaskInvalid(
                f"{label}:{number + len(lines)}: the line is longer than {_MAX_LINE_BYTES >> 20} MiB.",
                hint="A task list has one task on each line.",
            )
        if b"\r" in block or _BOM in block or b"\0" in block or (lines and _needs_care(lines[0])):
            lines = [_clean(raw, place, label, notes) for place, raw in enumerate(lines, number)]
        if lines:
            yield number, lines
            number += len(lines)
    if pending:
        yield number, [_clean(pending, number, label, notes, ended=False)]


def _read(source: BinaryIO, label: str) -> bytes:
    try:
        return source.read(_BLOCK_BYTES)
    except OSError as error:
        raise UsageError(f"Cannot read {label}: {error.strerror}.") from error


def _needs_care(line: bytes) -> bool:
    """The first line of a block may hold what the block before it ended with."""
    return b"\r" in line or _BOM in line or b"\0" in line


def _clean(raw: bytes, number: int, label: str, notes: InputNotes, *, ended: bool = True) -> bytes:
    if raw.startswith(_BOM):
        raw = raw[len(_BOM) :]
        notes.marks.append(number)
    if ended and raw.endswith(b"\r"):
        raw = raw[:-1]
        notes.crlf += 1
    if b"\r" in raw:
        notes.lone_cr += 1
        notes.first_lone_cr = notes.first_lone_cr or number
    if b"\0" in raw:
        # Which byte comes first cannot be told in the middle of a file: the cut at 0x0A shifts the pairs.
        raise _not_utf8(label, number, _guess(raw).partition(" (")[0])
    return raw


def _refuse_wide(block: bytes, label: str) -> None:
    for mark, name in _MARKS:
        if block.startswith(mark):
            found = name
            break
    else:
        sample = block[:4096].partition(b"\n")[0]
        if sample.count(0) * 4 <= len(sample):
            return
        found = _guess(sample)
    raise _not_utf8(label, 1, found)


def _not_utf8(label: str, number: int, encoding: str) -> TaskInvalid:
    hint = "Name a file of lines or JSON lines."
    if encoding.startswith("UTF"):
        hint = f"Convert it: `iconv -f {encoding.partition(' ')[0]} -t UTF-8`."
    return TaskInvalid(f"{label}:{number}: this looks like {encoding}, and a task list is UTF-8.", hint=hint)


def _guess(raw: bytes) -> str:
    """The encoding that the places of the zero bytes speak for."""
    even, odd = raw[0::2].count(0), raw[1::2].count(0)
    if even + odd < len(raw) // 4:
        return "binary data"
    if 4 * min(even, odd) >= max(even, odd):
        return "UTF-32" if even + odd > len(raw) // 2 else "binary data"
    return "UTF-16 (little endian)" if odd > even else "UTF-16 (big endian)"
