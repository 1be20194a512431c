"""Ids and the strict grammar of token names; a name that does not parse is foreign and never opened.

The name of a token is its whole content (it is a file of zero bytes), so this codec is exact:
`parse_token(format(t)) == t`, and every name that parses is written back byte for byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NewType

LifeId = NewType("LifeId", str)

MAX_NAME_BYTES = 200
MAX_PRIORITY = 999
DEFAULT_PRIORITY = 500

WAITING = ""
CLAIM = "@"
DRAFT = "~"
FENCED = "!"
HELD = ".held"

_INT = r"(?:0|[1-9][0-9]{0,17})"
_TOKEN = re.compile(
    rf"(?P<lane>[a-z0-9-]{{1,60}})\.(?P<prio>[0-9]{{3}})\.(?P<batch>{_INT})\.(?P<start>{_INT})-(?P<stop>{_INT})"
    rf"\.g(?P<gen>{_INT})\.a(?P<attempt>{_INT})(?:(?P<held>\.held)|(?P<form>[@~!])(?P<life>[a-z0-9-]{{1,64}}))?"
)
_LIFE = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Tasks `start` to `stop` (exclusive) of one batch, and in which form they are on offer.

    `form` is one of WAITING, HELD, CLAIM, DRAFT, FENCED; `life` is the owner for the last three.
    """

    lane: str
    priority: int
    batch: int
    start: int
    stop: int
    gen: int = 0
    attempt: int = 1
    form: str = WAITING
    life: str = ""

    @property
    def count(self) -> int:
        """How many tasks the token covers."""
        return self.stop - self.start

    @property
    def name(self) -> str:
        """The file name."""
        base = f"{self.lane}.{self.priority:03d}.{self.batch}.{self.start}-{self.stop}.g{self.gen}.a{self.attempt}"
        if self.form in (WAITING, HELD):
            return base + self.form
        return f"{base}{self.form}{self.life}"

    def waiting(self) -> Token:
        """The same tasks, free to be claimed."""
        return replace(self, form=WAITING, life="")

    def held(self) -> Token:
        """The same tasks, not due yet."""
        return replace(self, form=HELD, life="")

    def owned(self, form: str, life: str) -> Token:
        """The same tasks as a claim, draft or fenced token of `life`."""
        return replace(self, form=form, life=life)

    def part(self, start: int, stop: int, attempt: int | None = None) -> Token:
        """A piece of the same batch in the same form."""
        return replace(self, start=start, stop=stop, attempt=self.attempt if attempt is None else attempt)

    def covers(self, other: Token) -> bool:
        """True when every task of `other` is one of ours, in the same batch and generation."""
        return (
            self.batch == other.batch
            and self.gen == other.gen
            and self.start <= other.start
            and other.stop <= self.stop
        )


def parse_token(name: str) -> Token | None:
    """The token that a file name stands for, or None when the name is foreign."""
    match = _TOKEN.fullmatch(name)
    if match is None or len(name) > MAX_NAME_BYTES or not name.isascii():
        return None
    start, stop = int(match["start"]), int(match["stop"])
    if stop <= start:
        return None
    form = match["form"] or (HELD if match["held"] else WAITING)
    return Token(
        lane=match["lane"],
        priority=int(match["prio"]),
        batch=int(match["batch"]),
        start=start,
        stop=stop,
        gen=int(match["gen"]),
        attempt=int(match["attempt"]),
        form=form,
        life=match["life"] or "",
    )


def make_life_id(host: str, pid: int, nonce: str) -> LifeId:
    """A life id: readable host and pid, made unique by the nonce and never used again."""
    short = re.sub(r"[^a-z0-9]+", "-", host.split(".", maxsplit=1)[0].lower()).strip("-")[:24] or "host"
    return LifeId(f"{short}-{pid}-{nonce}")


def is_life_id(text: str) -> bool:
    """True when `text` may be the name of a worker folder."""
    return _LIFE.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """A task for ever: the batch that first published it and its position there.

    Folding small batches moves the line, never the id.
    """

    batch: int
    index: int

    def __str__(self) -> str:
        return f"{self.batch}.{self.index}"


def parse_task_id(text: str) -> TaskId | None:
    """The id written as `BATCH.INDEX`, or None."""
    match = re.fullmatch(rf"({_INT})\.({_INT})", text)
    return TaskId(int(match[1]), int(match[2])) if match else None
