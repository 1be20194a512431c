"""One reading of a whole spool: for every batch, which of its tasks stand in which state.

Every task is in exactly one state, so the numbers add up to the total. The order of looks matters: batches,
then tokens, then journals. A task that moves on meanwhile is then seen later in its life, never lost from sight.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fleetcraft.core.names import CLAIM, DRAFT, FENCED, HELD, Token
from fleetcraft.core.outcome import Start
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.states import TaskState
from fleetcraft.readmodel.held import HeldReading
from fleetcraft.readmodel.lives import WorkerView, read_workers
from fleetcraft.spool.maintenance import moved_into_fold
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool

States = dict[TaskState, RangeSet]
_LOOKS = 3


@dataclass(slots=True)
class Picture:
    """Where every task stands. `states[batch][state]` holds positions of the batch that first published them."""

    spool: Spool
    reader: SpoolFold
    now_utc: float
    tokens: list[Token] = field(default_factory=list)
    foreign: int = 0
    workers: list[WorkerView] = field(default_factory=list)
    states: dict[int, States] = field(default_factory=dict)
    uncovered: dict[int, RangeSet] = field(default_factory=dict)  # waiting, but no token offers them
    unfinished: list[int] = field(default_factory=list)  # batches whose publisher died before the last rename
    held: HeldReading = field(init=False)
    _gens: dict[int, dict[int, RangeSet]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held = HeldReading(self.spool)

    def state(self, batch: int, index: int) -> TaskState:
        """The state of one task."""
        for state, ranges in self.states.get(batch, {}).items():
            if index in ranges:
                return state
        return TaskState.WAITING

    def counts(self) -> dict[TaskState, int]:
        """How many tasks stand in each state."""
        return {state: sum(len(of[state]) for of in self.states.values()) for state in TaskState}

    def count_uncovered(self) -> int:
        """How many tasks wait without a token."""
        return sum(map(len, self.uncovered.values()))


def take_picture(spool: Spool, reader: SpoolFold | None = None) -> Picture:
    """Read everything. Tasks without cover are looked for again, since one listing is no proof. Raises OSError."""
    reader = reader or SpoolFold(spool)
    picture = _look(spool, reader)
    for _ in range(_LOOKS - 1):
        if not picture.count_uncovered():
            break
        picture = _look(spool, reader)
    return picture


def _look(spool: Spool, reader: SpoolFold) -> Picture:
    spool.refresh()
    listing = spool.tokens()
    reader.refresh()
    now_utc = spool.clock.utc()
    picture = Picture(spool, reader, now_utc, listing.tokens, listing.foreign)
    picture.workers = read_workers(reader, now_utc)
    _place_ended(picture)
    _place_running(picture)
    _place_cancelled(picture)
    _place_tokens(picture)
    return picture


def _place_ended(picture: Picture) -> None:
    fold = picture.reader.fold
    for batch, place in picture.spool.places().items():
        states = picture.states[batch] = {state: RangeSet() for state in TaskState}
        for start, stop in fold.ok.get(batch, RangeSet()).within(0, place.count):
            states[TaskState.SUCCEEDED].add(start, stop)
    for batch, index in fold.irregular():
        known = picture.states.get(batch)
        if known is None:
            continue
        verdict = fold.verdict(batch, index)
        known[TaskState.SUCCEEDED].remove(index, index + 1)
        if verdict.state is not None:
            known[verdict.state].add(index, index + 1)
        if verdict.gen:
            picture._gens.setdefault(batch, {}).setdefault(verdict.gen, RangeSet()).add(index, index + 1)  # noqa: SLF001


def _of_generation(picture: Picture, batch: int, gen: int, ranges: RangeSet) -> RangeSet:
    """The part of `ranges` whose newest generation is `gen`."""
    later = picture._gens.get(batch, {})  # noqa: SLF001  this module's own class
    if gen:
        known = later.get(gen, RangeSet())
        return RangeSet(pair for start, stop in ranges for pair in known.within(start, stop))
    found = RangeSet(ranges)
    for other in later.values():
        for start, stop in other:
            found.remove(start, stop)
    return found


def _put(picture: Picture, batch: int, ranges: RangeSet, state: TaskState) -> None:
    """Give a state to those of `ranges` that have none yet."""
    states = picture.states[batch]
    free = RangeSet(ranges)
    for taken in states.values():
        for start, stop in ranges:
            for low, high in list(taken.within(start, stop)):
                free.remove(low, high)
    for start, stop in free:
        states[state].add(start, stop)


def _place_running(picture: Picture) -> None:
    alive = {worker.life: worker for worker in picture.workers if worker.is_running}
    grouped: dict[str, int] = {}
    for (life, batch, gen, _, how), ranges in picture.reader.fold.open.items():
        worker = alive.get(life)
        place = picture.spool.places().get(batch)
        if worker is None or place is None:
            continue
        inside = RangeSet(ranges.within(0, place.count))
        if how == Start.GROUP:
            # One record started many short calls. At most one of them per slot runs; the rest is still claimed.
            room = max(1, worker.cpus or 1) - grouped.get(life, 0)
            inside = _first(inside, max(0, room))
            grouped[life] = grouped.get(life, 0) + len(inside)
        _put(picture, batch, _of_generation(picture, batch, gen, inside), TaskState.RUNNING)


def _first(ranges: RangeSet, count: int) -> RangeSet:
    found = RangeSet()
    for start, stop in ranges:
        if count <= 0:
            break
        found.add(start, min(stop, start + count))
        count -= stop - start
    return found


def _place_cancelled(picture: Picture) -> None:
    """A cancel of a task that has not started takes effect at once; of a running one, when its worker obeys."""
    for (batch, gen), ranges in picture.reader.fold.cancelled.items():
        place = picture.spool.places().get(batch)
        if place is not None:
            inside = RangeSet(ranges.within(0, place.count))
            _put(picture, batch, _of_generation(picture, batch, gen, inside), TaskState.CANCELLED)


def _place_tokens(picture: Picture) -> None:
    spool = picture.spool
    covered: dict[int, RangeSet] = {}
    held: list[Token] = []
    # Owned tokens first: a task under a claim and under its void draft is claimed.
    for found in sorted(picture.tokens, key=lambda token: token.form not in (CLAIM, FENCED, DRAFT)):
        token = _current(spool, found)
        batch = spool.batch(token.batch) if token else None
        if token is None or batch is None:
            continue  # its tasks are offered by the batch that folds it, or it appeared after our look
        offered = token.form == DRAFT and token.life == batch.publication
        if offered:
            picture.unfinished.append(token.batch)
        if token.form == HELD:
            held.append(token)
            continue
        for number, first, last, _ in batch.origins(token.start, token.stop):
            if number not in picture.states:
                continue
            ranges = _of_generation(picture, number, token.gen, RangeSet([(first, last)]))
            if (
                token.form in (CLAIM, FENCED, DRAFT)
                and not offered
                and token.life not in picture.reader.requests.owners
            ):
                _put(picture, number, ranges, TaskState.CLAIMED)
            for start, stop in ranges:
                covered.setdefault(number, RangeSet()).add(start, stop)
    _place_held(picture, held)
    _place_rest(picture, covered)


def _current(spool: Spool, token: Token) -> Token | None:
    """The token in the coordinates of today: a retry of a folded batch counts, an old cover of it does not."""
    if not spool.is_folded(token.batch):
        return token
    return moved_into_fold(spool, token) if token.gen else None


def _place_held(picture: Picture, held: list[Token]) -> None:
    for state, batch, ranges, gen in picture.held.classify(held, picture.states):
        if batch in picture.states:
            _put(picture, batch, _of_generation(picture, batch, gen, ranges), state)


def _place_rest(picture: Picture, covered: dict[int, RangeSet]) -> None:
    for batch, place in picture.spool.places().items():
        states = picture.states[batch]
        rest = RangeSet([(0, place.count)])
        for ranges in states.values():
            for start, stop in ranges:
                rest.remove(start, stop)
        states[TaskState.WAITING] = rest
        bare = RangeSet(rest)
        for start, stop in covered.get(batch, RangeSet()):
            bare.remove(start, stop)
        if bare:
            picture.uncovered[batch] = bare
