"""The fold that says what became of every task, from journal records in any order, twice or late.

A first attempt of generation 0 is run by one life only, so its plain success needs no life beside it.
Rules: the newest generation only; any success wins (highest attempt first), else the highest attempt decides;
for one attempt the life's own receipt beats a reaper's `lost`; losses are a set of attempts, not a counter.
No clock takes part. Plain first-attempt successes are kept as ranges, everything else as events by task,
so a million ordinary tasks fold into a few numbers and the answer is still exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.states import LossCause, Outcome, TaskState

Key = tuple[int, int]
# Life, batch, generation, attempt, and how it was started: see `Start`.
OpenKey = tuple[str, int, int, int, str]


class Start(StrEnum):
    """How an attempt was started; it decides what its loss says about the task."""

    SINGLE = "s"
    GROUP = "g"  # one `started` record for many short calls: which of them ran is not known
    ALONE = "a"  # nothing else ran on that worker


_STARTS = tuple(Start)


class Event(NamedTuple):
    """One ended attempt: what decides about the task later."""

    gen: int
    attempt: int
    life: str
    outcome: str
    final: str  # the task state that this attempt settled, or "" while budget is left
    cause: str
    counted: bool  # an unexplained loss of a task that had been started by itself
    alone: bool  # nothing else ran on that worker

    @property
    def rank(self) -> tuple[bool, int, bool, str]:
        """Order of authority inside one generation."""
        return (self.outcome == Outcome.SUCCEEDED, self.attempt, self.outcome != Outcome.LOST, self.life)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the records say about one task."""

    state: TaskState | None  # None: not ended
    gen: int
    attempt: int  # the highest attempt seen in this generation, started ones included
    event: Event | None  # the one that decided, where it is known one by one
    failures: int = 0
    timeouts: int = 0
    memory: int = 0
    invalid: int = 0
    losses: int = 0  # counted towards quarantine
    resumed: int = 0  # explained losses
    lost_alone: bool = False
    duplicates: int = 0


def _weight(event: Event) -> tuple[bool, bool, bool, Event]:
    won = event.outcome == Outcome.SUCCEEDED
    return (won, event.cause == LossCause.BLACK_HOLE, event.outcome != Outcome.LOST, event)


