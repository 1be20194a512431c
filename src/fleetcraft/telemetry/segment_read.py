"""Reads segments that may still be written: whole lines only, from any place, with damage counted and passed over.

A last line without its newline is held back until it is whole; a crash may have left it so for ever.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fleetcraft.telemetry.segment import COLUMNS, LEAD, Header, Slot, Statement, parse_statement, slots_of

# Nothing that a GPU tells comes near, and what is summed below it stays finite.
LARGEST = 1e30
_BLOCK_BYTES = 1 << 16
_MOST_HEAD_BYTES = 1 << 20
# A read takes at most so much at once, so that a long file costs no memory.
_MOST_AT_ONCE = 8 << 20


@dataclass(slots=True, kw_only=True)
class Piece:
    """What was read at once. Cells are text; the first ones are known to be numbers."""

    rows: list[list[str]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)  # where each row begins
    statements: list[Statement] = field(default_factory=list)
    start: int = 0
    end: int = 0
    malformed: int = 0
    cut_tail: bool = False  # the file ends within a line


@dataclass(slots=True)
class Columns:
    """The rows of one device."""

    seq: list[int] = field(default_factory=list)
    utc_ms: list[int] = field(default_factory=list)
    mono_ms: list[int] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    values: dict[str, list[float | None]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    malformed: int = 0  # cells that are no number


class Reader:
    """Follows one segment. Only OSError of the file itself is raised; whatever is in it is counted."""

    def __init__(self, path: str, offset: int = 0) -> None:
        self.path = path
        self.header: Header | None = None
        self.columns: tuple[str, ...] = COLUMNS
        self.devices: dict[int, Slot] = {}
        self.problem = ""
        self.malformed = 0
        self.head_end = 0
        self.offset = 0
        self._wanted = offset
        self._tail = 0

    def read(self, end: int | None = None) -> Piece:
        """All whole lines that came since the last call, up to `end`."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            told = os.fstat(descriptor)
            if not stat.S_ISREG(told.st_mode):  # a pipe would be waited for, without end
                self.problem = "it is no file"
                return Piece()
            size = told.st_size
            if size < self.offset:
                self._start_over(f"it shrank from {self.offset} to {size} bytes")
            if not self.head_end and not self._read_head(descriptor, size):
                return Piece(cut_tail=size > 0)
            return self._read_lines(descriptor, size if end is None else min(end, size), size)
        finally:
            os.close(descriptor)

    def finish(self) -> int:
        """The bytes of a last line that was cut, counted as malformed: to be called when nobody writes any more."""
        if self._tail:
            self.malformed += 1
        return self._tail

    def _start_over(self, why: str) -> None:
        self.header, self.devices, self.head_end, self.offset, self._wanted = None, {}, 0, 0, 0
        self.problem = why

    def _read_head(self, descriptor: int, size: int) -> bool:
        """The first two lines; False while they are not whole."""
        data = os.pread(descriptor, min(size, _MOST_HEAD_BYTES), 0)
        first = data.find(b"\n")
        second = data.find(b"\n", first + 1)
        if first < 0 or second < 0:
            self._tail = size
            if size >= _MOST_HEAD_BYTES:
                self.problem = "it has no head of a telemetry segment"
            return False
        try:
            self.header = Header.parse(data[:first].decode("utf-8", "replace"))
        except ValueError as error:
            self.problem = str(error)
        else:
            self.devices = {slot.n: slot for slot in self.header.slots}
        names = tuple(data[first + 1 : second].decode("utf-8", "replace").split(","))
        if names[: len(LEAD)] == LEAD:
            self.columns = names
        elif not self.problem:
            self.problem = "its second line does not name the columns"
        self.head_end = second + 1
        self.offset = max(self.head_end, self._wanted)
        return True

    def _read_lines(self, descriptor: int, end: int, size: int) -> Piece:
        piece = Piece(start=self.offset, end=self.offset)
        while self.offset < end:
            data = _pread(descriptor, min(end - self.offset, _MOST_AT_ONCE), self.offset)
            whole = data.rfind(b"\n") + 1
            if not whole:
                if len(data) < _MOST_AT_ONCE:
                    break
                whole = len(data)  # no line of ours is as long
            self._take(data[:whole], piece)
            self.offset += whole
            if whole < len(data) < _MOST_AT_ONCE:
                break
        piece.end = self.offset
        self._tail = size - self.offset if end == size else 0
        piece.cut_tail = self._tail > 0
        self.malformed += piece.malformed
        return piece

    def _take(self, data: bytes, piece: Piece) -> None:
        width, at = len(self.columns), self.offset
        for raw in data.split(b"\n")[:-1]:
            begin, at = at, at + len(raw) + 1
            # A file system that lost its power may leave zeros where a line was promised.
            line = raw.decode("ascii", "replace")
            if line.startswith("#"):
                self._state(line, begin, piece)
                continue
            cells = line.split(",")
            if len(cells) == width and all(map(_is_number, cells[:3])) and _is_number(cells[4]):
                piece.rows.append(cells)
                piece.offsets.append(begin)
            elif line:
                piece.malformed += 1

    def _state(self, line: str, begin: int, piece: Piece) -> None:
        try:
            told = parse_statement(line, begin)
        except ValueError:
            piece.malformed += 1
            return
        piece.statements.append(told)
        if told.kind == "devices":
            self.devices.update({slot.n: slot for slot in slots_of(told.body.get("devices"))})


