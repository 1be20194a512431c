"""How a worker life ends: its children first, then its claims, then its own state; each step as far as it is allowed.

A life that was reaped owns nothing any more and only writes down what it abandoned. One whose journal ended leaves
its claims to whoever can prove it gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fleetcraft.core.errors import EXIT_TRY_AGAIN, LifeEnded, OutOfReach
from fleetcraft.core.states import Outcome
from fleetcraft.workers.calls import Calls
from fleetcraft.workers.child import Supervisor
from fleetcraft.workers.claimer import Claimer
from fleetcraft.workers.context import Context
from fleetcraft.workers.runner import Runner
from fleetcraft.workers.starter import Starter


@dataclass(slots=True)
class Farewell:
    """The last steps; `turn` is one turn of the worker's loop without starting anything, `beat` its last heartbeat."""

    ctx: Context
    runner: Runner
    calls: Calls
    supervisor: Supervisor
    claimer: Claimer
    starter: Starter
    turn: Callable[[], None]
    beat: Callable[[], None]
    silent: bool = False  # reaped, or unsure what it owns: its reaper decides

    def say_goodbye(self, exit_code: int) -> int:
        """Do all steps, each even when one before it failed. Returns the exit code."""
        for step in (self._end_children, self._end_claims, self._end_life):
            try:
                exit_code = step() or exit_code
            except (LifeEnded, OutOfReach, OSError) as error:
                exit_code = exit_code or EXIT_TRY_AGAIN
                self.ctx.say(f"could not end in order: {error}")
        return exit_code

    @property
    def _silent(self) -> bool:
        """True when nothing may be recorded or released by us any more."""
        return self.silent or self.ctx.life.journal.ended

    def _end_children(self) -> int:
        """Nothing is left behind on the node: the process ends only with an empty tree under it."""
        self.runner.stop_all("drain")
        self.calls.stop_all("drain")
        while (len(self.supervisor) or self.runner.busy) and not self._silent:
            self.turn()
        self.supervisor.close(self.ctx.options.kill_grace_s)
        return 0

    def _end_claims(self) -> int:
        if self._silent:
            return 0  # whoever finds the claims decides, by evidence
        if not self.ctx.sink.flush():
            self.ctx.say("the storage is full: what this worker held goes back when another one looks after it")
            return EXIT_TRY_AGAIN
        self.ctx.life.check_live()
        for claim in list(self.ctx.book):
            if not claim.running:
                self.claimer.let_go(claim)
        self.starter.return_permits()
        return 0

    def _end_life(self) -> int:
        if not self._silent and self.ctx.sink.clear:
            self.ctx.sink.sync()
            self.beat()
            self.ctx.life.close()
        return 0

    def record_abandoned(self, reason: str) -> None:
        """What ran while we were taken for dead is written down with its cost; it is never counted."""
        sink, clock = self.ctx.sink, self.ctx.clock
        for running in self.runner.running.values():
            sink.record(
                {
                    "t": "receipt", "b": running.id.batch, "i": running.id.index, "g": running.claim.token.gen,
                    "a": running.attempt, "o": Outcome.ABANDONED.value, "s": running.slot.number,
                    "at": round(running.at_utc, 3), "end": round(clock.utc(), 3),
                    "wall": round(clock.mono() - running.at_mono_s, 3), "error": reason,
                }
            )  # fmt: skip
        for host in self.calls.hosts.values():
            if host.chunk is not None:
                sink.record(self.calls.receipts.abandoned(host, host.chunk, reason))
        sink.sync()