class Fold:
    """Everything that a set of records says; `add` is idempotent and commutative."""

    def __init__(self) -> None:
        self.ok: dict[int, RangeSet] = {}
        self.events: dict[Key, dict[tuple[int, int, str], Event]] = {}
        self.open: dict[OpenKey, RangeSet] = {}
        self.generations: dict[Key, int] = {}
        self.cancelled: dict[tuple[int, int], RangeSet] = {}

    def add(self, life: str, record: Mapping[str, Any]) -> None:
        """Take one record of `life`'s journal."""
        kind = record.get("t")
        if kind == "started":
            self._started(life, record)
        elif kind == "receipt":
            self._receipt(life, record)
        elif kind == "lost":
            self._lost(record)
        elif kind == "adopted":
            self._receipt(record["life"], record["rec"])

    def _started(self, life: str, record: Mapping[str, Any]) -> None:
        batch, first, gen, attempt = record["b"], record["i"], record["g"], record["a"]
        fresh = self._not_ended(life, batch, gen, attempt, first, first + record.get("k", 1))
        if not fresh:
            return
        key = (life, batch, gen, attempt, record.get("how", Start.SINGLE))
        opened = self.open.get(key)
        if opened is None:
            opened = self.open[key] = RangeSet()
        for low, high in fresh:
            opened.add(low, high)

    def _not_ended(self, life: str, batch: int, gen: int, attempt: int, start: int, stop: int) -> list[tuple[int, int]]:
        """The tasks of which the end of this attempt is not known yet.

        It may be read before its start: from a summary, a segment, an adopted copy, or another order of journals.
        """
        whole = [(start, stop)]
        ok = self.ok.get(batch) if gen == 0 and attempt == 1 else None
        if ok is not None:
            whole = list(ok.missing(start, stop))
        if not self.events:
            return whole
        fresh = RangeSet(whole)
        for _, index in list(self._with_events(batch, fresh)):
            if (gen, attempt, life) in self.events[batch, index]:
                fresh.remove(index, index + 1)
        return list(fresh)

    def _with_events(self, batch: int, indexes: RangeSet) -> Iterator[Key]:
        if len(indexes) <= len(self.events):
            yield from ((batch, index) for index in indexes.numbers() if (batch, index) in self.events)
        else:
            yield from (key for key in self.events if key[0] == batch and key[1] in indexes)

    def add_success(self, batch: int, index: int) -> None:
        """Take a plain success of a first attempt, without its `started`: the short way of a worker's own journal."""
        ranges = self.ok.get(batch)
        if ranges is None:
            ranges = self.ok[batch] = RangeSet()
        ranges.add(index, index + 1)

    def _close(self, life: str, batch: int, gen: int, attempt: int, start: int, stop: int) -> None:
        for how in _STARTS:
            key = (life, batch, gen, attempt, how)
            opened = self.open.get(key)
            if opened is not None:
                opened.remove(start, stop)
                if not opened:
                    del self.open[key]

    def _receipt(self, life: str, record: Mapping[str, Any]) -> None:
        batch, first, gen, attempt = record["b"], record["i"], record["g"], record["a"]
        stop = first + record.get("k", 1)
        outcome = record["o"]
        self._close(life, batch, gen, attempt, first, stop)
        if outcome == "succeeded" and gen == 0 and attempt == 1:
            ranges = self.ok.get(batch)
            if ranges is None:
                ranges = self.ok[batch] = RangeSet()
            ranges.add(first, stop)
            return
        event = Event(
            gen, attempt, life, outcome, record.get("final", ""), record.get("cause", ""),
            bool(record.get("counted", False)), bool(record.get("alone", False)),
        )  # fmt: skip
        for index in range(first, stop):
            self._put(batch, index, event)

    def _lost(self, record: Mapping[str, Any]) -> None:
        batch, first, gen, attempt, life = record["b"], record["i"], record["g"], record["a"], record["life"]
        stop = first + record.get("k", 1)
        self._close(life, batch, gen, attempt, first, stop)
        cause = record.get("cause", LossCause.WORKER_GONE)
        counted = bool(record.get("counted", False))
        event = Event(gen, attempt, life, Outcome.LOST, "", cause, counted, bool(record.get("alone", False)))
        for index in range(first, stop):
            self._put(batch, index, event)

    def _put(self, batch: int, index: int, event: Event) -> None:
        events = self.events.setdefault((batch, index), {})
        key = (event.gen, event.attempt, event.life)
        known = events.get(key)
        # Two reapers may tell of one loss with different evidence, and a life may take back a failure that its node
        # caused; the larger tuple wins, whatever the order.
        if known is None or _weight(event) > _weight(known):
            events[key] = event

    def retried(self, batch: int, indexes: RangeSet, gen: int) -> None:
        """A person opened generation `gen` of these tasks."""
        for index in indexes.numbers():
            key = (batch, index)
            self.generations[key] = max(gen, self.generations.get(key, 0))

    def cancel(self, batch: int, gen: int, indexes: RangeSet) -> None:
        """A person cancelled generation `gen` of these tasks."""
        known = self.cancelled.setdefault((batch, gen), RangeSet())
        for start, stop in indexes:
            known.add(start, stop)

    def generation(self, batch: int, index: int) -> int:
        """The newest generation of a task that anything speaks of."""
        events = self.events.get((batch, index), {})
        return max(self.generations.get((batch, index), 0), max((event.gen for event in events.values()), default=0))

    def is_cancelled(self, batch: int, index: int, gen: int) -> bool:
        """True when a person cancelled that generation."""
        ranges = self.cancelled.get((batch, gen))
        return ranges is not None and index in ranges

    def verdict(self, batch: int, index: int) -> Verdict:
        """What became of one task."""
        gen = self.generation(batch, index)
        plain = gen == 0 and batch in self.ok and index in self.ok[batch]
        events = [event for event in self.events.get((batch, index), {}).values() if event.gen == gen]
        highest = max((event.attempt for event in events), default=1 if plain else 0)
        for (_, number, opened_gen, attempt, _), ranges in self.open.items():
            if number == batch and opened_gen == gen and attempt > highest and index in ranges:
                highest = attempt
        best = max(events, key=lambda event: event.rank, default=None)
        successes = sum(event.outcome == Outcome.SUCCEEDED for event in events) + plain
        state: TaskState | None = None
        if successes:
            state = TaskState.SUCCEEDED
        elif best is not None and best.final:
            state = TaskState(best.final)
        return Verdict(
            state=state,
            gen=gen,
            attempt=highest,
            event=best,
            failures=sum(event.outcome == Outcome.FAILED for event in events),
            timeouts=sum(event.outcome == Outcome.TIMEOUT for event in events),
            memory=sum(event.outcome == Outcome.OUT_OF_MEMORY for event in events),
            invalid=sum(event.outcome == Outcome.OUTPUT_INVALID for event in events),
            losses=sum(event.outcome == Outcome.LOST and event.counted for event in events),
            resumed=sum(event.outcome == Outcome.LOST and not event.counted for event in events),
            lost_alone=any(event.outcome == Outcome.LOST and event.counted and event.alone for event in events),
            duplicates=max(0, successes - 1),
        )

    def irregular(self) -> Iterator[Key]:
        """The tasks about which more is known than one plain success."""
        yield from self.events
        for key in self.generations:
            if key not in self.events:
                yield key

    def irregular_within(self, batch: int, first: int, last: int) -> Iterator[Key]:
        """The irregular tasks of one stretch; the cheaper of walking the stretch and walking the events."""
        if last - first <= len(self.events) + len(self.generations):
            for index in range(first, last):
                if (batch, index) in self.events or (batch, index) in self.generations:
                    yield batch, index
        else:
            for number, index in self.irregular():
                if number == batch and first <= index < last:
                    yield number, index

    def counts(self) -> dict[TaskState, int]:
        """How many tasks ended in each state; exact, and independent of the order of records."""
        counts = dict.fromkeys((state for state in TaskState if state.ended), 0)
        counts[TaskState.SUCCEEDED] = sum(len(ranges) for ranges in self.ok.values())
        for batch, index in self.irregular():
            state = self.verdict(batch, index).state
            if batch in self.ok and index in self.ok[batch]:
                counts[TaskState.SUCCEEDED] -= 1
            if state is not None:
                counts[state] += 1
        return counts

    def ended(self, batch: int, count: int) -> dict[TaskState, RangeSet]:
        """The ended tasks of one batch of `count` tasks, by state."""
        ended = {state: RangeSet() for state in TaskState if state.ended}
        for start, stop in self.ok.get(batch, RangeSet()):
            ended[TaskState.SUCCEEDED].add(start, min(stop, count))
        for key in self.irregular():
            if key[0] == batch:
                state = self.verdict(*key).state
                ended[TaskState.SUCCEEDED].remove(key[1], key[1] + 1)
                if state is not None:
                    ended[state].add(key[1], key[1] + 1)
        return ended

    def as_json(self) -> dict[str, Any]:
        """A summary from which `merge_json` restores the same answers."""
        return {
            "ok": {str(batch): [list(pair) for pair in ranges] for batch, ranges in self.ok.items()},
            "events": [
                [batch, index, *event] for (batch, index), events in self.events.items() for event in events.values()
            ],
            "open": [[*key, [list(pair) for pair in ranges]] for key, ranges in self.open.items()],
        }

    def merge_json(self, data: Mapping[str, Any]) -> None:
        """Take what `as_json` wrote. Raises KeyError, TypeError or ValueError on foreign data."""
        for batch, pairs in data["ok"].items():
            ranges = self.ok.setdefault(int(batch), RangeSet())
            for start, stop in pairs:
                ranges.add(start, stop)
                for life, number, gen, attempt, _ in list(self.open):
                    if (number, gen, attempt) == (int(batch), 0, 1):
                        self._close(life, number, 0, 1, start, stop)
        for batch, index, *fields in data["events"]:
            event = Event(*fields)
            self._close(event.life, batch, event.gen, event.attempt, index, index + 1)
            self._put(batch, index, event)
        for life, batch, gen, attempt, how, pairs in data["open"]:
            for start, stop in pairs:
                self._started(life, {"b": batch, "i": start, "k": stop - start, "g": gen, "a": attempt, "how": how})
