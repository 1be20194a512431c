"""Writes segments: whole lines, one append for each tick, and a name that was never there before.

What a reader on another machine sees is what was closed, so the file is closed and opened again each minute. There
is no sync: losing the last seconds in a crash costs less than a sync every tick does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from fleetcraft.store.files import Files
from fleetcraft.telemetry.segment import COLUMN_LINE, ENDING, Header, segment_stem

REOPEN_EVERY_S = 60.0
_TRIES = 100


class SegmentWriter:
    """One segment that is being written. Every method raises OSError as the storage gave it."""

    def __init__(self, files: Files, folder: str, header: Header, now_mono_s: float) -> None:
        self._files = files
        self._torn = False  # the last write was cut, so a newline must come first
        self._opened_s = now_mono_s
        started = header.started_utc_ms
        for _ in range(_TRIES):
            name = segment_stem(started, header.boot_id, header.job) + ENDING
            try:
                self._descriptor = files.open_new(os.path.join(folder, name), append=True)
                break
            except FileExistsError:
                started += 1  # a clock that was set back, or another sampler of this host
        else:
            raise FileExistsError(f"{folder} has {_TRIES} segments that begin at {header.started_utc_ms}")
        self.header = replace(header, started_utc_ms=started)
        self.name = name
        self.path = os.path.join(folder, name)
        self.size = 0
        try:
            self.append([self.header.line(), COLUMN_LINE])
        except OSError:
            self._discard()
            raise

    def append(self, lines: Sequence[str]) -> int:
        """Add whole lines at once; returns where they begin."""
        begin = self.size
        data = "\n".join(lines).encode("ascii", "replace") + b"\n"
        if self._torn:
            data, begin = b"\n" + data, begin + 1
        written = self._files.write(self._descriptor, data)
        self.size += written
        if written < len(data):
            self._torn = self._torn or written > 0
            rest = self._files.write(self._descriptor, data[written:])  # says what is wrong, or takes it
            self.size += rest
            self._torn = self._torn or rest > 0
            if written + rest < len(data):
                raise OSError(28, "the write was cut short")
        self._torn = False
        return begin

    def reopen_when_due(self, now_mono_s: float) -> None:
        """Show other machines what was written. An error means that the file is not there any more."""
        if now_mono_s - self._opened_s >= REOPEN_EVERY_S:
            self._opened_s = now_mono_s
            before, self._descriptor = self._descriptor, -1
            try:
                self._files.close(before)
            finally:
                self._descriptor = self._files.open_append(self.path)

    @property
    def is_open(self) -> bool:
        """False after it could not be opened again."""
        return self._descriptor >= 0

    def close(self) -> None:
        """Close; errors of earlier writes may be told only now."""
        if self._descriptor >= 0:
            before, self._descriptor = self._descriptor, -1
            self._files.close(before)

    def _discard(self) -> None:
        """A segment without its head is nothing; what cannot be removed is an empty file, and readers say so."""
        for step in (self.close, lambda: self._files.unlink(self.path)):
            try:
                step()
            except OSError:
                continue
