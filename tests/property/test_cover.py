"""What is left to do under a token, against a plain reading of verdicts task by task, also inside folded batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.core.names import Token
from fleetcraft.core.ranges import RangeSet
from fleetcraft.spool.cover import highest_attempt, remaining
from tests.property.test_fold import BATCHES, RECORDS, TASKS, fold_of

_RETRIES = st.lists(st.tuples(st.sampled_from(BATCHES), st.integers(0, TASKS - 1), st.integers(1, 3)), max_size=4)


@dataclass
class _Batch:
    """A batch that is itself, or one that folds both batches of the records, one behind the other."""

    number: int
    folded: bool
    parts: list[tuple[int, int]] = field(default_factory=list)

    def origins(self, start, stop):
        if not self.folded:
            yield self.number, start, stop, start
            return
        for place, batch in enumerate(BATCHES):
            low, high = max(start, place * TASKS), min(stop, (place + 1) * TASKS)
            if low < high:
                yield batch, low - place * TASKS, high - place * TASKS, low

    def task(self, position: int) -> tuple[int, int]:
        return (BATCHES[position // TASKS], position % TASKS) if self.folded else (self.number, position)


class _Spool:
    @staticmethod
    def is_folded(number):
        return False


@settings(max_examples=150)
@given(records=RECORDS, retries=_RETRIES, folded=st.booleans(), gen=st.integers(0, 2), data=st.data())
def test_what_is_left_is_what_has_not_ended_in_the_tokens_generation(records, retries, folded, gen, data):
    fold = fold_of(records)
    for batch, index, number in retries:
        fold.retried(batch, RangeSet([(index, index + 1)]), number)
    cover = _Batch(9 if folded else 1, folded)
    top = TASKS * len(BATCHES) if folded else TASKS
    start = data.draw(st.integers(0, top - 1))
    stop = data.draw(st.integers(start + 1, top))
    token = Token(lane="c1", priority=1, batch=cover.number, start=start, stop=stop, gen=gen, attempt=1)
    left = remaining(cast("Any", _Spool()), cast("Any", cover), token, fold)
    verdicts = {position: fold.verdict(*cover.task(position)) for position in range(start, stop)}
    # A generation that no record and no request speaks of is the token's own: a retry is asked for before its token.
    expected = {
        position
        for position, verdict in verdicts.items()
        if verdict.gen < gen or (verdict.gen == gen and verdict.state is None)
    }
    assert set(left.numbers()) == expected
    named = {position: _attempts(records, *cover.task(position), gen) for position in range(start, stop)}
    highest = highest_attempt(cast("Any", cover), token, fold)
    assert highest >= max([1, *(attempt for position in expected for attempt in named[position])])
    assert highest <= max([1, *(attempt for attempts in named.values() for attempt in attempts)])


def _attempts(records, batch, index, gen):
    """The attempts of a task in one generation that any record speaks of."""
    bodies = [record["rec"] if record["t"] == "adopted" else record for _, record in records if record["t"] != "note"]
    return [
        body["a"] for body in bodies if (body["b"], body["g"]) == (batch, gen) and 0 <= index - body["i"] < body["k"]
    ]


def test_nothing_is_left_of_a_batch_that_lives_on_in_another():
    class Folded(_Spool):
        @staticmethod
        def is_folded(number):
            return True

    token = Token(lane="c1", priority=1, batch=1, start=0, stop=3)
    assert not remaining(cast("Any", Folded()), cast("Any", _Batch(1, folded=False)), token, fold_of([]))
