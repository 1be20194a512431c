"""The seam to a host: run a command there and get everything back that it said.

A command that could not be run or did not end in time is a value, not an exception: whoever asked a scheduler
must be able to tell "no" from "no answer", and an exception is too easily turned into either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a command finds in its environment: the host's own, less what would reshape its answer, plus `add`."""

    drop_prefixes: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()  # names that stay although a prefix would drop them
    add: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one command. `code` is None when there was no answer; `problem` then says why."""

    argv: tuple[str, ...]
    code: int | None
    out: str
    err: str
    took_s: float
    problem: str = ""  # empty, or: timed out, not found, out of reach ... in words for a person

    @property
    def answered(self) -> bool:
        """True when the command ran to its end, whatever its exit code."""
        return self.code is not None


class Transport(Protocol):
    """Runs commands on one host."""

    @property
    def name(self) -> str:
        """`local`, or the alias of the host."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        surroundings: Surroundings = Surroundings(),
        cwd: str | None = None,
    ) -> Answer:
        """Run one command to its end and return what it said; never raises for what happens over there.

        After `timeout_s` the command and its children are ended and the answer has no code. Output that is not UTF-8 is
        decoded with replacement characters.
        """
        ...
