"""Folding: many small batches become one, so that the number of files follows the workers and not the enqueues.

Waiting batches are claimed first, like tasks, so nobody runs them meanwhile; ended ones have nothing left to claim.
The commit is the link of the merged ledger: before it nothing happened, after it the old ledgers mean nothing.
Which batches go together is decided in `foldgroups`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from fleetcraft.core.errors import FleetcraftError, LifeEnded
from fleetcraft.core.names import CLAIM, Token
from fleetcraft.core.outcome import Fold
from fleetcraft.spool import foldgroups
from fleetcraft.spool.evidence import Liveness, ReapPolicy, Watch, judge
from fleetcraft.spool.foldgroups import FoldLimits, Groups, by_class, joined
from fleetcraft.spool.layout import batch_number
from fleetcraft.spool.ledger import Batch
from fleetcraft.spool.life import JOURNAL, SUMMARY, Life, read_identity, read_json
from fleetcraft.spool.maintenance import (
    FOLDING,
    finish_drafts,
    fold_publication,
    permit_holder,
    remove,
    return_permit,
    settle_folded,
    take_permit,
)
from fleetcraft.spool.publish import LedgerWriter
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.reap import Reaper
from fleetcraft.spool.spool import Spool
from fleetcraft.spool.tokens import Moved, move
from fleetcraft.store.files import GONE

_LINES = 4096


@dataclass(slots=True)
class FoldReport:
    """What one pass of folding did."""

    busy: bool = False  # another life folds now
    folded: int = 0  # batches that live on in a larger one
    into: list[int] = field(default_factory=list)
    finished_drafts: int = 0
    removed: int = 0  # files of folded batches, also those that an earlier pass left
    damaged: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For reports."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class _FoldWriter(LedgerWriter):
    """A merged ledger; its commit happens only while its life is known to be live."""

    life: Life | None = None
    attempt: int = 1

    def _try(self, number: int) -> int:
        # Between this look and the link a reaper can only prevent the commit: it takes the ledger aside away
        # before it gives the claims back (`close_folds`).
        if self.life is not None:
            self.life.check_live()
        return LedgerWriter._try(self, number)  # noqa: SLF001  slots: no bare super()

    def _token(self, number: int) -> Token:
        return Token(
            lane=self.request.lane, priority=self.priority, batch=number, start=0, stop=self.count, attempt=self.attempt
        )


def maybe_fold(spool: Spool) -> FoldReport | None:
    """After an enqueue: fold when many small batches stand around. Never raises for reasons of storage.

    Nearly always this looks at numbers in memory only; one call in 16 takes a closer look, so that batches which
    cannot be folded now do not cost every enqueue a listing.
    """
    if (
        not any(len(group) >= foldgroups.FOLD_AT for group in by_class(spool.batches()).values())
        or os.urandom(1)[0] >= 16
    ):
        return None
    try:
        holder = permit_holder(spool, FOLDING)
        if holder is not None and not _take_over(spool, holder):
            return None
        return fold_small(spool, limits=FoldLimits(journal_bytes=16 << 20), quiet=True)
    except (OSError, FleetcraftError):
        return None


def _take_over(spool: Spool, holder: str) -> bool:
    """A folder that died keeps the permit until it is reaped. True when this was done."""
    identity = read_identity(spool.files, spool.layout.life(holder))
    now_s = spool.clock.mono()
    if identity is None or judge(identity, Watch(0, now_s), now_s, ReapPolicy()).liveness is not Liveness.DEAD:
        return False
    life = Life.begin(spool, kind="maintenance")
    try:
        Reaper(life, SpoolFold(spool, durable=True)).step()
    finally:
        life.close()
    return permit_holder(spool, FOLDING) is None


def fold_small(
    spool: Spool, life: Life | None = None, *, reader: SpoolFold | None = None, limits: FoldLimits | None = None,
    quiet: bool = False,
) -> FoldReport:  # fmt: skip
    """Fold what can be folded now, in the name of `life` or of a maintenance life of its own.

    `reader` must be a durable one: a batch counts as ended only by records that no crash can take back. With
    `quiet` no life is begun when there is nothing to fold. Raises OSError, OutOfReach, or LifeEnded when this
    life was taken for dead; what it left is then a reaper's.
    """
    folder = _Folder(spool, reader, limits or FoldLimits())
    if quiet and life is None and not folder.has_work():
        return folder.report
    if life is not None:
        folder.run(life)
        return folder.report
    own = Life.begin(spool, kind="maintenance")
    try:
        folder.run(own)
    except LifeEnded:
        own.journal.close()
        raise
    except BaseException:
        _close_quietly(own)
        raise
    own.close()
    return folder.report


def _close_quietly(life: Life) -> None:
    try:
        life.close()
    except (OSError, FleetcraftError):
        return  # the first error is the one to show; a reaper ends this life


# One reader per spool object, so that an interpreter that enqueues in a loop reads journals once.
_readers: WeakKeyDictionary[Spool, SpoolFold] = WeakKeyDictionary()


@dataclass(slots=True)
class _Folder:
    spool: Spool
    reader: SpoolFold | None
    limits: FoldLimits
    report: FoldReport = field(default_factory=FoldReport)
    groups: Groups = field(init=False)

    def __post_init__(self) -> None:
        self.groups = Groups(self.spool, self.limits, self.report.damaged)

    def has_work(self) -> bool:
        """A look without owning anything."""
        self.spool.refresh()
        listing = self.spool.tokens().tokens
        return bool(next(self.groups.waiting(listing), None) or next(self.groups.ended(listing, self._read), None))

    def run(self, life: Life) -> None:
        """Everything, under the permit."""
        if not take_permit(life, FOLDING):
            self.report.busy = True
            return
        try:
            self._tidy()
            while self._pass(life):
                pass
        finally:
            return_permit(life, FOLDING)

    def _pass(self, life: Life) -> bool:
        """Fold one group. False when there is none."""
        # After the permit: what was folded before us is visible now, and nobody else folds.
        self.spool.refresh()
        listing = self.spool.tokens().tokens
        for batches, tokens in self.groups.waiting(listing):
            if self._fold_waiting(life, batches, tokens):
                return True
        for batches in self.groups.ended(listing, self._read):
            self._merge(life, batches, offers=False, attempt=1)
            self._finish(batches, ())
            return True
        return False

    def _read(self) -> Fold | None:
        """What has ended, durably; None when finding out would take too long here."""
        if self.reader is None:
            self.reader = _readers.get(self.spool)
        if self.reader is None:
            self.reader = SpoolFold(self.spool, durable=True)
            if self.limits.journal_bytes is not None:
                _readers[self.spool] = self.reader
        if self.limits.journal_bytes is not None and _unread_bytes(self.reader) > self.limits.journal_bytes:
            return None
        self.reader.refresh()
        return self.reader.fold

    def _fold_waiting(self, life: Life, batches: Sequence[Batch], tokens: Sequence[Token]) -> bool:
        """Claim, merge, let go of the claims. False when others were faster."""
        layout, files = self.spool.layout, self.spool.files
        claims: list[Token] = []
        mine: list[Batch] = []
        try:
            for batch, token in zip(batches, tokens, strict=True):
                claim = token.owned(CLAIM, life.id)
                if move(files, layout.token(token.name), layout.token(claim.name)) is Moved.YES:
                    claims.append(claim)
                    mine.append(batch)
            files.sync_folder(layout.tokens)
            # A few are worth it all the same: most of the way is done.
            if len(mine) >= foldgroups.FOLD_AT // 2:
                # Attempts only grow: what a reaper gave back once counts on, for its neighbours too.
                self._merge(life, mine, offers=True, attempt=max(claim.attempt for claim in claims))
                self._finish(mine, claims)
                return True
        except LifeEnded:
            raise  # the claims are a reaper's
        except (OSError, FleetcraftError):
            self._undo(life, mine, claims)
            raise
        self._undo(life, mine, claims)
        return False

    def _merge(self, life: Life, batches: Sequence[Batch], *, offers: bool, attempt: int) -> None:
        first = batches[0]
        defaults, folds = joined(batches)
        writer = _FoldWriter(
            self.spool, first.request, first.priority, held=first.held, defaults=defaults, folds=folds, offers=offers,
            publication=fold_publication(life.id), life=life, attempt=attempt,
        )  # fmt: skip
        try:
            for batch in batches:
                for start in range(0, batch.count, _LINES):
                    for line in batch.lines(start, min(start + _LINES, batch.count)):
                        writer.add(json.loads(line)["name"], line)
        except BaseException:
            writer.discard()
            raise
        published = writer.commit()
        self.report.folded += len(batches)
        self.report.into.append(published.batch or 0)

    def _undo(self, life: Life, batches: Sequence[Batch], claims: Sequence[Token]) -> None:
        """Nothing of these was started, so they go back as they were; unless the commit happened after all."""
        life.check_live()
        self.spool.refresh()
        if batches and self.spool.is_folded(batches[0].number):
            self._finish(batches, claims)
            return
        layout = self.spool.layout
        for claim in claims:
            move(self.spool.files, layout.token(claim.name), layout.token(claim.waiting().name))

    def _finish(self, batches: Sequence[Batch], claims: Sequence[Token]) -> None:
        """After the commit: the claims mean nothing any more, then the old ledgers go."""
        layout, files = self.spool.layout, self.spool.files
        for claim in claims:
            remove(self.spool, layout.token(claim.name))
        if claims:
            files.sync_folder(layout.tokens)
        self.spool.refresh()
        for batch in batches:
            self._remove_ledger(batch.number, batch.publication)
        files.sync_folder(layout.batches)
        # A retry that was offered meanwhile still speaks of the old batch.
        settle_folded(self.spool, self.spool.tokens().tokens)

    def _remove_ledger(self, number: int, publication: str) -> None:
        layout = self.spool.layout
        # The ledger last: while it is there, what belongs to it is found by it.
        for path in (layout.index(publication), layout.names(publication), layout.ledger(number)):
            self.report.removed += remove(self.spool, path)

    def _tidy(self) -> None:
        """What folders before us left half done after their commit."""
        spool = self.spool
        listing = spool.tokens().tokens
        spool.refresh()
        requests = (self.reader or SpoolFold(spool)).requests
        requests.refresh()
        self.report.finished_drafts = finish_drafts(spool, listing, requests.owners)
        settle_folded(spool, listing)
        for name in spool.files.names(spool.layout.batches)[0]:
            number = batch_number(name)
            if number is not None and spool.is_folded(number):
                batch = spool.batch(number)
                if batch is not None:
                    self._remove_ledger(number, batch.publication)


def _unread_bytes(reader: SpoolFold) -> int:
    """How much a refresh of this reader would have to read."""
    spool, total = reader.spool, 0
    for life in spool.lives():
        known = reader.lives.get(life)
        if known is not None and known.complete:
            continue
        folder = spool.layout.life(life)
        offset = known.offset if known is not None else 0
        if not offset:
            offset = (read_json(spool.files, os.path.join(folder, SUMMARY)) or {}).get("covers", 0)
        try:
            total += max(0, spool.files.size(os.path.join(folder, JOURNAL)) - int(offset))
        except OSError as error:
            if error.errno not in GONE:
                raise
    return total
