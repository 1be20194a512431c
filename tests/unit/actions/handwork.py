"""What workers do, by hand: claim, run with a chosen end, record, release. No process is started."""

from __future__ import annotations

from collections.abc import Callable

from fleetcraft.core.names import CLAIM, Token
from fleetcraft.spool.claims import release, take
from fleetcraft.spool.cover import remaining
from fleetcraft.spool.life import Life
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool

# The outcome and the final state of an attempt, for (batch, index).
Ending = Callable[[int, int], tuple[str, str]]


def fail(_batch: int, _index: int) -> tuple[str, str]:
    return "failed", "failed"


def succeed(_batch: int, _index: int) -> tuple[str, str]:
    return "succeeded", "succeeded"


def claim_all(life: Life) -> list[Token]:
    """Every waiting token, claimed."""
    life.spool.refresh()
    taken = [take(life, token) for token in life.spool.tokens().tokens if not token.form]
    return [found[0] for found in taken if found is not None]


def work(spool: Spool, life: Life, ending: Ending = fail) -> int:
    """Run everything that waits; cancelled generations get the receipt that says so. Returns how many ran."""
    reader = SpoolFold(spool)
    ran = 0
    for claim in claim_all(life):
        reader.requests.refresh(force=True)
        reader.refresh()
        ran += _run(spool, life, reader, claim, ending)
        release(life, claim)
    return ran


def _run(spool: Spool, life: Life, reader: SpoolFold, claim: Token, ending: Ending) -> int:
    batch = spool.batch(claim.batch)
    assert batch is not None
    ran = 0
    for position in list(remaining(spool, batch, claim, reader.fold).numbers()):
        task = batch.origin(position)
        cancelled = reader.fold.is_cancelled(task.batch, task.index, claim.gen)
        outcome, final = ("cancelled", "cancelled") if cancelled else ending(task.batch, task.index)
        if not cancelled:
            start(life, task.batch, task.index, claim)
            ran += 1
        end(life, task.batch, task.index, claim, outcome, final)
    return ran


def start(life: Life, batch: int, index: int, claim: Token) -> None:
    life.record({"t": "started", "b": batch, "i": index, "g": claim.gen, "a": claim.attempt, "s": 0, "at": 1.0})


def end(life: Life, batch: int, index: int, claim: Token, outcome: str, final: str) -> None:
    life.record(
        {"t": "receipt", "b": batch, "i": index, "g": claim.gen, "a": claim.attempt, "s": 0, "o": outcome,
         "final": final, "at": 1.0, "end": 2.0, "wall": 1.0, "cpu": 0.1, "rss_kib": 1, "log": [0, 0, 0]}
    )  # fmt: skip
    life.journal.sync()


def claims(spool: Spool) -> list[Token]:
    return [token for token in spool.tokens().tokens if token.form == CLAIM]
