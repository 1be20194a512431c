"""One fold over every journal of a spool, read incrementally: only what is new costs time.

A life's `summary.json` holds the fold of its journal up to an offset; `segments/dead.json` holds the fold of
dead lives, whose journals never change. Both are shortcuts: deleting them changes no answer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.outcome import Fold
from fleetcraft.core.records import dump
from fleetcraft.spool import host
from fleetcraft.spool.host import Identity
from fleetcraft.spool.life import DEAD, HEARTBEAT, JOURNAL, SUMMARY, find_state, read_identity, read_json
from fleetcraft.spool.requests import RequestLog
from fleetcraft.spool.segments import load_fold, open_segment, segment_numbers
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import GONE, publish_file
from fleetcraft.store.journal import read_lines

DEAD_CACHE = "dead.json"
# Below this many uncached dead lives the cache is not worth a write.
_WORTH_CACHING = 32
_LOOKS = 3


@dataclass(slots=True)
class LifeReading:
    """How far one life has been read."""

    life: str
    identity: Identity | None = None
    offset: int = 0
    state: str | None = None
    heartbeat: dict[str, Any] | None = None
    damaged: int = 0
    cached: bool = False
    complete: bool = False  # dead and read to the end: never looked at again


@dataclass(slots=True)
class SpoolFold:
    """The fold of a whole spool; `refresh` brings it up to date.

    With `durable` only records that a crash of any machine cannot take back are read: those of this boot are
    made durable first (a sync of the journal by any process covers it), those of others end at their mark.
    """

    spool: Spool
    durable: bool = False
    shortcuts: bool = True  # check reads everything from the journals themselves
    fold: Fold = field(default_factory=Fold)
    lives: dict[str, LifeReading] = field(default_factory=dict)
    requests: RequestLog = field(init=False)
    _applied: tuple[int, int] = (0, 0)
    _boot: str | None = field(default_factory=host.boot_id)
    _read_cache: bool = False
    _segments: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.requests = RequestLog(self.spool)

    def refresh(self) -> None:
        """Read everything new."""
        self.requests.refresh()
        self._applied = self.requests.apply_to(self.fold, self._applied)
        if not self._read_cache and self.shortcuts:
            self._read_cache = True
            self._load_cache()
        for _ in range(_LOOKS):
            # Segments before and after the folders: a folder goes only when its segment has been there for long.
            self._load_segments()
            vanished = self._read_lives()
            self._load_segments()
            # What had records and is in no segment: the list of segments was older than that of the folders.
            if all(self.lives[life].complete or not self.lives[life].offset for life in vanished):
                return

    def _read_lives(self) -> list[str]:
        """Read every folder on; returns the lives whose folder vanished meanwhile or since the last look."""
        there = list(self.spool.lives())
        vanished = [life for life, reading in self.lives.items() if not reading.complete]
        for life in there:
            reading = self.lives.get(life)
            if reading is None:
                reading = self.lives[life] = LifeReading(life)
            if not reading.complete:
                try:
                    self._read(reading)
                except OSError as error:
                    if error.errno not in GONE:
                        raise
                    vanished.append(life)
        return [life for life in vanished if life not in there or self.lives[life].state is None]

    def _load_segments(self) -> None:
        for number in segment_numbers(self.spool):
            if number in self._segments:
                continue
            for life, packed in open_segment(self.spool, number).lives.items():
                identity = Identity.from_json(dict(packed.identity)) if packed.identity else None
                heartbeat = dict(packed.heartbeat) if packed.heartbeat else None
                self.lives[life] = LifeReading(
                    life, identity, packed.journal_bytes, DEAD, heartbeat, packed.damaged, cached=True, complete=True
                )
            load_fold(self.spool, number, self.fold, shortcuts=self.shortcuts)
            self._segments.add(number)

    def _load_cache(self) -> None:
        data = read_json(self.spool.files, os.path.join(self.spool.layout.segments, DEAD_CACHE))
        if data is None or data.get("version") != 1:
            return
        try:
            self.fold.merge_json(data["fold"])
            for life in data["lives"]:
                self.lives[life] = LifeReading(life, state=DEAD, cached=True, complete=True)
        except (KeyError, TypeError, ValueError):
            # A damaged shortcut: start over from the journals.
            self.fold, self.lives = Fold(), {}
            self._applied = self.requests.apply_to(self.fold)

    def _read(self, reading: LifeReading) -> None:
        files = self.spool.files
        folder = self.spool.layout.life(reading.life)
        if reading.identity is None:
            reading.identity = read_identity(files, folder)
        # The state before the journal: a dead life writes nothing more, so what follows is its whole journal.
        reading.state = find_state(files, folder)
        reading.heartbeat = read_json(files, os.path.join(folder, HEARTBEAT))
        if reading.offset == 0 and self.shortcuts:
            self._load_summary(reading, folder)
        path = os.path.join(folder, JOURNAL)
        stop: int | None = None
        if self.durable and reading.state != DEAD:
            stop = self._durable_end(reading, path)
        for line in read_lines(files, path, reading.offset, stop):
            if line.record is None:
                reading.damaged += 1
            else:
                self.fold.add(reading.life, line.record)
            reading.offset = line.offset + line.length
        if reading.state == DEAD:
            reading.complete = True

    def _load_summary(self, reading: LifeReading, folder: str) -> None:
        data = read_json(self.spool.files, os.path.join(folder, SUMMARY))
        if data is None:
            return
        if self.durable and reading.state != DEAD and not self._same_boot(reading):
            mark = (reading.heartbeat or {}).get("durable", 0)
            if data.get("covers", 0) > mark:
                return
        try:
            self.fold.merge_json(data["fold"])
            reading.offset = int(data["covers"])
        except (KeyError, TypeError, ValueError):
            reading.offset = 0

    def _same_boot(self, reading: LifeReading) -> bool:
        return reading.identity is not None and self._boot is not None and reading.identity.boot_id == self._boot

    def _durable_end(self, reading: LifeReading, path: str) -> int | None:
        """Up to where records are durable; for a journal of this boot we see to it ourselves."""
        if not self._same_boot(reading):
            return int((reading.heartbeat or {}).get("durable", 0))
        size = self.spool.files.size(path)
        if size > reading.offset:
            descriptor = self.spool.files.open_read(path)
            try:
                self.spool.files.sync(descriptor)
            finally:
                os.close(descriptor)
        return size

    def write_cache(self) -> bool:
        """Keep the fold of all dead lives for the next reader, when that is worth a write. Raises OSError."""
        dead = [reading for reading in self.lives.values() if reading.complete and reading.state == DEAD]
        if sum(not reading.cached for reading in dead) < _WORTH_CACHING:
            return False
        known = Fold()
        fresh = SpoolFold(self.spool)
        fresh.fold = known
        fresh._read_cache = True
        for reading in dead:
            copy = LifeReading(reading.life)
            if reading.cached:
                continue
            fresh._read(copy)
        old = read_json(self.spool.files, os.path.join(self.spool.layout.segments, DEAD_CACHE))
        lives = {reading.life for reading in dead if not reading.cached}
        if old is not None and old.get("version") == 1:
            known.merge_json(old["fold"])
            lives.update(old["lives"])
        body = dump({"version": 1, "lives": sorted(lives), "fold": known.as_json()})
        publish_file(
            self.spool.files, os.path.join(self.spool.layout.segments, DEAD_CACHE), body.encode(), durable=False
        )
        for reading in dead:
            reading.cached = True
        return True
