"""Writes the roll-up of the segment that is being written. It is only a help, so its troubles end nothing."""

from __future__ import annotations

import os

from fleetcraft.store.files import Files, write_all
from fleetcraft.telemetry.api import Reading
from fleetcraft.telemetry.rollup import USED, Rolled, Roller, baselines, head_lines, lines_of, rollup_path
from fleetcraft.telemetry.segment import Header


class RollupWriter:
    """Adds up what goes into a segment, and appends each window when it has ended."""

    def __init__(self, files: Files, segment_path: str, header: Header) -> None:
        self._files = files
        self._path = rollup_path(segment_path)
        self._head = head_lines(os.path.basename(segment_path), header)
        self._roller = Roller(round(header.interval_s * 1000), baselines(header))
        self._waiting: list[Rolled] = []
        self._is_begun = False
        self._is_broken = False

    def add(self, n: int, utc_ms: int, reading: Reading, offset: int) -> None:
        """One row of the segment and where it stands."""
        values = {name: reading.values.get(name) for name in USED if name not in reading.reasons}
        self._roller.add(n, utc_ms, reading.state.value, values, offset)

    def flush(self) -> None:
        """Write the windows that ended."""
        if self._roller.stepped:
            self._give_up()
        self._waiting += self._roller.take()
        if self._waiting:
            self._append()

    def close(self, offset: int) -> None:
        """The segment is whole: its last windows, short as they may be, are too."""
        self._waiting += self._roller.close(offset)
        if self._waiting:
            self._append()

    def _append(self) -> None:
        if self._is_broken:
            self._waiting.clear()
            return
        lines = lines_of(self._waiting)
        data = "\n".join(lines if self._is_begun else [*self._head, *lines]).encode("ascii") + b"\n"
        try:
            descriptor = (
                self._files.open_append(self._path) if self._is_begun else self._files.open_new(self._path, append=True)
            )
            try:
                write_all(self._files, descriptor, data)
            finally:
                self._files.close(descriptor)
        except OSError:
            self._give_up()
            return
        self._is_begun = True
        self._waiting.clear()

    def _give_up(self) -> None:
        """Half a roll-up would be taken for a whole one: without any, the segment is read."""
        if self._is_broken:
            return
        self._is_broken = True
        self._waiting.clear()
        try:
            self._files.unlink(self._path)
        except OSError:
            return
