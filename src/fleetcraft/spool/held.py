"""Tasks that wait for others: who is due, who can no longer come true, and the release of both kinds of token.

A held token covers a range whose tasks may wait for different things. When all are due it is renamed to
waiting (one of any number of observers succeeds). When some are, a life claims it and splits it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from fleetcraft.core.names import HELD, TaskId, Token
from fleetcraft.core.outcome import Fold
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.states import TaskState
from fleetcraft.spool.claims import Piece, split, take
from fleetcraft.spool.ledger import Batch
from fleetcraft.spool.life import Life
from fleetcraft.spool.spool import Spool
from fleetcraft.spool.tokens import Moved, move

BATCH_PREFIX = "batch:"


class Due(StrEnum):
    """What a task's upstream says."""

    DUE = "due"
    PENDING = "pending"
    BLOCKED = "blocked"


@dataclass(slots=True)
class Upstream:
    """Answers whether named tasks have succeeded; names are looked up once."""

    spool: Spool
    _ids: dict[str, TaskId | None] = field(default_factory=dict)

    def judge(self, after: Iterable[str], fold: Fold) -> tuple[Due, str]:
        """Due, pending, or blocked; with the name that decides."""
        result, decider = Due.DUE, ""
        for name in after:
            state = self._state(name, fold)
            if state is TaskState.SUCCEEDED:
                continue
            if state is not None:
                return Due.BLOCKED, name
            result, decider = Due.PENDING, name
        return result, decider

    def _state(self, name: str, fold: Fold) -> TaskState | None:
        if name.startswith(BATCH_PREFIX) and name[len(BATCH_PREFIX) :].isdigit():
            return self._batch_state(int(name[len(BATCH_PREFIX) :]), fold)
        task = self._ids.get(name)
        if task is None:
            task = self._ids[name] = self.spool.find(name)
        if task is None:
            return None
        state = fold.verdict(task.batch, task.index).state
        if state is None and fold.is_cancelled(task.batch, task.index, fold.generation(task.batch, task.index)):
            return TaskState.CANCELLED
        return state

    def _batch_state(self, number: int, fold: Fold) -> TaskState | None:
        place = self.spool.places().get(number)
        if place is None:
            return None
        ended = fold.ended(number, place.count)
        for state in (TaskState.FAILED, TaskState.QUARANTINED, TaskState.CANCELLED):
            if ended[state]:
                return state
        return TaskState.SUCCEEDED if len(ended[TaskState.SUCCEEDED]) == place.count else None


def judge_token(upstream: Upstream, batch: Batch, token: Token, fold: Fold) -> dict[Due, RangeSet]:
    """The positions under a token by what their upstream says."""
    found = {due: RangeSet() for due in Due}
    shared: dict[tuple[str, ...], Due] = {}
    for position, raw in enumerate(batch.lines(token.start, token.stop), token.start):
        task = batch.origin(position)
        if fold.is_cancelled(task.batch, task.index, token.gen):
            found[Due.DUE].add(position, position + 1)  # a worker writes its end down
            continue
        after = tuple(json.loads(raw).get("after", ()))
        if after not in shared:
            shared[after] = upstream.judge(after, fold)[0]
        found[shared[after]].add(position, position + 1)
    return found


def release_due(life: Life, tokens: Iterable[Token], upstream: Upstream, fold: Fold) -> int:
    """Make due tasks of held tokens waiting; returns how many tasks. `fold` must be durable. Raises OSError."""
    spool, released = life.spool, 0
    for token in tokens:
        if token.form != HELD:
            continue
        batch = spool.batch(token.batch)
        if batch is None:
            continue
        found = judge_token(upstream, batch, token, fold)
        if not found[Due.DUE]:
            continue
        if len(found[Due.DUE]) == token.count:
            layout = spool.layout
            if move(life.files, layout.token(token.name), layout.token(token.waiting().name)) is Moved.YES:
                released += token.count
            continue
        taken = take(life, token)
        if taken is not None:
            split(life, taken[0], None, _pieces(found, token.attempt))
            released += len(found[Due.DUE])
    return released


def _pieces(found: dict[Due, RangeSet], attempt: int) -> list[Piece]:
    rest = RangeSet([*found[Due.PENDING], *found[Due.BLOCKED]])
    pieces = [Piece(start, stop, attempt) for start, stop in found[Due.DUE]]
    return pieces + [Piece(start, stop, attempt, held=True) for start, stop in rest]
