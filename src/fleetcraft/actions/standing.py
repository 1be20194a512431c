"""Where tasks that have not ended stand now: held, blocked, waiting, claimed or running, as tokens and journals say.

One listing is no proof of anything; these words choose and explain, they never decide about cover.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fleetcraft.core.names import CLAIM, HELD, Token
from fleetcraft.core.outcome import Fold
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.states import TaskState
from fleetcraft.spool.held import Due, Upstream, judge_token
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool


@dataclass(slots=True)
class Standing:
    """One look at tokens and journals, by batch and generation in the numbering of the first publication."""

    spool: Spool
    fold: Fold
    owners: dict[tuple[int, int], list[tuple[RangeSet, str]]] = field(default_factory=dict)
    held: dict[tuple[int, int], RangeSet] = field(default_factory=dict)
    _held_tokens: list[Token] = field(default_factory=list)

    @classmethod
    def look(cls, spool: Spool, reader: SpoolFold) -> Standing:
        """Look now. Raises OSError."""
        standing = cls(spool, reader.fold)
        for token in spool.tokens().tokens:
            if token.form == HELD:
                standing._held_tokens.append(token)
            if token.form == HELD or token.life:
                standing._place(token)
        return standing

    def _place(self, token: Token) -> None:
        batch = self.spool.batch(token.batch)
        if batch is None:
            return  # not visible yet: its tasks count as waiting
        for number, first, last, _ in batch.origins(token.start, token.stop):
            key = (number, token.gen)
            if token.form == HELD:
                self.held.setdefault(key, RangeSet()).add(first, last)
            elif token.form == CLAIM or token.life:
                self.owners.setdefault(key, []).append((RangeSet([(first, last)]), token.life))

    def explain(self, batch: int, index: int) -> str:
        """A sentence about a task that has not ended."""
        gen = self.fold.generation(batch, index)
        attempt, life = self._running(batch, index, gen)
        if self.fold.is_cancelled(batch, index, gen):
            if attempt:
                return f"it was cancelled, and attempt {attempt} on {life} has not ended yet"
            return "it was cancelled, and no worker has written that down yet"
        if attempt:
            return f"attempt {attempt} runs on {life}; cancel it first"
        for ranges, owner in self.owners.get((batch, gen), ()):
            if index in ranges:
                return f"{owner} has claimed it"
        again = f"it was retried already (generation {gen}) and" if gen else "it"
        if index in self.held.get((batch, gen), RangeSet()):
            return f"{again} waits for other tasks"
        return f"{again} waits for a worker"

    def _running(self, batch: int, index: int, gen: int) -> tuple[int, str]:
        owners = {owner for ranges, owner in self.owners.get((batch, gen), ()) if index in ranges}
        for (life, number, opened, attempt, _), ranges in self.fold.open.items():
            if number == batch and opened == gen and life in owners and index in ranges:
                return attempt, life
        return 0, ""

    def ranges(self, batch: int, within: RangeSet, state: TaskState) -> RangeSet:
        """Which tasks that have not ended stand in a state. Raises OSError."""
        if state is TaskState.BLOCKED:
            return _intersect(within, self._blocked(batch))
        claimed, running, held = RangeSet(), RangeSet(), RangeSet()
        for (number, _), ranges in self.held.items():
            if number == batch:
                _add(held, ranges)
        for (number, gen), owned in self.owners.items():
            for ranges, owner in owned if number == batch else ():
                _add(claimed, ranges)
                for (life, opened_batch, opened, _, _), attempts in self.fold.open.items():
                    if (life, opened_batch, opened) == (owner, batch, gen):
                        _add(running, _intersect(ranges, attempts))
        if state is TaskState.RUNNING:
            return _intersect(within, running)
        if state is TaskState.CLAIMED:
            return _without(_intersect(within, claimed), running)
        if state is TaskState.HELD:
            return _without(_intersect(within, held), self._blocked(batch))
        return _without(_without(within, claimed), held)

    def _blocked(self, batch: int) -> RangeSet:
        upstream, found = Upstream(self.spool), RangeSet()
        for token in self._held_tokens:
            cover = self.spool.batch(token.batch)
            if cover is None:
                continue
            parts = [part for part in cover.origins(token.start, token.stop) if part[0] == batch]
            if not parts:
                continue
            blocked = judge_token(upstream, cover, token, self.fold)[Due.BLOCKED]
            for _, first, last, position in parts:
                for start, stop in blocked.within(position, position + last - first):
                    found.add(start - position + first, stop - position + first)
        return found


def _add(ranges: RangeSet, more: RangeSet) -> None:
    for start, stop in more:
        ranges.add(start, stop)


def _intersect(one: RangeSet, other: RangeSet) -> RangeSet:
    return RangeSet(pair for start, stop in one for pair in other.within(start, stop))


def _without(one: RangeSet, other: RangeSet) -> RangeSet:
    return RangeSet(pair for start, stop in one for pair in other.missing(start, stop))
