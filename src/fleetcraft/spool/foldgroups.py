"""Which batches may be folded together: alike, of one size class, untouched or ended, and not too much at once.

Sizes grow by a factor of 64 from class to class, so a task is copied a few times at most, whatever the number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.errors import SpoolDamaged
from fleetcraft.core.names import WAITING, Token
from fleetcraft.core.outcome import Fold
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.task import canonical
from fleetcraft.spool.ledger import Batch
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import GONE

FOLD_AT = 64
FACTOR = 64
_CLASSES = 3  # batches of 64 ** 3 tasks and more stay as they are: there are few, and copying them costs

_Kind = tuple[int, bool, int, bytes]  # size class, held, priority, request


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldLimits:
    """How much one fold takes on: an enqueue must stay quick, and a header is read by everybody."""

    batches: int = 4096
    tasks: int = 300_000
    defaults_bytes: int = 1 << 20
    # Journals to be read before ended batches are known; beyond that it is left to workers and to compaction.
    journal_bytes: int | None = None


@dataclass(slots=True)
class Groups:
    """Finds groups in one listing; damaged ledgers are named once and then left out."""

    spool: Spool
    limits: FoldLimits
    damaged: list[str] = field(default_factory=list)
    _bad: set[int] = field(default_factory=set)

    def waiting(self, listing: Sequence[Token]) -> Iterator[tuple[list[Batch], list[Token]]]:
        """Batches that nobody has begun, each with its one token."""
        tokens = _tokens_of(listing)
        groups: dict[_Kind, list[tuple[Batch, Token]]] = defaultdict(list)
        for batch in self._candidates():
            token = _whole_waiting(batch, tokens.get(batch.number, ()))
            if token is not None:
                groups[_kind(batch)].append((batch, token))
        for _, group in sorted(groups.items(), key=lambda item: item[0][0]):
            chosen = set(map(id, self._choose([batch for batch, _ in group])))
            if len(chosen) >= FOLD_AT:
                kept = [pair for pair in group if id(pair[0]) in chosen]
                yield [batch for batch, _ in kept], [token for _, token in kept]

    def ended(self, listing: Sequence[Token], read: Callable[[], Fold | None]) -> Iterator[list[Batch]]:
        """Batches without any token whose tasks have all ended; `read` is asked only when there may be some."""
        tokens = _tokens_of(listing)
        groups: dict[_Kind, list[Batch]] = defaultdict(list)
        for batch in self._candidates():
            if batch.number not in tokens:
                groups[_kind(batch)].append(batch)
        fold = read() if any(len(group) >= FOLD_AT for group in groups.values()) else None
        if fold is None:
            return
        for _, group in sorted(groups.items(), key=lambda item: item[0][0]):
            chosen = self._choose(batch for batch in group if _all_ended(batch, fold))
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
            self.damaged.append(f"Ledger {self.spool.layout.ledger(batch.number)} is cut short.")
        except SpoolDamaged as error:
            self.damaged.append(error.message)
        except OSError as error:
            if error.errno not in GONE:
                raise
            # Its index is lost, or the whole batch was folded since the look.
        self._bad.add(batch.number)
        return False


def _class_of(batch: Batch) -> int:
    size, count = 0, batch.count
    while count >= FACTOR:
        size, count = size + 1, count // FACTOR
    return size


def by_class(batches: Iterable[Batch]) -> dict[int, list[Batch]]:
    """Small batches by size class."""
    classes: dict[int, list[Batch]] = defaultdict(list)
    for batch in batches:
        if (size := _class_of(batch)) < _CLASSES:
            classes[size].append(batch)
    return classes


def _kind(batch: Batch) -> _Kind:
    """Only batches alike share a ledger, because its header speaks for all.

    Held ones stay among themselves also when they have ended: a retry has to wait again for what its task waited for.
    """
    return _class_of(batch), batch.held, batch.priority, canonical(batch.request.as_json())


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


def has_ended(number: int, count: int, fold: Fold) -> bool:
    """True when every task of one first batch has ended, in its newest generation."""
    left = RangeSet([(0, count)])
    for low, high in list(fold.ok.get(number, RangeSet()).within(0, count)):
        left.remove(low, high)
    for owner, index in fold.irregular_within(number, 0, count):
        if fold.verdict(owner, index).state is None:
            return False
        left.remove(index, index + 1)
    return not left


def _all_ended(batch: Batch, fold: Fold) -> bool:
    return all(has_ended(number, last, fold) for number, _, last, _ in batch.origins(0, batch.count))


def joined(batches: Sequence[Batch]) -> tuple[list[Mapping[str, Any]], list[tuple[int, int, int]]]:
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
