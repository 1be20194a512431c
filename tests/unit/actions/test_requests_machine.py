"""Whatever people ask and workers do, in any order: no generation is opened twice, and no task loses its cover."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fleetcraft.actions.requests import cancel, retry
from fleetcraft.actions.selection import Selection
from fleetcraft.core.names import TaskId, Token
from fleetcraft.spool.claims import release
from fleetcraft.spool.cover import remaining
from fleetcraft.spool.life import Life
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool
from tests.support.enqueuing import make_spool, stream
from tests.unit.actions.handwork import claim_all, end, start, work

TASKS = 6
INDEXES = st.sets(st.integers(0, TASKS - 1), min_size=1)
ENDS = st.sampled_from([("failed", "failed"), ("succeeded", "succeeded"), ("failed", "quarantined")])


class RequestsMachine(RuleBasedStateMachine):
    """The model keeps, for each task, its generation, whether that was cancelled, and how it ended."""

    @initialize()
    def begin(self) -> None:
        self.folder = TemporaryDirectory()
        self.spool = make_spool(Path(self.folder.name))
        # Two batches, so that positions and batches are not the same thing.
        stream(self.spool, [{"name": "other", "command": ["true"]}])
        stream(self.spool, [{"name": f"t{n}", "command": ["true"]} for n in range(TASKS)])
        self.life = Life.begin(self.spool)
        self.gen = [0] * TASKS
        self.cancelled = [False] * TASKS
        self.ended: list[str | None] = [None] * TASKS
        self.running: dict[int, Token] = {}
        self.claims: list[Token] = []

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def selection(self, indexes: set[int]) -> Selection:
        return Selection(ids=tuple(TaskId(2, index) for index in sorted(indexes)))

    @rule(indexes=INDEXES)
    def ask_cancel(self, indexes: set[int]) -> None:
        may = {index for index in indexes if self.ended[index] is None and not self.cancelled[index]}
        result = cancel(self.spool, self.selection(indexes))
        assert result.cancelled == len(may)
        assert result.refused.count == len(indexes - may)
        for index in may:
            self.cancelled[index] = True

    @rule(indexes=INDEXES, successes=st.booleans())
    def ask_retry(self, indexes: set[int], successes: bool) -> None:
        may = {index for index in indexes if self.ended[index] not in (None, *([] if successes else ["succeeded"]))}
        result = retry(Spool.open(self.spool.layout.root), self.selection(indexes), succeeded=successes)
        assert result.retried == len(may)
        assert result.refused.count == len(indexes - may)
        for index in may:
            self.gen[index] += 1
            self.ended[index] = None
            self.cancelled[index] = False

    @rule(ending=ENDS, data=st.data())
    def run_everything(self, ending: tuple[str, str], data: Any) -> None:
        del data
        if self.claims:
            return
        waiting = [index for index in range(TASKS) if self.ended[index] is None]
        expected = sum(not self.cancelled[index] for index in waiting)
        others = self.other_waits()
        assert (
            work(self.spool, self.life, lambda batch, _: ending if batch == 2 else ("failed", "failed"))
            == expected + others
        )
        for index in waiting:
            self.ended[index] = "cancelled" if self.cancelled[index] else ending[1]

    def other_waits(self) -> int:
        return sum(token.batch == 1 for token in self.spool.tokens().tokens)

    @rule()
    def claim_and_start(self) -> None:
        if self.claims:
            return
        self.claims = claim_all(self.life)
        reader = SpoolFold(self.spool)
        reader.refresh()
        for claim in self.claims:
            batch = self.spool.batch(claim.batch)
            assert batch is not None
            for index in remaining(self.spool, batch, claim, reader.fold).numbers():
                if claim.batch == 2:
                    assert claim.gen == self.gen[index]
                    assert index not in self.running
                    self.running[index] = claim
                start(self.life, claim.batch, index, claim)

    @rule(ending=ENDS)
    def end_what_runs(self, ending: tuple[str, str]) -> None:
        for index, claim in self.running.items():
            outcome = ("cancelled", "cancelled") if self.cancelled[index] else ending
            end(self.life, 2, index, claim, *outcome)
            self.ended[index] = outcome[1]
        for claim in self.claims:
            if claim.batch == 1:
                end(self.life, 1, 0, claim, "failed", "failed")
            release(self.life, claim)
        self.running, self.claims = {}, []

    @invariant()
    def every_task_is_offered_once_or_has_ended(self) -> None:
        if not hasattr(self, "gen"):
            return
        offered = Counter(
            (index, token.gen)
            for token in self.spool.tokens().tokens
            if token.batch == 2
            for index in range(token.start, token.stop)
        )
        for index in range(TASKS):
            newest = offered[index, self.gen[index]]
            assert newest == 1 or (newest == 0 and self.ended[index] is not None), (index, offered)
        assert all(gen <= self.gen[index] for index, gen in offered)

    @invariant()
    def the_records_say_what_the_model_says(self) -> None:
        if not hasattr(self, "gen"):
            return
        reader = SpoolFold(self.spool, durable=True)
        reader.refresh()
        for index in range(TASKS):
            verdict = reader.fold.verdict(2, index)
            assert (verdict.gen, verdict.state) == (self.gen[index], self.ended[index])


RequestsMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=14, deadline=None)
TestRequests = RequestsMachine.TestCase
