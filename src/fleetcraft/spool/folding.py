"""Folding: many small batches become one, so that the number of files follows the workers and not the enqueues.

Waiting batches are claimed first, like tasks, so nobody runs them meanwhile; ended ones have nothing left to claim.
The commit is the link of the merged ledger: before it nothing happened, after it the old ledgers mean nothing.
Sizes grow by a factor of 64 from class to class, so a task is copied a few times at most, whatever the number.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from fleetcraft.core.errors import FleetcraftError, LifeEnded, SpoolDamaged
from fleetcraft.core.names import CLAIM, WAITING, Token
from fleetcraft.core.outcome import Fold
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.task import canonical
from fleetcraft.spool.evidence import Liveness, ReapPolicy, Watch, judge
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

FOLD_AT = 64
_FACTOR = 64
_CLASSES = 3  # batches of 64 ** 3 tasks and more stay as they are: there are few, and copying them costs
_LINES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldLimits:
    """How much one fold takes on: an enqueue must stay quick, and a header is read by everybody."""

    batches: int = 4096
    tasks: int = 300_000
    defaults_bytes: int = 1 << 20
    # Journals to be read before ended batches are known; beyond that it is left to workers and to compaction.
    journal_bytes: int | None = None


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
        return LedgerWriter._try(self, number)

    def _token(self, number: int) -> Token:
        return Token(
            lane=self.request.lane, priority=self.priority, batch=number, start=0, stop=self.count, attempt=self.attempt
        )


def maybe_fold(spool: Spool) -> FoldReport | None:
    """After an enqueue: fold when many small batches stand around. Never raises for reasons of storage.

    Nearly always this looks at numbers in memory only; one call in 16 takes a closer look, so that batches which
    cannot be folded now do not cost every enqueue a listing.
    """
    if not any(len(group) >= FOLD_AT for group in _by_class(spool.batches()).values()) or os.urandom(1)[0] >= 16:
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
    _bad: set[int] = field(default_factory=set)

    def has_work(self) -> bool:
        """A look without owning anything."""
        self.spool.refresh()
        listing = self.spool.tokens().tokens
        return bool(next(self._groups_waiting(listing), None) or next(self._groups_ended(listing), None))

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
        for batches, tokens in self._groups_waiting(listing):
            if self._fold_waiting(life, batches, tokens):
                return True
        for batches in self._groups_ended(listing):
            self._merge(life, batches, offers=False, attempt=1)
            self._finish(batches, ())
            return True
        return False

    def _groups_waiting(self, listing: Sequence[Token]) -> Iterator[tuple[list[Batch], list[Token]]]:
        tokens = _tokens_of(listing)
        groups: dict[tuple[int, int, bytes], list[tuple[Batch, Token]]] = defaultdict(list)
        for batch in self._candidates():
            token = _whole_waiting(batch, tokens.get(batch.number, ()))
            if token is not None:
                groups[_kind(batch)].append((batch, token))
        for _, group in sorted(groups.items(), key=lambda item: item[0][0]):
            chosen = set(map(id, self._choose([batch for batch, _ in group])))
            if len(chosen) >= FOLD_AT:
                kept = [pair for pair in group if id(pair[0]) in chosen]
                yield [batch for batch, _ in kept], [token for _, token in kept]

    def _groups_ended(self, listing: Sequence[Token]) -> Iterator[list[Batch]]:
        tokens = _tokens_of(listing)
        groups: dict[tuple[int, int, bytes], list[Batch]] = defaultdict(list)
        for batch in self._candidates():
            if batch.number not in tokens:
                groups[_kind(batch)].append(batch)
        if not any(len(group) >= FOLD_AT for group in groups.values()) or not self._read():
            return
        for _, group in sorted(groups.items(), key=lambda item: item[0][0]):
            chosen = self._choose(batch for batch in group if _has_ended(batch, self._fold()))
            if len(chosen) >= FOLD_AT:
                yield chosen

    def _candidates(self) -> Iterator[Batch]:
        for batch in self.spool.batches():
            if _class_of(batch) < _CLASSES and batch.number not in self._bad:
                yield batch

    def _choose(self, group: Iterable[Batch]) -> list[Batch]:
        """The first of a group that fit into one fold."""
        chosen: list[Batch] = []
        seen: set[bytes] = set()
        tasks = size = 0
        for batch in group:
            fresh = {canonical(defaults) for defaults in batch.header["defaults"]} - seen
            grown = size + sum(map(len, fresh))
            if tasks + batch.count > self.limits.tasks or (chosen and grown > self.limits.defaults_bytes):
                continue
            if not self._is_whole(batch):
                continue
            chosen.append(batch)
            seen |= fresh
            size, tasks = grown, tasks + batch.count
            if len(chosen) == self.limits.batches:
                break
        return chosen

    def _is_whole(self, batch: Batch) -> bool:
        """False for a damaged ledger; it stays as it is, for check to show."""
        try:
            if len(batch.lines(batch.count - 1, batch.count)) == 1:
                return True
            self.report.damaged.append(f"Ledger {self.spool.layout.ledger(batch.number)} is cut short.")
        except SpoolDamaged as error:
            self.report.damaged.append(error.message)
        except OSError as error:
            if error.errno not in GONE:
                raise
            # Its index is lost, or the whole batch was folded since the look.
        self._bad.add(batch.number)
        return False

    def _fold(self) -> Fold:
        assert self.reader is not None  # noqa: S101  set by `_read`, which every caller asks first
        return self.reader.fold

    def _read(self) -> bool:
        """Bring the reader up to date; False when that would take too long here."""
        if self.reader is None:
            self.reader = _readers.get(self.spool)
        if self.reader is None:
            self.reader = SpoolFold(self.spool, durable=True)
            if self.limits.journal_bytes is not None:
                _readers[self.spool] = self.reader
        if self.limits.journal_bytes is not None and _unread_bytes(self.reader) > self.limits.journal_bytes:
            return False
        self.reader.refresh()
        return True

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
            if len(mine) >= FOLD_AT // 2:
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
        defaults, folds = _joined(batches)
        writer = _FoldWriter(
            self.spool, first.request, first.priority, held=False, defaults=defaults, folds=folds, offers=offers,
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


def _class_of(batch: Batch) -> int:
    size, count = 0, batch.count
    while count >= _FACTOR:
        size, count = size + 1, count // _FACTOR
    return size


def _by_class(batches: Iterable[Batch]) -> dict[int, list[Batch]]:
    classes: dict[int, list[Batch]] = defaultdict(list)
    for batch in batches:
        if (size := _class_of(batch)) < _CLASSES:
            classes[size].append(batch)
    return classes


def _kind(batch: Batch) -> tuple[int, int, bytes]:
    """Only batches of one size class, priority and request share a ledger: its header speaks for all."""
    return _class_of(batch), batch.priority, canonical(batch.request.as_json())


def _tokens_of(listing: Iterable[Token]) -> dict[int, list[Token]]:
    found: dict[int, list[Token]] = defaultdict(list)
    for token in listing:
        found[token.batch].append(token)
    return found


def _whole_waiting(batch: Batch, tokens: Sequence[Token]) -> Token | None:
    """The one token of a batch that nobody has begun, or None."""
    if len(tokens) != 1 or batch.held:
        return None
    token = tokens[0]
    whole = token.form == WAITING and token.gen == 0 and (token.start, token.stop) == (0, batch.count)
    return token if whole and (token.lane, token.priority) == (batch.lane, batch.priority) else None


def _has_ended(batch: Batch, fold: Fold) -> bool:
    for number, first, last, _ in batch.origins(0, batch.count):
        left = RangeSet([(first, last)])
        for low, high in list(fold.ok.get(number, RangeSet()).within(first, last)):
            left.remove(low, high)
        for owner, index in fold.irregular_within(number, first, last):
            if fold.verdict(owner, index).state is None:
                return False
            left.remove(index, index + 1)
        if left:
            return False
    return True


def _joined(batches: Sequence[Batch]) -> tuple[list[Mapping[str, Any]], list[tuple[int, int, int]]]:
    """Distinct defaults, and the folded batches in the order of their lines.

    A folding batch that is folded again appears with no tasks of its own before its parts, so that readers know
    that it is gone and where its positions went.
    """
    defaults: list[Mapping[str, Any]] = []
    places: dict[bytes, int] = {}
    folds: list[tuple[int, int, int]] = []
    for batch in batches:
        mapping = []
        for values in batch.header["defaults"]:
            place = places.setdefault(canonical(values), len(defaults))
            if place == len(defaults):
                defaults.append(values)
            mapping.append(place)
        if batch.folds:
            folds.append((batch.number, 0, 0))
            folds.extend((part.batch, part.count, mapping[part.defaults]) for part in batch.folds)
        else:
            folds.append((batch.number, batch.count, mapping[0]))
    return defaults, folds


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
