"""What a person asks of tasks and workers: cancel, retry, stop, resume, drain, limit.

A request is a fact on disk that workers read; nothing here waits for them to act on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from fleetcraft.actions.lookup import nearest
from fleetcraft.actions.selection import Selection, ended_within, name_of, resolve
from fleetcraft.actions.standing import Standing
from fleetcraft.core.errors import UsageError
from fleetcraft.core.names import TaskId
from fleetcraft.core.outcome import Fold
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.states import TaskState
from fleetcraft.spool.life import DEAD, find_state
from fleetcraft.spool.permits import FAMILY_PREFIX, set_ceiling
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.requests import CANCEL, DRAIN, RESUME, STOP, ask
from fleetcraft.spool.retry import open_generation
from fleetcraft.spool.spool import Spool

SHOWN_TASKS = 20
_RESOURCE = re.compile(rf"(?:{FAMILY_PREFIX})?[A-Za-z0-9][A-Za-z0-9_.-]{{0,63}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why one task was left as it is."""

    task: TaskId
    name: str
    state: TaskState
    reason: str


@dataclass(slots=True, kw_only=True)
class Refusals:
    """All of them in numbers, the first ones by name."""

    count: int = 0
    by_state: dict[TaskState, int] = field(default_factory=dict)
    shown: list[Refusal] = field(default_factory=list)

    def add(self, spool: Spool, task: TaskId, state: TaskState, reason: str) -> None:
        """Take one task."""
        self.add_many(state, 1)
        if not self.is_full:
            self.shown.append(Refusal(task=task, name=name_of(spool, task), state=state, reason=reason))

    def add_stretch(self, spool: Spool, batch: int, pair: tuple[int, int], state: TaskState, reason: str) -> None:
        """Take tasks that stand side by side and share a reason; they may come by the million."""
        start, stop = pair
        shown = min(stop, start + SHOWN_TASKS - len(self.shown))
        for index in range(start, shown):
            self.add(spool, TaskId(batch, index), state, reason)
        self.add_many(state, stop - shown)

    def add_many(self, state: TaskState, count: int) -> None:
        """Take tasks in numbers only."""
        self.count += count
        self.by_state[state] = self.by_state.get(state, 0) + count

    @property
    def is_full(self) -> bool:
        """True when further tasks are only counted."""
        return len(self.shown) >= SHOWN_TASKS


@dataclass(slots=True, kw_only=True)
class CancelResult:
    """What a cancel asked for. Running tasks end when their worker reads it."""

    request: int | None = None  # None: there was nothing to cancel
    cancelled: int = 0
    names: list[str] = field(default_factory=list)  # the first ones
    refused: Refusals = field(default_factory=Refusals)  # ended already, or cancelled before


@dataclass(slots=True, kw_only=True)
class RetryResult:
    """What a retry opened."""

    requests: list[str] = field(default_factory=list)
    retried: int = 0
    names: list[str] = field(default_factory=list)  # the first ones
    refused: Refusals = field(default_factory=Refusals)


def cancel(spool: Spool, selection: Selection, *, reason: str = "") -> CancelResult:
    """Cancel the present generation of tasks; a later retry of them is not met.

    Raises UsageError, StorageFull or OutOfReach.
    """
    reader = SpoolFold(spool)
    result = CancelResult()
    items: list[tuple[int, int, RangeSet]] = []
    for batch, ranges in resolve(spool, selection, reader).items():
        by_gen = _cancellable(spool, reader.fold, batch, ranges, result.refused)
        items.extend((batch, gen, those) for gen, those in sorted(by_gen.items()) if those)
    if not items:
        return result
    listed = [[batch, gen, [list(pair) for pair in those]] for batch, gen, those in items]
    result.request = ask(spool, CANCEL, items=listed, reason=reason)
    result.cancelled = sum(len(those) for _, _, those in items)
    for batch, _, those in items:
        _show(spool, batch, those, result.names)
    return result


def _cancellable(spool: Spool, fold: Fold, batch: int, ranges: RangeSet, refused: Refusals) -> dict[int, RangeSet]:
    """Tasks to cancel, by generation."""
    by_gen: dict[int, RangeSet] = {}
    for start, stop in ranges:
        plain, special = ended_within(fold, batch, start, stop)
        fresh = RangeSet([(start, stop)])
        for pair in plain:
            fresh.remove(*pair)
            refused.add_stretch(spool, batch, pair, TaskState.SUCCEEDED, "it succeeded")
        for index in special:
            fresh.remove(index, index + 1)
            verdict = fold.verdict(batch, index)
            if verdict.state is not None:
                refused.add(spool, TaskId(batch, index), verdict.state, f"it ended: {verdict.state}")
            elif fold.is_cancelled(batch, index, verdict.gen):
                refused.add(spool, TaskId(batch, index), TaskState.CANCELLED, "it was cancelled already")
            else:
                by_gen.setdefault(verdict.gen, RangeSet()).add(index, index + 1)
        before = fold.cancelled.get((batch, 0), RangeSet())
        for pair in [part for stretch in fresh for part in before.within(*stretch)]:
            fresh.remove(*pair)
            refused.add_stretch(spool, batch, pair, TaskState.CANCELLED, "it was cancelled already")
        for pair in fresh:
            by_gen.setdefault(0, RangeSet()).add(*pair)
    return by_gen


