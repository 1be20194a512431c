"""A thread that asks one device's questions, so that a call which never returns costs that device and nothing else.

There is one thread per device and never a second one: while a question is out, the next is not asked. Nothing
joins the thread, and it does not keep the process alive. A late answer is thrown away; that it came is an outage
with a beginning and an end.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleetcraft.core.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A call that came back after its deadline; UTC seconds."""

    since_utc: float
    until_utc: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a question came to. With `late` the call is still out, and neither of the others says anything."""

    value: Any = None
    error: Exception | None = None
    late: bool = False


_LATE = Answer(late=True)


class Reader:
    """Asks in a thread of its own, which is started with the first question."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._turn = threading.Lock()
        self._questions: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Answer, float]] = queue.SimpleQueue()
        self._started = False
        self._asked_utc = 0.0
        self._late = False
        self._outage: Outage | None = None

    def call(self, question: Callable[[], Any], timeout_s: float) -> Answer:
        """Ask and wait."""
        until = self._clock.mono() + timeout_s
        if not self.ask(question, timeout_s):
            return _LATE
        return self.collect(max(0.0, until - self._clock.mono()))

    def ask(self, question: Callable[[], Any], timeout_s: float) -> bool:
        """Begin a question; False when an earlier one is out. After True, `collect` must be called."""
        if not self._turn.acquire(timeout=timeout_s):
            return False
        if self.is_out():
            self._turn.release()
            return False
        if not self._started:
            threading.Thread(target=self._work, daemon=True, name=self._name).start()
            self._started = True
        self._asked_utc = self._clock.utc()
        self._questions.put(question)
        return True

    def look(self, timeout_s: float) -> Answer | None:
        """The answer to the question just begun, or None while there is none; `collect` is due then."""
        try:
            # Zero would not even look at the queue of a thread that had no chance to run yet.
            answer, _until = self._answers.get(timeout=max(timeout_s, 0.001))
        except queue.Empty:
            return None
        self._turn.release()
        return answer

    def collect(self, timeout_s: float) -> Answer:
        """The answer to the question just begun; late when it has not come within the time."""
        answer = self.look(timeout_s)
        if answer is None:
            self._late = True
            self._turn.release()
            return _LATE
        return answer

    def is_out(self) -> bool:
        """Whether a call is out past its deadline; notes the outage when it has come back."""
        if not self._late:
            return False
        try:
            _answer, until = self._answers.get_nowait()
        except queue.Empty:
            return True
        self._late = False
        self._outage = Outage(since_utc=self._asked_utc, until_utc=until)
        return False

    def out_since_utc(self) -> float | None:
        """When the call that is out was made."""
        return self._asked_utc if self.is_out() else None

    def take_outage(self) -> Outage | None:
        """The outage that ended since this was last asked."""
        outage, self._outage = self._outage, None
        return outage

    def _work(self) -> None:
        while True:
            question = self._questions.get()
            try:
                answer = Answer(value=question())
            except Exception as error:  # noqa: BLE001  whatever a driver's binding raises is an answer
                answer = Answer(error=error)
            self._answers.put((answer, self._clock.utc()))
