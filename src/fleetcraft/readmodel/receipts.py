"""The record that decided about each of many tasks, found in one pass and read one by one.

A location takes eight bytes a task, so a listing of a million tasks needs no memory to speak of.
"""

from __future__ import annotations

import mmap
import re
from array import array
from collections.abc import Mapping
from typing import Any

from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.records import decode_line
from fleetcraft.core.states import TaskState
from fleetcraft.readmodel.picture import Picture
from fleetcraft.readmodel.records import journal_paths, unwrap
from fleetcraft.store.files import GONE

_OFFSET_BITS = 44
_TYPE = re.compile(rb'"t":"(started|receipt|lost)"')
# As a journal has it, and as a segment has it.
_PLAIN = re.compile(
    rb'(?:\{"life":"[a-z0-9-]+","n":\d+,"rec":)?\{"n":\d+,"t":"receipt","b":(\d+),"i":(\d+),"g":0,"a":1,'
)
_GROUP = b'"k":'


class ReceiptIndex:
    """Locations of the deciding records of `wanted` tasks; for a running task, of its `started` record."""

    def __init__(self, picture: Picture, wanted: Mapping[int, RangeSet]) -> None:
        self._picture = picture
        self._files: list[tuple[str, mmap.mmap]] = []
        self._places: dict[int, array[int]] = {}
        self._running: dict[int, RangeSet] = {}
        for batch in wanted:
            place = picture.spool.places().get(batch)
            self._places[batch] = array("Q", bytes(8 * (place.count if place else 0)))
            running = picture.states.get(batch, {}).get(TaskState.RUNNING)
            if running:
                self._running[batch] = running
        for life, path in journal_paths(picture.spool):
            self._read(life, path)

    def find(self, batch: int, index: int) -> tuple[str, dict[str, Any]] | None:
        """(life, record), or None when there is none or it is damaged."""
        places = self._places.get(batch)
        location = places[index] if places is not None and index < len(places) else 0
        if not location:
            return None
        number, offset = divmod(location - 1, 1 << _OFFSET_BITS)
        life, data = self._files[number]
        end = data.find(b"\n", offset)
        record = decode_line(data[offset:end])
        return unwrap(life, record) if record is not None else None

    def _read(self, life: str, path: str) -> None:
        try:
            with open(path, "rb") as source:
                data = mmap.mmap(source.fileno(), 0, prot=mmap.PROT_READ)
        except ValueError:
            return  # empty
        except OSError as error:
            if error.errno not in GONE:
                raise
            return
        self._files.append((life, data))
        base = (len(self._files) - 1) << _OFFSET_BITS
        offset = 0
        for line in iter(data.readline, b""):
            if line[-1:] == b"\n":
                self._take(life, line, base + offset + 1)
            offset += len(line)

    def _take(self, life: str, line: bytes, location: int) -> None:
        plain = _PLAIN.match(line)
        if plain is not None and _GROUP not in line:
            batch, index = int(plain[1]), int(plain[2])
            places = self._places.get(batch)
            if places is not None and index < len(places) and self._is_regular(batch, index):
                places[index] = location
                return
        kind = _TYPE.search(line)
        if kind is None or (kind[1] == b"started" and not self._running):
            return
        record = decode_line(line)
        found = unwrap(life, record) if record is not None else None
        if found is not None:
            self._decide(*found, location)

    def _is_regular(self, batch: int, index: int) -> bool:
        fold = self._picture.reader.fold
        return (batch, index) not in fold.events and (batch, index) not in fold.generations

    def _decide(self, life: str, record: dict[str, Any], location: int) -> None:
        kind, batch, first = record.get("t"), record.get("b"), record.get("i")
        places = self._places.get(batch) if isinstance(batch, int) else None
        if places is None or not isinstance(batch, int) or not isinstance(first, int):
            return
        running = self._running.get(batch, RangeSet())
        for index in range(first, min(len(places), first + int(record.get("k", 1)))):
            if index in running:
                # Nothing ended the attempt that runs now; what is known of it is how it started.
                if kind == "started" and self._is_open(batch, index, life, record):
                    places[index] = location
            elif kind != "started" and self._decides(batch, index, life, record):
                places[index] = location

    def _is_open(self, batch: int, index: int, life: str, record: dict[str, Any]) -> bool:
        key = (life, batch, record.get("g"), record.get("a"))
        return any(opened[:4] == key and index in ranges for opened, ranges in self._picture.reader.fold.open.items())

    def _decides(self, batch: int, index: int, life: str, record: dict[str, Any]) -> bool:
        if self._is_regular(batch, index):
            return record.get("t") == "receipt"
        event = self._picture.reader.fold.verdict(batch, index).event
        if event is None:
            # A plain first success of a task of which only duplicates are known one by one.
            return self._picture.reader.fold.generation(batch, index) == record.get("g")
        owner = record.get("life", life) if record.get("t") == "lost" else life
        return (record.get("g"), record.get("a"), owner) == (event.gen, event.attempt, event.life)
