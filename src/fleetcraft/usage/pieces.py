"""Bytes of files that are still being written: the whole lines of a span of time, and which bytes they were."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

_HEAD_BYTES = 1 << 13
_LARGE_HEAD_BYTES = 1 << 20
# A file up to this size is read whole: looking for the place costs more.
_WHOLE_BYTES = 1 << 16
_PROBE_BYTES = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes [start, end) of a file, as they were read."""

    path: str
    start: int
    end: int


@dataclass(slots=True, kw_only=True)
class Part:
    """The head of a segment and the lines of a span, with where they lie."""

    head: bytes  # the first two lines
    body: bytes
    pieces: list[Piece]
    size: int
    cut_tail: bool = False  # the last line has no end yet


def open_file(path: str) -> int:
    """A descriptor for reading. Raises ValueError for what is no file: a pipe would be waited for, without end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is no file")
    return descriptor


def read_all(path: str) -> bytes:
    """Everything that a file holds now."""
    descriptor = open_file(path)
    try:
        size = os.fstat(descriptor).st_size
        return _read(descriptor, 0, size)
    finally:
        os.close(descriptor)


def read_lines(
    path: str, stamp_of: Callable[[bytes], int | None], since_ms: int | None, until_ms: int | None, from_byte: int = 0
) -> Part:
    """The lines of a segment whose stamps may lie in [since, until), from `from_byte` on.

    Lines are in order of time, so the places are found by halving, down to two probes; both ends are generous.
    """
    descriptor = open_file(path)
    try:
        size = os.fstat(descriptor).st_size
        if (size <= _WHOLE_BYTES or since_ms is until_ms is None) and not from_byte:
            data = _read(descriptor, 0, size)
            head_end = _end_of_head(data)
            whole = data.rfind(b"\n") + 1
            body = data[head_end:whole]
            end = max(head_end, whole)
            pieces = [Piece(path=path, start=0, end=head_end), Piece(path=path, start=head_end, end=end)]
            return Part(head=data[:head_end], body=body, pieces=pieces, size=size, cut_tail=whole < size)
        data = _read(descriptor, 0, min(size, _HEAD_BYTES))
        if data.count(b"\n") < 2:
            data = _read(descriptor, 0, min(size, _LARGE_HEAD_BYTES))  # many devices
        head_end = _end_of_head(data)
        first = max(head_end, from_byte)
        if since_ms is not None:
            first = _halve(descriptor, stamp_of, since_ms, first, size)
        last = size if until_ms is None else _halve(descriptor, stamp_of, until_ms, first, size) + 3 * _PROBE_BYTES
        body = _read(descriptor, first, min(size, last) - first)
        whole = body.rfind(b"\n") + 1
        pieces = [Piece(path=path, start=0, end=head_end), Piece(path=path, start=first, end=first + whole)]
        cut = whole < len(body) and last >= size
        return Part(head=data[:head_end], body=body[:whole], pieces=pieces, size=size, cut_tail=cut)
    finally:
        os.close(descriptor)


def _read(descriptor: int, start: int, length: int) -> bytes:
    data = os.pread(descriptor, length, start)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), start + len(data))
        if not more:
            break
        data += more
    return data


def _end_of_head(data: bytes) -> int:
    """Where the two lines end that every segment begins with; all of it where they are not there."""
    first = data.find(b"\n") + 1
    second = data.find(b"\n", first) + 1
    return second if first and second else len(data)


def _halve(descriptor: int, stamp_of: Callable[[bytes], int | None], wanted_ms: int, low: int, high: int) -> int:
    """The begin of a line at or before the first one of `wanted_ms`; `low` is the begin of a line."""
    while high - low > _PROBE_BYTES * 2:
        middle = (low + high) // 2
        found = _line_after(descriptor, stamp_of, middle, high)
        if found is None:
            high = middle
            continue
        begin, stamp = found
        if stamp < wanted_ms:
            low = begin
        else:
            high = middle
    return low


def _line_after(descriptor: int, stamp_of: Callable[[bytes], int | None], at: int, high: int) -> tuple[int, int] | None:
    """The begin and the stamp of the first line behind `at` that has one."""
    data = _read(descriptor, at, min(_PROBE_BYTES, high - at))
    place = data.find(b"\n") + 1
    while place and place < len(data):
        end = data.find(b"\n", place)
        if end < 0:
            return None
        stamp = stamp_of(data[place:end])
        if stamp is not None:
            return at + place, stamp
        place = end + 1
    return None
