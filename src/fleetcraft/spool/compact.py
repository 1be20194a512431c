"""Compaction: the folders of lives that ended become one segment, so that files follow the workers that are there.

A folder is removed only after a segment with all of it is in place and durable, a grace has passed for readers that
look at it now, and it still says exactly what was packed. Records are a set, so a record that is in a folder and in
a segment, or in two segments, counts once: a crash anywhere loses nothing and doubles nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.errors import LifeEnded
from fleetcraft.spool.foldgroups import has_ended
from fleetcraft.spool.folding import FoldReport, fold_small
from fleetcraft.spool.life import DEAD, Life, find_state
from fleetcraft.spool.maintenance import COMPACTION, remove, remove_life, return_permit, take_permit
from fleetcraft.spool.packing import SegmentWriter, is_unchanged, measure
from fleetcraft.spool.reading import DEAD_CACHE, SpoolFold
from fleetcraft.spool.segments import PackedLife, open_segment, segment_numbers
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import GONE

_BEAT_S = 10.0


@dataclass(slots=True)
class CompactReport:
    """What one compaction did."""

    spool: str
    busy: bool = False  # another compaction is under way
    fold: FoldReport = field(default_factory=FoldReport)
    segment: int | None = None
    packed: int = 0  # lives in the new segment
    records: int = 0
    removed: int = 0  # folders
    kept: dict[str, str] = field(default_factory=dict)  # ended lives whose folder stays, and why

    def as_json(self) -> dict[str, Any]:
        """For `spool compact --json`."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "fold": self.fold.as_json()}


def compact(
    spool: Spool, *, grace_s: float = 600.0, life: Life | None = None, pause: Callable[[float], None] = time.sleep
) -> CompactReport:
    """Fold small batches, then pack the lives that ended. Requests stay as they are.

    `pause` waits for the grace in steps, with a heartbeat between them. Raises OSError, OutOfReach, LifeEnded.
    """
    report = CompactReport(spool.layout.root)
    report.fold = fold_small(spool, life)
    own = life or Life.begin(spool, kind="maintenance")
    try:
        if take_permit(own, COMPACTION):
            try:
                _Compactor(own, report, grace_s, pause).run()
            finally:
                return_permit(own, COMPACTION)
        else:
            report.busy = True
    except LifeEnded:
        if life is None:
            own.journal.close()
        raise
    if life is None:
        own.close()
    return report


@dataclass(slots=True)
class _Compactor:
    life: Life
    report: CompactReport
    grace_s: float
    pause: Callable[[float], None]

    @property
    def spool(self) -> Spool:
        return self.life.spool

    def run(self) -> None:
        """Pack what is not packed, wait, remove what is."""
        self.spool.refresh()
        packed = self._packed_before()
        fresh = self._choose({one.life for one in packed})
        if fresh:
            packed += self._pack(fresh)
        if packed:
            self._wait()
            self._remove(packed)

    def _packed_before(self) -> list[PackedLife]:
        """Lives in a segment whose folder is still there: their compactor died between the two."""
        there = set(self.spool.lives())
        found: dict[str, PackedLife] = {}
        for number in segment_numbers(self.spool):
            lives = open_segment(self.spool, number).lives
            found.update({name: one for name, one in lives.items() if name in there and is_unchanged(self.spool, one)})
        return list(found.values())

    def _choose(self, done: set[str]) -> list[PackedLife]:
        reader = SpoolFold(self.spool, durable=True)
        reader.refresh()
        ended: dict[int, bool] = {}
        chosen: list[PackedLife] = []
        for name in self.spool.lives():
            if name in done or name == self.life.id:
                continue
            if find_state(self.spool.files, self.spool.layout.life(name)) != DEAD:
                continue
            try:
                packed, batches = measure(self.spool, name)
            except OSError as error:
                if error.errno not in GONE:
                    raise
                continue  # a maintenance life that removes itself
            for batch in batches - ended.keys():
                place = self.spool.places().get(batch)
                ended[batch] = place is not None and has_ended(batch, place.count, reader.fold)
            unfinished = sorted(batch for batch in batches if not ended[batch])
            if unfinished:
                self.report.kept[name] = f"batch {unfinished[0]} has not ended"
            else:
                chosen.append(packed)
        return chosen

    def _pack(self, lives: Sequence[PackedLife]) -> list[PackedLife]:
        writer = SegmentWriter(self.life)
        try:
            for packed in lives:
                writer.pack(packed)
            writer.commit()
        except BaseException:
            writer.discard()
            raise
        finally:
            self.report.segment = writer.number or None
        writer.close()
        self.report.packed = len(writer.lives)
        self.report.records = sum(packed.records for packed in writer.lives)
        return writer.lives

    def _wait(self) -> None:
        """Readers that listed the folders before the segment was there may still be reading them."""
        left_s = self.grace_s
        while left_s > 0:
            self.life.beat({"state": "up", "doing": "compaction", "left_s": round(left_s, 1)})
            step_s = min(_BEAT_S, left_s)
            self.pause(step_s)
            left_s -= step_s
        self.life.check_live()

    def _remove(self, lives: Sequence[PackedLife]) -> None:
        # The fold of dead lives covers what is a segment now; it is made anew when it is worth it.
        remove(self.spool, os.path.join(self.spool.layout.segments, DEAD_CACHE))
        for packed in lives:
            folder = self.spool.layout.life(packed.life)
            try:
                if not is_unchanged(self.spool, packed):
                    # A worker that slept through its own reaping may write once more; the next compaction takes it.
                    self.report.kept[packed.life] = "it was written to after it was packed"
                elif remove_life(self.spool, folder):
                    self.report.removed += 1
                else:
                    self.report.kept[packed.life] = "its folder holds something foreign"
            except OSError as error:
                if error.errno not in GONE:
                    raise  # else: removed by another compaction
        self.spool.files.sync_folder(self.spool.layout.workers)
