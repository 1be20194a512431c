"""Reading a batch: its header, any task by position in one read, any name by its hash.

A ledger is immutable. A batch that folds smaller ones keeps their lines in order, so a task of a folded
batch is found at a fixed distance, and its id stays that of its first batch.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.errors import SpoolDamaged
from fleetcraft.core.names import TaskId
from fleetcraft.core.resources import Request
from fleetcraft.core.task import encode_text
from fleetcraft.spool.layout import Layout
from fleetcraft.store.files import Files

LEDGER_FORMAT = "fleetcraft-ledger"
LEDGER_VERSION = 1
POSITION_BITS = 24
MAX_BATCH_TASKS = 1 << POSITION_BITS
# Up to this many tasks a batch has no index and no names file: reading the ledger is as cheap.
SMALL_BATCH_TASKS = 64
_NAME_BITS_BYTES = 5


def name_hash(name: str) -> int:
    """40 bits of blake2b of the name; equal hashes are settled by comparing the names."""
    return int.from_bytes(hashlib.blake2b(encode_text(name), digest_size=_NAME_BITS_BYTES).digest(), "big")


def to_little_endian(values: array[int]) -> bytes:
    """The bytes of an array of 64-bit numbers as they stand in a file."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


@dataclass(frozen=True, slots=True)
class Folded:
    """One batch inside a batch that folds it."""

    batch: int
    count: int
    offset: int  # position of its first task in the folding batch
    defaults: int  # index into the header's defaults


