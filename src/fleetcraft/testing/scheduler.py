"""Actors that take turns: each runs in a thread of its own, and one file operation is granted at a time.

Only one thread ever runs, and the order comes from the test, so a run is repeated exactly by making the same
choices. An actor can be killed before any of its operations, and the reply of any operation can be lost.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from fleetcraft.store.files import Files
from fleetcraft.testing.files import Crash, Operation, WrappedFiles

T = TypeVar("T")

# A thread that does not come back from one operation within this time is a fault of the test itself.
_STUCK_S = 60.0


class Act(Enum):
    """What happens to the actor whose turn it is."""

    GRANT = "grant"
    KILL = "kill"  # it dies before the operation
    LOSE = "lose"  # the operation is done, and the actor is told EIO
    FAIL = "fail"  # the operation is not done, and the actor is told EIO


Choice = tuple[str, Act]


class Gate(WrappedFiles):
    """The file system as one actor sees it: every operation waits for its turn."""

    def __init__(self, actor: Actor, inner: Files | None) -> None:
        super().__init__(inner)
        self._actor = actor

    def _around(self, operation: Operation, do: Callable[[], T]) -> T:
        act = self._actor.wait_for_turn(operation)
        if act is Act.GRANT:
            return do()
        if act is Act.LOSE:
            result = do()
            if operation.kind in ("open_read", "open_new") and isinstance(result, int):
                os.close(result)
        elif operation.kind == "close":
            do()
        raise OSError(errno.EIO, os.strerror(errno.EIO), operation.path)


@dataclass(slots=True, eq=False)
class Actor:
    """One thread of the play. `error` holds what ended it, when that was not an ordinary return."""

    name: str
    work: Callable[[Files], object]
    inner: Files | None = None
    pending: Operation | None = None
    steps: int = 0
    ended: bool = False
    killed: bool = False
    error: BaseException | None = None
    _act: Act = Act.GRANT
    _turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _stopped: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _thread: threading.Thread | None = None

    def wait_for_turn(self, operation: Operation) -> Act:
        """Called in the actor's thread before each operation."""
        if self.killed:
            raise Crash(f"{self.name} is dead")
        self.pending = operation
        self._stopped.release()
        self._turn.acquire()
        self.pending = None
        if self._act is Act.KILL:
            self.killed = True
            raise Crash(f"{self.name} was killed before {operation}")
        return self._act

    def start(self) -> None:
        """Run up to the first operation."""
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()
        self._await()

    def _run(self) -> None:
        try:
            self.work(Gate(self, self.inner))
        except Crash:
            self.killed = True
        except BaseException as error:  # noqa: BLE001  handed to the test by `Interleaver.run`
            self.error = error
        finally:
            self.ended = True
            self._stopped.release()

    def resume(self, act: Act) -> None:
        """Let the actor go on to its next operation, its end or its death."""
        self.steps += 1
        self._act = act
        self._turn.release()
        self._await()

    def _await(self) -> None:
        if not self._stopped.acquire(timeout=_STUCK_S):
            raise AssertionError(f"{self.name} did not come back; last seen before {self.pending}")
        if self.ended and self._thread is not None:
            self._thread.join()


class Interleaver:
    """Runs actors one operation at a time.

    `choose` gets the pending operation of every actor that has not ended and says who goes on and how. `observe`
    is called after every step, while all actors stand still: the place for invariants.
    """

    def __init__(self, observe: Callable[[], None] | None = None) -> None:
        self.actors: dict[str, Actor] = {}
        self.observe = observe
        self.log: list[tuple[str, Act, Operation]] = []

    def add(self, name: str, work: Callable[[Files], object], files: Files | None = None) -> Actor:
        """Bring an actor onto the stage; also while the play runs. It stands before its first operation."""
        actor = Actor(name, work, files)
        self.actors[name] = actor
        actor.start()
        return actor

    def waiting(self) -> dict[str, Operation]:
        """The pending operation of every actor that has not ended, in the order they were added."""
        return {name: actor.pending for name, actor in self.actors.items() if not actor.ended and actor.pending}

    def step(self, name: str, act: Act = Act.GRANT) -> Operation:
        """One operation of one actor."""
        actor = self.actors[name]
        operation = actor.pending
        if operation is None:
            raise AssertionError(f"{name} has ended")
        self.log.append((name, act, operation))
        actor.resume(act)
        if self.observe:
            self.observe()
        return operation

    def run(self, choose: Callable[[Mapping[str, Operation]], Choice | None], *, limit: int = 100_000) -> None:
        """Step until every actor has ended or `choose` returns None. Raises what ended an actor, if anything did."""
        try:
            for _ in range(limit):
                waiting = self.waiting()
                if not waiting:
                    break
                choice = choose(waiting)
                if choice is None:
                    return
                self.step(*choice)
            else:
                raise AssertionError(f"no end after {limit} steps; waiting: {self.waiting()}")
        except BaseException:
            self.kill_all()
            raise
        self.raise_errors()

    def raise_errors(self) -> None:
        """Raise the first error that ended an actor."""
        for actor in self.actors.values():
            if actor.error is not None:
                raise actor.error

    def kill_all(self) -> None:
        """End every actor that is still there, without letting it do anything more."""
        for actor in self.actors.values():
            if not actor.ended:
                actor.resume(Act.KILL)


def in_turns(waiting: Mapping[str, Operation]) -> Choice:
    """The plainest choice: the first actor runs to its end, then the next."""
    return next(iter(waiting)), Act.GRANT


@dataclass(slots=True)
class Plan:
    """A choice from data: who runs for how many steps, who dies before which step, whose replies are lost.

    What the plan does not say is done by the actors in turn, `slice_steps` each, so every run ends.
    """

    segments: list[tuple[int, int]]  # (actor, steps); the actor is counted among those still there
    acts: dict[tuple[str, int], Act] = field(default_factory=dict)  # (actor, its step number)
    slice_steps: int = 25
    _position: int = 0
    _used: int = 0
    _turn: int = 0

    def __call__(self, waiting: Mapping[str, Operation], steps: Mapping[str, int]) -> Choice:
        """Who goes next; `steps` says how many operations each actor has done."""
        names = list(waiting)
        if self._position < len(self.segments):
            actor, length = self.segments[self._position]
        else:
            actor, length = self._turn, self.slice_steps
        name = names[actor % len(names)]
        self._used += 1
        if self._used >= length:
            self._used = 0
            if self._position < len(self.segments):
                self._position += 1
            else:
                self._turn += 1
        return name, self.acts.get((name, steps[name]), Act.GRANT)