def _is_number(cell: str) -> bool:
    # Of more digits than a time has, it is damage; and int() of thousands of them raises.
    return cell.isascii() and cell.isdigit() and len(cell) <= 18


def _pread(descriptor: int, length: int, at: int) -> bytes:
    data = os.pread(descriptor, length, at)
    while 0 < len(data) < length:
        more = os.pread(descriptor, length - len(data), at + len(data))
        if not more:
            break
        data += more
    return data


def columns_of(
    rows: Iterable[Sequence[str]], columns: Sequence[str], names: Iterable[str] | None = None
) -> dict[int, Columns]:
    """The rows of a piece, each device for itself; `names` are the fields wanted, all of the file by default."""
    place = {name: at for at, name in enumerate(columns)}
    wanted = [name for name in (place if names is None else names) if name in place and name not in _NOT_VALUES]
    by_device: dict[str, list[Sequence[str]]] = {}
    for row in rows:
        by_device.setdefault(row[4], []).append(row)
    found: dict[int, Columns] = {}
    for n, mine in by_device.items():
        across = list(zip(*mine, strict=True))
        one = found[int(n)] = Columns(
            seq=list(map(int, across[0])),
            utc_ms=list(map(int, across[1])),
            mono_ms=list(map(int, across[2])),
            states=list(across[5]),
            reasons=list(across[place["reasons"]]) if "reasons" in place else [],
        )
        for name in wanted:
            one.values[name] = _numbers(across[place[name]], one)
    return found


_NOT_VALUES = frozenset((*LEAD, "reasons"))


def _numbers(cells: Sequence[str], one: Columns) -> list[float | None]:
    if not any(cells):
        return [None] * len(cells)
    values: list[float | None] = []
    for cell in cells:
        value = number(cell)
        if value is None and cell:
            one.malformed += 1
        values.append(value)
    return values


def number(cell: str) -> float | None:
    """The number in a cell; None for an empty one, and for what is none that a GPU could tell."""
    if not cell:
        return None
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if abs(value) < LARGEST else None  # not a NaN either


def offset_since(path: str, since_ms: int) -> int:
    """The begin of a line from which on every sample of `since_ms` or later is found, by reading from the end.

    The file is never read further back than needed. 0 when all of it is needed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        end = os.fstat(descriptor).st_size
        rest = b""
        while end > 0:
            start = max(0, end - _BLOCK_BYTES)
            data = _pread(descriptor, end - start, start) + rest
            # What stands before the first newline began in the block before.
            first = 0 if start == 0 else data.find(b"\n") + 1
            if first or start == 0:
                found = _behind_earlier(data[first:], start + first, since_ms)
                if found is not None:
                    return found
            rest, end = (data[:first] if first else data), start
        return 0
    finally:
        os.close(descriptor)


def _behind_earlier(data: bytes, base: int, since_ms: int) -> int | None:
    """Where the lines behind the last sample before `since_ms` begin; None where all are of that time or later."""
    found, at = None, base
    for raw in data.split(b"\n"):
        at += len(raw) + 1
        cells = raw[:80].split(b",", 3)
        if len(cells) == 4 and cells[0].isdigit() and cells[1].isdigit() and int(cells[1]) < since_ms:
            found = min(at, base + len(data))
    return found
