"""One survey of a spool: which unfinished tasks are offered by which names, by none, or by two.

Tokens are listed before the receipts are read, so a task that ends meanwhile counts as ended and not as uncovered.
One survey proves nothing by itself; check compares several.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fleetcraft.core.names import CLAIM, DRAFT, FENCED, Token, parse_task_id, parse_token
from fleetcraft.core.outcome import Fold
from fleetcraft.core.ranges import RangeSet
from fleetcraft.spool.cover import highest_attempt
from fleetcraft.spool.ledger import Batch
from fleetcraft.spool.life import DEAD, FENCED_STATE, HEARTBEAT, LIVE, REAPING, find_state, read_json
from fleetcraft.spool.maintenance import committed_drafts, folding_life
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool

_Key = tuple[int, int]  # batch and generation


@dataclass(slots=True)
class Coverage:
    """What one survey saw. Tasks are named by the batch that first published them."""

    tokens: int = 0
    foreign: int = 0
    unfinished: int = 0
    uncovered: dict[int, RangeSet] = field(default_factory=dict)
    doubles: dict[tuple[str, str], int] = field(default_factory=dict)
    void: dict[Token, str] = field(default_factory=dict)  # names that mean nothing, and why
    pending: list[Token] = field(default_factory=list)  # drafts of what is not committed
    strangers: list[str] = field(default_factory=list)  # tokens of tasks that no batch has
    highest: dict[_Key, int] = field(default_factory=dict)  # attempt, by cover batch and generation
    states: dict[str, str | None] = field(default_factory=dict)
    moving: str = ""  # a life that is being reaped: its names are on the move

    def is_gone(self, life: str) -> bool:
        """True when names of that life mean nothing any more."""
        return self.states.get(life) in (None, FENCED_STATE, DEAD)

    def highest_attempt(self, batch: Batch, start: int, stop: int, gen: int, fold: Fold) -> int:
        """The highest attempt of these tasks in any name or record seen."""
        named = self.highest.get((batch.number, gen), 0)
        probe = Token(
            lane=batch.lane, priority=batch.priority, batch=batch.number, start=start, stop=stop, gen=gen, attempt=0
        )
        return max(named, highest_attempt(batch, probe, fold))


def survey(spool: Spool, reader: SpoolFold) -> Coverage:
    """List tokens, then batches, lives and records, and compare. Raises OSError."""
    listing = spool.tokens()
    spool.refresh()
    reader.refresh()
    seen = Coverage(tokens=len(listing.tokens), foreign=listing.foreign)
    owners = {token.life for token in listing.tokens if token.life}
    owners |= {life for owner in owners if (life := folding_life(owner)) is not None}
    for life in owners | set(spool.lives()):
        seen.states[life] = find_state(spool.files, spool.layout.life(life))
        if seen.states[life] in (REAPING, FENCED_STATE):
            seen.moving = life
    covers = _covers(spool, listing.tokens, reader, seen)
    unfinished = _unfinished(spool, reader.fold)
    seen.unfinished = sum(map(len, unfinished.values()))
    _compare(spool, reader.fold, covers, unfinished, seen)
    if seen.uncovered:
        _spare_the_living(spool, seen)
    return seen


def _unfinished(spool: Spool, fold: Fold) -> dict[int, RangeSet]:
    left = {number: RangeSet([(0, place.count)]) for number, place in spool.places().items()}
    for number, ranges in fold.ok.items():
        if number in left:
            for start, stop in ranges:
                left[number].remove(start, stop)
    for number, index in fold.irregular():
        place = spool.places().get(number)
        if place is not None and index < place.count:
            if fold.verdict(number, index).state is None:
                left[number].add(index, index + 1)
            else:
                left[number].remove(index, index + 1)
    return {number: ranges for number, ranges in left.items() if ranges}


def _covers(spool: Spool, tokens: Iterable[Token], reader: SpoolFold, seen: Coverage) -> list[Token]:
    """The names that offer or own tasks; all others are sorted out into `seen`."""
    tokens = list(tokens)
    committed = {token for token, _ in committed_drafts(spool, tokens, reader.requests.owners)}
    kept: list[Token] = []
    for token in tokens:
        batch = spool.batch(token.batch)
        key = (token.batch, token.gen)
        seen.highest[key] = max(token.attempt, seen.highest.get(key, 0))
        if spool.is_folded(token.batch):
            seen.void[token] = "its batch lives on in a larger one"
        elif token.form == DRAFT and token not in committed and not _is_life(token, seen):
            seen.pending.append(token)
        elif batch is None or token.stop > batch.count:
            seen.strangers.append(token.name)
        elif token.form == DRAFT and token not in committed and seen.is_gone(token.life):
            seen.void[token] = f"life {token.life} has ended"
        elif token.form in (CLAIM, FENCED) and seen.states.get(token.life) is None:
            # A late claim of a buried life is real cover, and every reaper looks for it; one without a folder is not.
            seen.void[token] = f"life {token.life} is not known, and nobody comes back for it"
        else:
            kept.append(token)
    return _without_inner_drafts(kept, seen)


def _is_life(token: Token, seen: Coverage) -> bool:
    return seen.states.get(token.life) in (LIVE, REAPING)


def _without_inner_drafts(tokens: list[Token], seen: Coverage) -> list[Token]:
    """A draft inside a claim of its own life is a split that has not been committed."""
    wide: dict[tuple[str, int, int], list[Token]] = defaultdict(list)
    for token in tokens:
        if token.form in (CLAIM, FENCED):
            wide[token.life, token.batch, token.gen].append(token)
    kept = []
    for token in tokens:
        owners = wide.get((token.life, token.batch, token.gen), ()) if token.form == DRAFT else ()
        if any(owner.covers(token) for owner in owners):
            # Not an error while the life is there: it is about to commit or to undo.
            if seen.is_gone(token.life):
                seen.void[token] = "a split that was never committed"
        else:
            kept.append(token)
    return kept


def _compare(
    spool: Spool, fold: Fold, covers: Iterable[Token], unfinished: dict[int, RangeSet], seen: Coverage
) -> None:
    stretches: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for token in covers:
        batch = spool.batch(token.batch)
        for number, first, last, _ in batch.origins(token.start, token.stop) if batch is not None else ():
            left = RangeSet(unfinished[number].within(first, last)) if number in unfinished else RangeSet()
            for _, index in list(fold.irregular_within(number, first, last)):
                if fold.generation(number, index) != token.gen:
                    left.remove(index, index + 1)
            if token.gen:
                left = _of_generation(fold, number, left, token.gen)
            stretches[number].extend((low, high, token.name) for low, high in left)
    for number, wanted in unfinished.items():
        missing = RangeSet(wanted)
        end, owner = -1, ""
        for low, high, name in sorted(stretches.get(number, ())):
            missing.remove(low, high)
            if low < end:
                pair = (min(owner, name), max(owner, name))
                seen.doubles[pair] = seen.doubles.get(pair, 0) + min(end, high) - low
            if high > end:
                end, owner = high, name
        if missing:
            seen.uncovered[number] = missing


def _of_generation(fold: Fold, number: int, ranges: RangeSet, gen: int) -> RangeSet:
    kept = RangeSet()
    for index in ranges.numbers():
        if fold.generation(number, index) == gen:
            kept.add(index, index + 1)
    return kept


def _spare_the_living(spool: Spool, seen: Coverage) -> None:
    """Tasks that a living worker says it has are not uncovered, whatever the listing showed."""
    for life, state in seen.states.items():
        if state != LIVE:
            continue
        heartbeat = read_json(spool.files, spool.layout.life(life) + "/" + HEARTBEAT) or {}
        for text in heartbeat.get("claims") or ():
            token = parse_token(text) if isinstance(text, str) else None
            batch = spool.batch(token.batch) if token is not None else None
            if token is None or batch is None:
                continue
            for number, first, last, _ in batch.origins(token.start, min(token.stop, batch.count)):
                _spare(seen, number, first, last)
        for running in heartbeat.get("running") or ():
            task = parse_task_id(str(running.get("task"))) if isinstance(running, dict) else None
            if task is not None:
                _spare(seen, task.batch, task.index, task.index + 1)


def _spare(seen: Coverage, number: int, first: int, last: int) -> None:
    if number in seen.uncovered:
        seen.uncovered[number].remove(first, last)
        if not seen.uncovered[number]:
            del seen.uncovered[number]


def gen_stretches(fold: Fold, number: int, ranges: RangeSet) -> Iterator[tuple[int, int, int]]:
    """(generation, start, stop): stretches whose tasks are of one generation; a retried task stands alone."""
    for first, last in ranges:
        special = {index: fold.generation(number, index) for _, index in fold.irregular_within(number, first, last)}
        start = first
        for index in sorted(index for index, gen in special.items() if gen):
            if start < index:
                yield 0, start, index
            yield special[index], index, index + 1
            start = index + 1
        if start < last:
            yield 0, start, last