def _show(spool: Spool, batch: int, tasks: RangeSet, names: list[str]) -> None:
    for index in tasks.numbers():
        if len(names) >= SHOWN_TASKS:
            return
        names.append(name_of(spool, TaskId(batch, index)))


def retry(
    spool: Spool, selection: Selection, *, running: Literal["refuse", "skip"] = "refuse", succeeded: bool = False
) -> RetryResult:
    """Open a new generation of tasks that ended, with all their budgets full again.

    Tasks that have not ended are refused with the reason, or left out in silence with `running="skip"`. A
    success is run again only when `succeeded` asks for it. Raises UsageError, StorageFull or OutOfReach.
    """
    reader = SpoolFold(spool, durable=True)
    result = RetryResult()
    for batch, ranges in sorted(resolve(spool, selection, reader).items()):
        plan = _RetryPlan(spool, reader, batch, ranges, succeeded=succeeded, skip=running == "skip")
        opened = open_generation(spool, reader, batch, plan.choose)
        plan.report(result.refused)
        if opened is not None:
            result.requests.append(opened.request)
            result.retried += len(opened.tasks)
            _show(spool, batch, opened.tasks, result.names)
    return result


@dataclass(slots=True)
class _RetryPlan:
    """Which tasks of one batch may be retried; asked again whenever somebody else was faster."""

    spool: Spool
    reader: SpoolFold
    batch: int
    ranges: RangeSet
    succeeded: bool
    skip: bool
    _done: RangeSet = field(default_factory=RangeSet)
    _going: RangeSet = field(default_factory=RangeSet)

    def choose(self, fold: Fold) -> dict[int, RangeSet]:
        """The new generations, by number."""
        wanted: dict[int, RangeSet] = {}
        self._done, self._going = RangeSet(), RangeSet()
        for start, stop in self.ranges:
            plain, special = ended_within(fold, self.batch, start, stop)
            going = RangeSet([(start, stop)])
            for pair in plain:
                going.remove(*pair)
                (wanted.setdefault(1, RangeSet()) if self.succeeded else self._done).add(*pair)
            for index in special:
                going.remove(index, index + 1)
                verdict = fold.verdict(self.batch, index)
                if verdict.state is None:
                    self._going.add(index, index + 1)
                elif verdict.state is TaskState.SUCCEEDED and not self.succeeded:
                    self._done.add(index, index + 1)
                else:
                    wanted.setdefault(verdict.gen + 1, RangeSet()).add(index, index + 1)
            for pair in going:
                self._going.add(*pair)
        return wanted

    def report(self, refused: Refusals) -> None:
        """Say why the others were left as they are."""
        for pair in self._done:
            reason = "it succeeded; ask for successes too to run it again"
            refused.add_stretch(self.spool, self.batch, pair, TaskState.SUCCEEDED, reason)
        if self.skip or not self._going:
            return
        standing = Standing.look(self.spool, self.reader)
        left = RangeSet(self._going)
        for state in (TaskState.RUNNING, TaskState.CLAIMED, TaskState.BLOCKED, TaskState.HELD, TaskState.WAITING):
            for start, stop in list(standing.ranges(self.batch, left, state)):
                left.remove(start, stop)
                for index in range(start, stop):
                    if refused.is_full:
                        refused.add_many(state, stop - index)
                        break
                    refused.add(self.spool, TaskId(self.batch, index), state, standing.explain(self.batch, index))


def stop(spool: Spool, *, reason: str = "") -> int:
    """No worker starts anything more in this spool until `resume`. Returns the number of the request."""
    return ask(spool, STOP, reason=reason)


def resume(spool: Spool) -> int:
    """Take back the last stop. Returns the number of the request."""
    return ask(spool, RESUME)


def drain(spool: Spool, lives: Sequence[str] = (), *, reason: str = "") -> list[str]:
    """Ask workers (all that have not ended, when none is named) to take nothing new and leave.

    A unique beginning of an id is enough. Returns the ids. Raises UsageError.
    """
    known = {life: find_state(spool.files, spool.layout.life(life)) for life in spool.lives()}
    present = [life for life, state in known.items() if state is not None and state != DEAD]
    chosen = [_one_life(spool, word, list(known), present) for word in lives] or present
    if chosen:
        ask(spool, DRAIN, lives=chosen, reason=reason)
    return chosen


def _one_life(spool: Spool, word: str, known: Sequence[str], present: Sequence[str]) -> str:
    if word in present:
        return word
    matching = [life for life in present if life.startswith(word)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        shown = ", ".join(matching[:5])
        raise UsageError(f"{word!r} begins the ids of {len(matching)} workers: {shown}.", hint="Write more of it.")
    if word in known:
        raise UsageError(f"Worker {word} has ended.", hint="See `fleetcraft worker list`.")
    raise UsageError(
        f"There is no worker {word!r} in {spool.layout.root}.{nearest(word, known)}",
        hint="See `fleetcraft worker list`.",
    )


def limit(spool: Spool, name: str, ceiling: int) -> None:
    """Set how many tasks may hold a named resource at once, or how many of `family:NAME` may share a GPU.

    Raises UsageError, StorageFull or OutOfReach.
    """
    if not _RESOURCE.fullmatch(name):
        raise UsageError(f"{name!r} is not the name of a resource, such as scratch_io, or family:NAME.")
    if not 0 <= ceiling <= 100_000:
        raise UsageError(f"The ceiling {ceiling} of {name} must be from 0 to 100000.")
    set_ceiling(spool, name, ceiling)
