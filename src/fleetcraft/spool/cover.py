"""Which tasks under a token still need to run: the one place that joins token coordinates with the fold."""

from __future__ import annotations

from fleetcraft.core.names import Token
from fleetcraft.core.outcome import Fold
from fleetcraft.core.ranges import RangeSet
from fleetcraft.spool.ledger import Batch
from fleetcraft.spool.spool import Spool


def remaining(spool: Spool, batch: Batch, token: Token, fold: Fold) -> RangeSet:
    """Positions under `token` that have not ended and have no newer generation.

    Empty when the whole batch was folded into a later one that offers its tasks itself; a retry offers its own.
    """
    if spool.is_folded(batch.number) and not token.gen:
        return RangeSet()
    left = RangeSet([(token.start, token.stop)])
    for number, first, last, position in batch.origins(token.start, token.stop):
        shift = position - first
        if token.gen == 0 and number in fold.ok:
            for low, high in fold.ok[number].within(first, last):
                left.remove(low + shift, high + shift)
        for owner, index in list(fold.irregular_within(number, first, last)):
            verdict = fold.verdict(owner, index)
            ended = verdict.gen > token.gen or (verdict.gen == token.gen and verdict.state is not None)
            if ended:
                left.remove(index + shift, index + shift + 1)
            elif token.gen == 0:
                # Known as a plain success above, but the verdict says otherwise only for a newer generation.
                left.add(index + shift, index + shift + 1)
    return left


def highest_attempt(batch: Batch, token: Token, fold: Fold) -> int:
    """The highest attempt number of any task under `token` in its generation, as far as records tell."""
    highest = token.attempt
    for number, first, last, _ in batch.origins(token.start, token.stop):
        for (_, opened, gen, attempt, _), ranges in fold.open.items():
            if opened == number and gen == token.gen and attempt > highest and any(ranges.within(first, last)):
                highest = attempt
        for owner, index in fold.irregular_within(number, first, last):
            verdict = fold.verdict(owner, index)
            if verdict.gen == token.gen:
                highest = max(highest, verdict.attempt)
    return highest
