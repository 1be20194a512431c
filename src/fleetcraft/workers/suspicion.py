"""What a worker does about the suspicion that its node is a black hole: probe, wait, take back, leave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fleetcraft.core.states import LossCause, Outcome
from fleetcraft.workers.attempt import Concluded
from fleetcraft.workers.black_hole import BlackHole, Finding
from fleetcraft.workers.claimer import Claimer
from fleetcraft.workers.context import Context
from fleetcraft.workers.timing import PROBE_EVERY_S, Timer


@dataclass(slots=True)
class Suspicion:
    """Nothing is started while a probe is open."""

    ctx: Context
    claimer: Claimer
    hole: BlackHole
    verdict: str | None = None  # why the node is a black hole, once that is certain
    timer: Timer = field(default_factory=lambda: Timer(PROBE_EVERY_S))

    @property
    def is_open(self) -> bool:
        """True while a probe is out."""
        return self.hole.probe is not None

    def settle(self, now_s: float) -> bool:
        """Go on with a suspicion, if there is one; True while nothing may be started."""
        hole = self.hole
        if hole.probe is None:
            if not hole.suspects():
                return False
            self.ctx.say("tasks fail here while others succeed elsewhere; one of them is offered again as a probe")
            self.claimer.give_back_unstarted()
            self.take_back([hole.begin(now_s)], "offered again, to see whether it fails elsewhere too")
            self.timer.next_s = now_s + self.timer.every_s
        for claim in [claim for claim in self.ctx.book if not claim.running and not claim.done]:
            self.claimer.let_go(claim)
        if not self.timer.due(now_s):
            return True
        finding = hole.look(self.ctx.read_everything(), now_s)
        if finding is Finding.NODE:
            self.verdict = f"{len(hole.streak) + 1} tasks failed on this node while they succeed elsewhere"
            self.take_back_streak(self.verdict)
        return finding is Finding.OPEN

    def take_back_streak(self, reason: str = "failed on this node, which is a black hole") -> None:
        """Take back every failure in the streak; those that ended after the finding failed for the same reason."""
        failures = list(self.hole.streak)
        self.hole.streak.clear()
        self.take_back(failures, reason)

    def take_back(self, failures: Iterable[Concluded], reason: str) -> None:
        """Write that these failures were losses of the node, durably, and offer the tasks anew."""
        for entry in failures:
            self.ctx.sink.record(
                {
                    "t": "receipt", "b": entry.id.batch, "i": entry.id.index, "g": entry.claim.token.gen,
                    "a": entry.attempt, "o": Outcome.LOST.value, "cause": LossCause.BLACK_HOLE.value, "error": reason,
                    "end": round(self.ctx.clock.utc(), 3),
                }
            )  # fmt: skip
        self.ctx.sink.sync()
        for entry in failures:
            if entry.ruling.final is not None:
                self.claimer.revive(entry.claim, entry.position, entry.attempt + 1)
