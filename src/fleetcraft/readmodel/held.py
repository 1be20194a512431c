"""Which held tasks still may become due, and which never will: through any number of steps.

Nothing is read while nothing failed. Then it goes from what failed to what waits for it, so that the cost
grows with the held tasks, never with the names that they wait for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fleetcraft.core.names import Token
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.states import TaskState
from fleetcraft.spool.held import BATCH_PREFIX
from fleetcraft.spool.spool import Spool

Placed = tuple[TaskState, int, RangeSet, int]
_BAD = (TaskState.FAILED, TaskState.QUARANTINED, TaskState.CANCELLED)


@dataclass(slots=True)
class _Group:
    """Held tasks that wait for the same things."""

    places: dict[tuple[int, int], RangeSet] = field(default_factory=dict)  # (batch, generation): positions
    names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class HeldReading:
    """The held tasks of one picture. `blockers` says for a blocked set of conditions which of them decided."""

    spool: Spool
    blockers: dict[tuple[str, ...], str] = field(default_factory=dict)
    roots: set[str] = field(default_factory=set)  # the ended tasks (and batches with such) that block others

    def classify(self, tokens: Iterable[Token], states: Mapping[int, Mapping[TaskState, RangeSet]]) -> Iterator[Placed]:
        """(held or blocked, batch, positions, generation) of everything under held tokens. Raises OSError."""
        tokens = list(tokens)
        bad = self._bad_names(states) if tokens else set()
        if not bad:
            for token in tokens:
                yield from self._whole(token)
            return
        groups: dict[tuple[str, ...], _Group] = {}
        for token in tokens:
            self._collect(token, groups)
        self._follow(groups, bad)
        for after, group in groups.items():
            state = TaskState.BLOCKED if after in self.blockers else TaskState.HELD
            for (batch, gen), ranges in group.places.items():
                yield state, batch, ranges, gen

    def _whole(self, token: Token) -> Iterator[Placed]:
        batch = self.spool.batch(token.batch)
        for number, first, last, _ in batch.origins(token.start, token.stop) if batch else ():
            yield TaskState.HELD, number, RangeSet([(first, last)]), token.gen

    def _bad_names(self, states: Mapping[int, Mapping[TaskState, RangeSet]]) -> set[str]:
        """The conditions that cannot come true any more: names of tasks, and whole batches."""
        names: set[str] = set()
        for batch, of in states.items():
            place = self.spool.places()[batch]
            for state in _BAD:
                for start, stop in of[state]:
                    names.add(f"{BATCH_PREFIX}{batch}")
                    lines = place.cover.lines(place.offset + start, place.offset + stop)
                    names.update(json.loads(raw)["name"] for raw in lines)
        return names

    def _collect(self, token: Token, groups: dict[tuple[str, ...], _Group]) -> None:
        batch = self.spool.batch(token.batch)
        if batch is None:
            return
        for number, first, last, position in batch.origins(token.start, token.stop):
            for index, raw in enumerate(batch.lines(position, position + last - first), first):
                line = json.loads(raw)
                group = groups.setdefault(tuple(line.get("after") or ()), _Group())
                group.places.setdefault((number, token.gen), RangeSet()).add(index, index + 1)
                group.names.append(line["name"])

    def _follow(self, groups: Mapping[tuple[str, ...], _Group], bad: set[str]) -> None:
        waiting_for: dict[str, list[tuple[str, ...]]] = {}
        for after in groups:
            for name in after:
                waiting_for.setdefault(name, []).append(after)
        pending = sorted(bad & waiting_for.keys())
        self.roots.update(pending)
        while pending:
            name = pending.pop()
            for after in waiting_for.get(name, ()):
                if after in self.blockers:
                    continue
                self.blockers[after] = name
                # Whoever waits for one of these waits for something that will never be started.
                pending.extend(groups[after].names)
                pending.extend(f"{BATCH_PREFIX}{batch}" for batch, _ in groups[after].places)