@dataclass(slots=True)
class Batch:
    """One ledger, opened lazily; keeps no descriptor between calls."""

    number: int
    header: Mapping[str, Any]
    layout: Layout
    files: Files
    body_offset: int
    request: Request
    folds: Sequence[Folded]
    _small: list[bytes] | None = None
    _names: Sequence[int] | None = None
    _defaults: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many tasks the ledger holds."""
        return int(self.header["count"])

    @property
    def publication(self) -> str:
        """The id of the publication that made it; also the owner of its first draft token."""
        return str(self.header["publication"])

    @property
    def lane(self) -> str:
        """The lane of all its tasks."""
        return str(self.header["lane"])

    @property
    def priority(self) -> int:
        """The priority of all its tasks."""
        return int(self.header["priority"])

    @property
    def held(self) -> bool:
        """True when its tasks wait for others."""
        return bool(self.header.get("after", False))

    @property
    def is_small(self) -> bool:
        """True when the batch has no index and no names file."""
        return self.count <= SMALL_BATCH_TASKS

    def lines(self, start: int, stop: int) -> list[bytes]:
        """The raw lines of tasks [start, stop)."""
        if self.is_small:
            return self._all_lines()[start:stop]
        offsets = self.offsets(start, stop)
        descriptor = self.files.open_read(self.layout.ledger(self.number))
        try:
            data = os.pread(descriptor, offsets[-1] - offsets[0], offsets[0])
        finally:
            os.close(descriptor)
        lines = data.split(b"\n")[:-1]
        if len(lines) != stop - start:
            raise SpoolDamaged(
                f"Ledger {self.layout.ledger(self.number)} has {len(lines)} lines where {stop - start} are due "
                f"(tasks {start} to {stop}).",
                hint="Run `fleetcraft spool check`.",
            )
        return lines

    def offsets(self, start: int, stop: int) -> array[int]:
        """Byte offsets of tasks start to stop, the last one being the end."""
        descriptor = self.files.open_read(self.layout.index(self.publication))
        try:
            data = os.pread(descriptor, 8 * (stop - start + 1), 8 * start)
        finally:
            os.close(descriptor)
        offsets = array("Q", data)
        if sys.byteorder == "big":
            offsets.byteswap()
        if len(offsets) != stop - start + 1:
            raise SpoolDamaged(
                f"Index {self.layout.index(self.publication)} ends before task {stop}.",
                hint="Run `fleetcraft spool check`.",
            )
        return offsets

    def _all_lines(self) -> list[bytes]:
        if self._small is None:
            data = self.files.read(self.layout.ledger(self.number))
            self._small = data[self.body_offset :].split(b"\n")[:-1]
        return self._small

    def task(self, position: int) -> dict[str, Any]:
        """The whole description of one task, defaults included."""
        return self.complete(position, json.loads(self.lines(position, position + 1)[0]))

    def complete(self, position: int, line: Mapping[str, Any]) -> dict[str, Any]:
        """Lay a line over the defaults of its batch."""
        return {**self.defaults(position), **line}

    def defaults(self, position: int) -> Mapping[str, Any]:
        """The values that every task of the enqueue shares."""
        if not self._defaults:
            self._defaults.extend(self.header["defaults"])
        folded = self.folded_at(position)
        return self._defaults[folded.defaults if folded else 0]

    def folded_at(self, position: int) -> Folded | None:
        """The folded batch that owns a position, or None in an ordinary batch."""
        if not self.folds:
            return None
        place = bisect_left(self.folds, position + 1, key=lambda folded: folded.offset) - 1
        return self.folds[place]

    def origin(self, position: int) -> TaskId:
        """The id of the task at a position."""
        folded = self.folded_at(position)
        return TaskId(folded.batch, position - folded.offset) if folded else TaskId(self.number, position)

    def origins(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """(batch, first index, last index, first position) of each stretch of ids in [start, stop)."""
        if not self.folds:
            yield self.number, start, stop, start
            return
        for folded in self.folds:
            low, high = max(start, folded.offset), min(stop, folded.offset + folded.count)
            if low < high:
                yield folded.batch, low - folded.offset, high - folded.offset, low

    def find(self, name: str) -> int | None:
        """The position of a name, or None."""
        if self.is_small:
            wanted = name
            for position, line in enumerate(self._all_lines()):
                if json.loads(line)["name"] == wanted:
                    return position
            return None
        hashed = name_hash(name)
        entries = self.name_entries()
        place = bisect_left(entries, hashed << POSITION_BITS)
        while place < len(entries) and entries[place] >> POSITION_BITS == hashed:
            position = entries[place] & (MAX_BATCH_TASKS - 1)
            if json.loads(self.lines(position, position + 1)[0])["name"] == name:
                return position
            place += 1
        return None

    def name_entries(self) -> Sequence[int]:
        """Sorted 64-bit numbers: 40 bits of name hash, 24 bits of position."""
        if self._names is None:
            if self.is_small:
                hashes = [name_hash(json.loads(line)["name"]) for line in self._all_lines()]
                self._names = sorted(value << POSITION_BITS | place for place, value in enumerate(hashes))
            else:
                self._names = _map_numbers(self.files, self.layout.names(self.publication))
        return self._names


def _map_numbers(files: Files, path: str) -> Sequence[int]:
    descriptor = files.open_read(path)
    try:
        mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    if sys.byteorder == "big":
        numbers = array("Q", mapped[:])
        numbers.byteswap()
        return numbers
    return memoryview(mapped).cast("Q")


def open_batch(files: Files, layout: Layout, number: int) -> Batch:
    """Read the header of a batch. Raises FileNotFoundError when it is not visible, SpoolDamaged when unreadable."""
    path = layout.ledger(number)
    descriptor = files.open_read(path)
    try:
        head = os.pread(descriptor, 1 << 16, 0)
        while b"\n" not in head:
            more = os.pread(descriptor, 1 << 20, len(head))
            if not more:
                break
            head += more
    finally:
        os.close(descriptor)
    raw, newline, rest = head.partition(b"\n")
    try:
        header = json.loads(raw)
        if not newline or header["format"] != LEDGER_FORMAT or header["version"] > LEDGER_VERSION:
            raise ValueError("not a ledger of a version that we know")
        offset, folds = 0, []
        for batch, count, defaults in header.get("folds", ()):
            folds.append(Folded(batch, count, offset, defaults))
            offset += count
        batch = Batch(number, header, layout, files, len(raw) + 1, Request.from_json(header["request"]), tuple(folds))
    except (ValueError, KeyError, TypeError) as error:
        raise SpoolDamaged(
            f"The header of ledger {path} cannot be read ({error}).", hint="Run `fleetcraft spool check`."
        ) from error
    if batch.is_small and len(head) < 1 << 16:
        # The whole file came with the header, unless the read ended exactly inside it.
        lines = rest.split(b"\n")[:-1]
        if len(lines) == batch.count:
            batch._small = lines  # noqa: SLF001  our own class, filled by its factory
    return batch
