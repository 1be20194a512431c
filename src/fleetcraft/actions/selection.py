"""Which tasks a person means: by name, id, batch, state, tag, pattern, or all of them.

Names, ids and batches are a union; state, tag and pattern then narrow it down, or narrow down everything when
nothing was named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from fleetcraft.actions.lookup import find_names, nearest, recent_names, scan_lines
from fleetcraft.actions.standing import Standing
from fleetcraft.core.errors import UsageError
from fleetcraft.core.names import TaskId, parse_task_id
from fleetcraft.core.outcome import Fold
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.states import TaskState
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool

# Tasks by the batch that first published them.
Chosen = dict[int, RangeSet]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a person named."""

    names: tuple[str, ...] = ()  # a name, or BATCH.INDEX where no task has that name
    ids: tuple[TaskId, ...] = ()
    batches: tuple[int, ...] = ()
    states: frozenset[TaskState] = frozenset()
    tags: frozenset[str] = frozenset()  # all of them
    pattern: str | None = None  # of names, as a shell matches file names; upper and lower case differ
    everything: bool = False

    @property
    def is_named(self) -> bool:
        """True when tasks were named one by one or by batch."""
        return bool(self.names or self.ids or self.batches)


def resolve(spool: Spool, selection: Selection, reader: SpoolFold) -> Chosen:
    """The tasks that are meant. `reader` is refreshed here. Raises UsageError when something named is not there."""
    narrowed = bool(selection.states or selection.tags or selection.pattern is not None)
    if not selection.is_named and not narrowed and not selection.everything:
        raise UsageError(
            "No task was named.", hint="Name tasks, or choose them by state, tag, batch or pattern, or all."
        )
    spool.refresh()
    reader.refresh()
    if selection.is_named and not selection.everything:
        chosen = _named(spool, selection)
    else:
        chosen = {batch: RangeSet([(0, place.count)]) for batch, place in spool.places().items() if place.count}
    if selection.states:
        chosen = _of_states(spool, chosen, selection.states, reader)
    if selection.tags or selection.pattern is not None:
        chosen = _matching(spool, chosen, _matcher(selection))
    return {batch: ranges for batch, ranges in chosen.items() if ranges}


def _named(spool: Spool, selection: Selection) -> Chosen:
    chosen: Chosen = {}
    places = spool.places()
    for number in selection.batches:
        if number not in places:
            raise UsageError(
                f"There is no batch {number} in {spool.layout.root}.", hint=f"The newest is {spool.highest()}."
            )
        chosen.setdefault(number, RangeSet()).add(0, places[number].count)
    found = find_names(spool, set(selection.names))
    tasks = [*selection.ids, *(found.get(name) or _by_id(spool, name) for name in selection.names)]
    for task in tasks:
        if spool.locate(task) is None:
            raise UsageError(f"There is no task {task} in {spool.layout.root}.", hint="See `fleetcraft task list`.")
        chosen.setdefault(task.batch, RangeSet()).add(task.index, task.index + 1)
    return chosen


def _by_id(spool: Spool, name: str) -> TaskId:
    task = parse_task_id(name)
    if task is None or spool.locate(task) is None:
        raise UsageError(
            f"There is no task {name!r} in {spool.layout.root}.{nearest(name, recent_names(spool))}",
            hint="See `fleetcraft task list`.",
        )
    return task


def _of_states(spool: Spool, chosen: Chosen, states: frozenset[TaskState], reader: SpoolFold) -> Chosen:
    standing = Standing.look(spool, reader) if any(not state.ended for state in states) else None
    result: Chosen = {}
    for batch, ranges in chosen.items():
        ended = reader.fold.ended(batch, spool.places()[batch].count)
        kept = result[batch] = RangeSet()
        left = RangeSet(ranges)
        for state, those in ended.items():
            for pair in [pair for start, stop in ranges for pair in those.within(start, stop)]:
                left.remove(*pair)
                if state in states:
                    kept.add(*pair)
        for state in states if standing is not None else ():
            if not state.ended and standing is not None:
                for pair in standing.ranges(batch, left, state):
                    kept.add(*pair)
    return result


def _matcher(selection: Selection) -> Callable[[Mapping[str, Any]], bool]:
    fits = re.compile(translate(selection.pattern)).match if selection.pattern is not None else None

    def match(task: Mapping[str, Any]) -> bool:
        if fits is not None and fits(task["name"]) is None:
            return False
        return selection.tags <= set(task.get("tags", ()))

    return match


def _matching(spool: Spool, chosen: Chosen, match: Callable[[Mapping[str, Any]], bool]) -> Chosen:
    result: Chosen = {}
    for batch, ranges in chosen.items():
        cover, offset = spool.places()[batch].cover, spool.places()[batch].offset
        kept = result[batch] = RangeSet()
        for start, stop in ranges:
            for position, raw in scan_lines(cover, offset + start, offset + stop):
                if match(cover.complete(position, json.loads(raw))):
                    kept.add(position - offset, position - offset + 1)
    return result


def name_of(spool: Spool, task: TaskId) -> str:
    """The name of a task, or its id where the ledger cannot be read."""
    described = spool.task(task)
    return str(described["name"]) if described is not None else str(task)


def ended_within(fold: Fold, batch: int, start: int, stop: int) -> tuple[RangeSet, list[int]]:
    """Tasks of a stretch that ended as a plain success, and those of which more is known, to be judged one by one."""
    plain = RangeSet(fold.ok.get(batch, RangeSet()).within(start, stop))
    special = sorted({index for _, index in fold.irregular_within(batch, start, stop)})
    for index in special:
        plain.remove(index, index + 1)
    return plain, special
