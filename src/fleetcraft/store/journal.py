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


class JournalEnded(OutOfReach):
    """This journal can take no more records; its writer must end its life without removing a claim."""

    code = "journal_ended"


class JournalWriter:
    """The one writer of one new file."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self.path = path
        self._descriptor = files.open_new(path, append=True)
        self.number = 0  # of the last record
        self.length = 0  # bytes written, also damaged ones
        self.durable = 0  # bytes covered by the last sync
        self._torn = False
        self.ended = False

    def append(self, body: str) -> None:
        """Write one record whose number is `number + 1`.

        Raises OSError when nothing or not all of it could be written; the record then does not exist.
        """
        line = encode_line(body)
        if self._torn:
            line = b"\n" + line
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
        self.number += 1

    def sync(self) -> None:
        """Make everything written so far durable. Raises JournalEnded, after which nothing may be appended."""
        if self.durable == self.length and not self.ended:
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
        os.close(self._descriptor)


class Line(NamedTuple):
    """One line as a reader found it: `record` is None when it is damaged."""

    offset: int
    length: int
    record: dict[str, Any] | None


def read_lines(files: Files, path: str, offset: int = 0, stop: int | None = None) -> Iterator[Line]:
    """The whole lines from byte `offset` on (up to byte `stop`); a torn last line is held back.

    Lines end at the byte 0x0A and nowhere else. Memory stays constant, also over long damage.
    """
    descriptor = files.open_read(path)
    try:
        pending = b""
        position = offset
        while stop is None or position < stop:
            want = _CHUNK_BYTES if stop is None else min(_CHUNK_BYTES, stop - position)
            chunk = os.pread(descriptor, want, position)
            if not chunk:
                break
            position += len(chunk)
            block = pending + chunk if pending else chunk
            *lines, pending = block.split(b"\n")
            for line in lines:
                if line:
                    yield Line(offset, len(line) + 1, decode_line(line))
                offset += len(line) + 1
            if len(pending) > 64 * _CHUNK_BYTES:
                # No record is that long: a hole. Keep only its end, where the next good line may begin.
                offset += len(pending) - _CHUNK_BYTES
                pending = pending[-_CHUNK_BYTES:]
    finally:
        os.close(descriptor)


def is_storage_full(error: OSError) -> bool:
    """True when nothing can be written now, for lack of space, quota, inodes or permission to write."""
    return error.errno in FULL
