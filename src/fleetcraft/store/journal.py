"""A journal: append-only records with exactly one writer, ever, and readers that never change it.

One write per record. After a short or failed write the next one begins with a newline, so that damage stays
inside one line. A failed sync ends the journal: what the kernel dropped cannot be known.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from fleetcraft.core.errors import OutOfReach
from fleetcraft.core.records import decode_line, encode_line
from fleetcraft.store.files import FULL, Files, explain

_CHUNK_BYTES = 1 << 20
# No record is that long; what goes on beyond it is damage and is not kept in memory.
_LONGEST_BYTES = 64 << 20


class JournalEnded(OutOfReach):
    """This journal can take no more records; its writer must end its life without removing a claim."""

    code = "journal_ended"


class JournalWriter:
    """The one writer of one new file."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self.path = path
        self._descriptor = files.open_new(path, append=True)
        self.number = 0  # of the last record; one that could not be written uses up its number
        self.length = 0  # bytes written, also damaged ones
        self.durable = 0  # bytes covered by the last sync
        self._torn = False
        self.ended = False

    def append(self, body: str) -> None:
        """Write one record whose number is `number + 1`.

        Raises OSError when nothing or not all of it could be written. Whether the record exists is then unknown
        (its newline alone may be missing), so its number is not given to another. Raises JournalEnded after a
        failed sync.
        """
        if self.ended:
            raise JournalEnded(f"{self.path} takes no more records: an earlier sync failed.")
        line = encode_line(body)
        if self._torn:
            line = b"\n" + line
        self.number += 1
        try:
            written = self._files.write(self._descriptor, line)
        except OSError:
            # How much reached the file is unknown (a failed write may have been partly done).
            self._torn = True
            self.length = os.lseek(self._descriptor, 0, os.SEEK_END)
            raise
        self.length += written
        if written != len(line):
            self._torn = True
            raise OSError(errno.ENOSPC, f"short write to {self.path}")
        self._torn = False

    def sync(self) -> None:
        """Make everything written so far durable. Raises JournalEnded, after which nothing may be appended."""
        if self.ended:
            # A second sync may well succeed: the kernel reports an error once and drops the pages.
            raise JournalEnded(f"{self.path} cannot be made durable: an earlier sync failed.")
        if self.durable == self.length:
            return
        length = self.length
        try:
            self._files.sync(self._descriptor)
        except OSError as error:
            self.ended = True
            raise JournalEnded(str(explain(error, f"Cannot sync {self.path}"))) from error
        self.durable = length

    def close(self) -> None:
        """Close the descriptor."""
        self._files.close(self._descriptor)


class Line(NamedTuple):
    """One line as a reader found it: `record` is None when it is damaged."""

    offset: int
    length: int
    record: dict[str, Any] | None


def read_lines(files: Files, path: str, offset: int = 0, stop: int | None = None) -> Iterator[Line]:
    """The whole lines from byte `offset` on (up to byte `stop`); a torn last line is held back.

    Lines end at the byte 0x0A and nowhere else. Zero bytes before a line (a hole left by a crash or a network
    file system) are damage of their own, and the line behind them is read. Time is linear and memory constant,
    also over long damage.
    """
    descriptor = files.open_read(path)
    try:
        splitter = _Splitter(offset)
        position = offset
        while stop is None or position < stop:
            want = _CHUNK_BYTES if stop is None else min(_CHUNK_BYTES, stop - position)
            chunk = os.pread(descriptor, want, position)
            if not chunk:
                break
            position += len(chunk)
            yield from splitter.feed(chunk)
    finally:
        os.close(descriptor)


class _Splitter:
    """Cuts chunks into lines; keeps what is open at the end of a chunk."""

    def __init__(self, offset: int) -> None:
        self.offset = offset  # where the open line begins
        self.zeros = 0  # zero bytes at its begin
        self.parts: list[bytes] = []  # what follows them
        self.held = 0  # bytes in parts
        self.dropped = 0  # bytes of a line that is too long for any record

    def feed(self, chunk: bytes) -> Iterator[Line]:
        first, *others = chunk.split(b"\n")
        self._hold(first)
        for piece in others:
            yield from self._end_line()
            self._hold(piece)

    def _hold(self, piece: bytes) -> None:
        if not self.held and not self.dropped and piece[:1] == b"\0":
            rest = piece.lstrip(b"\0")
            self.zeros += len(piece) - len(rest)
            piece = rest
        if piece:
            self.parts.append(piece)
            self.held += len(piece)
            if self.held > _LONGEST_BYTES:
                self.dropped += self.held
                self.parts, self.held = [], 0

    def _end_line(self) -> Iterator[Line]:
        if self.zeros:
            yield Line(self.offset, self.zeros, None)
            self.offset += self.zeros
        length = self.dropped + self.held + 1
        if length > 1:
            line = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
            yield Line(self.offset, length, None if self.dropped else decode_line(line))
        self.offset += length
        self.zeros = self.held = self.dropped = 0
        self.parts = []


def is_storage_full(error: OSError) -> bool:
    """True when nothing can be written now, for lack of space, quota, inodes or permission to write."""
    return error.errno in FULL
