"""Waiting on a fact with a deadline: a test that gives up says what it saw last."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LOOK_EVERY_S = 0.02


def wait_for(
    fact: Callable[[], T | None],
    what: str,
    deadline_s: float = 30.0,
    seen: Callable[[], object] | None = None,
    every_s: float = _LOOK_EVERY_S,
) -> T:
    """The first true answer of `fact`. `seen` is asked for the message when the time is over."""
    until_s = time.monotonic() + deadline_s
    while True:
        answer = fact()
        if answer:
            return answer
        if time.monotonic() > until_s:
            last = seen() if seen is not None else answer
            raise AssertionError(f"after {deadline_s:g} s still not: {what}; last seen: {last!r}")
        time.sleep(every_s)
