"""The claims of one worker: what is still to start, what waits for its backoff, what runs, what is done.

How much is kept follows the measured time of a task: about five seconds of work per claim, one task when
tasks are long. What is not kept goes back at once, so that no worker sits on what another could run.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from fleetcraft.core.names import Token
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.resources import Request
from fleetcraft.spool.claims import Piece
from fleetcraft.spool.ledger import Batch
from fleetcraft.workers.verdict import Tally

CLAIM_WORK_S = 5.0
MAX_PIECES = 256
MIN_PIECE_TASKS = 1024
_LINES_AHEAD = 1024


@dataclass(slots=True)
class Claim:
    """One token of ours, with everything under it accounted for."""

    token: Token
    batch: Batch
    request: Request
    fresh: RangeSet
    later: list[tuple[float, int, int]] = field(default_factory=list)  # due_s, position, attempt
    running: dict[int, int] = field(default_factory=dict)  # position: attempt
    attempts: dict[int, int] = field(default_factory=dict)  # next attempt, where it is not the token's
    tallies: dict[int, Tally] = field(default_factory=dict)
    careful: set[int] = field(default_factory=set)  # lost before: started by themselves, their start synced first
    alone: set[int] = field(default_factory=set)  # must run with nothing else on the worker
    parked: bool = False  # cannot start here now; its tasks go back at the next chance
    _lines: list[bytes] = field(default_factory=list)
    _lines_from: int = 0

    @property
    def done(self) -> bool:
        """True when no task under it is left to this worker."""
        return not self.fresh and not self.later and not self.running

    def attempt_of(self, position: int) -> int:
        """The number of the next attempt of a task."""
        return self.attempts.get(position, self.token.attempt)

    def line(self, position: int) -> bytes:
        """The raw ledger line of a task; read ahead in blocks."""
        offset = position - self._lines_from
        if not 0 <= offset < len(self._lines):
            stop = min(self.token.stop, position + _LINES_AHEAD)
            self._lines = self.batch.lines(position, stop)
            self._lines_from, offset = position, 0
        return self._lines[offset]

    def next_fresh(self) -> int | None:
        """The lowest position not started yet."""
        for start, _ in self.fresh:
            return start
        return None

    def next_due(self, now_s: float) -> tuple[int, int] | None:
        """(position, attempt) whose backoff is over."""
        if self.later and self.later[0][0] <= now_s:
            return self.later[0][1:]
        return None

    def begin(self, position: int, attempt: int) -> None:
        """Move a task from fresh or later to running."""
        if self.later and self.later[0][1] == position:
            heapq.heappop(self.later)
        else:
            self.fresh.remove(position, position + 1)
        self.running[position] = attempt

    def begin_range(self, start: int, stop: int, attempt: int) -> None:
        """The same for a stretch of short calls."""
        self.fresh.remove(start, stop)
        for position in range(start, stop):
            self.running[position] = attempt

    def end(self, position: int) -> None:
        """A task ended for good."""
        del self.running[position]

    def put_back(self, position: int, attempt: int, due_s: float | None, tally: Tally) -> None:
        """A task runs again here: at once, or when its backoff is over."""
        self.running.pop(position, None)
        self.tallies[position] = tally
        self.attempts[position] = attempt
        if due_s is None:
            self.fresh.add(position, position + 1)
        else:
            heapq.heappush(self.later, (due_s, position, attempt))

    def unstarted(self) -> int:
        """How many tasks are free to start or to give away."""
        return len(self.fresh)

    def leaving(self) -> list[Piece]:
        """Everything that is not running, as pieces for a split; neighbours with equal attempts in one piece."""
        numbers = {position: attempt for _, position, attempt in self.later}
        pieces: list[Piece] = []
        for start, stop in self.fresh:
            # A whole stretch shares the token's attempt unless single tasks differ.
            special = sorted(position for position in self.attempts if start <= position < stop)
            low = start
            for position in special:
                if low < position:
                    pieces.append(Piece(low, position, self.token.attempt))
                pieces.append(Piece(position, position + 1, self.attempts[position]))
                low = position + 1
            if low < stop:
                pieces.append(Piece(low, stop, self.token.attempt))
        pieces.extend(Piece(position, position + 1, attempt) for position, attempt in numbers.items())
        return merge_pieces(pieces)


def merge_pieces(pieces: list[Piece]) -> list[Piece]:
    """Join neighbours that may share a token."""
    merged: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: piece.start):
        last = merged[-1] if merged else None
        if last is not None and (last.stop, last.attempt, last.held) == (piece.start, piece.attempt, piece.held):
            merged[-1] = Piece(last.start, piece.stop, piece.attempt, piece.held)
        else:
            merged.append(piece)
    return merged


@dataclass(slots=True)
class Pace:
    """Measured time of a task by lane, as an exponential mean; None until one has ended."""

    means_s: dict[str, float] = field(default_factory=dict)

    def observe(self, lane: str, wall_s: float, weight: float = 0.1) -> None:
        """Take one measured attempt."""
        mean = self.means_s.get(lane)
        self.means_s[lane] = wall_s if mean is None else mean + weight * (wall_s - mean)

    def tasks_worth(self, lane: str, seconds: float, slots: int) -> int:
        """How many tasks fill that long on so many slots; at least one per slot, unknown lanes exactly that."""
        mean = self.means_s.get(lane)
        if mean is None:
            return slots
        return max(slots, math.ceil(seconds * slots / max(mean, 1e-5)))


def shed(claim: Claim, keep: int) -> tuple[tuple[int, int], list[Piece]] | None:
    """What to keep and what to let go so that `keep` unstarted tasks stay; None when nothing can go.

    Only a tail of untouched tasks can leave: the part kept must be one range.
    """
    ranges = list(claim.fresh)
    if not ranges or ranges[-1][1] != claim.token.stop:
        return None
    start, stop = ranges[-1]
    kept_before = len(claim.fresh) - (stop - start)
    cut = start + max(0, keep - kept_before)
    if any(position >= start for position in claim.attempts):
        cut = max(cut, 1 + max(position for position in claim.attempts))
    if cut <= claim.token.start:
        cut = claim.token.start + 1
    if cut >= stop:
        return None
    return (claim.token.start, cut), spread(cut, stop, claim.token)


def spread(start: int, stop: int, token: Token) -> list[Piece]:
    """Pieces for what leaves: many for a large batch, so that many workers find a token each."""
    count = stop - start
    pieces = max(1, min(MAX_PIECES, count // MIN_PIECE_TASKS))
    bounds = [start + count * part // pieces for part in range(pieces + 1)]
    return [Piece(low, high, token.attempt) for low, high in pairwise(bounds)]


class Book:
    """All claims of the worker."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []

    def __iter__(self) -> Iterator[Claim]:
        return iter(self.claims)

    def __len__(self) -> int:
        return len(self.claims)

    def find(self, name: str) -> Claim | None:
        """The claim with that token name."""
        return next((claim for claim in self.claims if claim.token.name == name), None)

    def unstarted(self, lane: str | None = None) -> int:
        """How many tasks are free to start, of one lane or of all."""
        return sum(claim.unstarted() for claim in self.claims if lane is None or claim.token.lane == lane)

    def running(self) -> int:
        """How many tasks run."""
        return sum(len(claim.running) for claim in self.claims)

    def next_due_s(self) -> float | None:
        """When the next backoff ends."""
        return min((claim.later[0][0] for claim in self.claims if claim.later), default=None)

    def by_priority(self) -> list[Claim]:
        """Claims in the order in which their tasks are started."""
        if len(self.claims) < 2:
            return self.claims
        return sorted(self.claims, key=lambda claim: -claim.token.priority)
