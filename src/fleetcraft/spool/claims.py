"""Claim, split, give back, release: how a life takes tasks and lets go of them, each in a fixed order.

Coverage is the invariant: every unfinished task of a published batch is covered by a waiting token, a claim,
a fenced token or a live draft, at every moment and after a crash at any point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleetcraft.core.errors import LifeEnded, OutOfReach
from fleetcraft.core.names import CLAIM, DRAFT, Token
from fleetcraft.spool.ledger import Batch
from fleetcraft.spool.life import Life
from fleetcraft.spool.tokens import Moved, move
from fleetcraft.store.files import GONE

_LEDGER_LOOKS = 5


@dataclass(frozen=True, slots=True)
class Piece:
    """Tasks on their way out of a claim."""

    start: int
    stop: int
    attempt: int
    held: bool = False


def take(life: Life, token: Token) -> tuple[Token, Batch] | None:
    """Claim a waiting (or held) token by one rename. None when somebody else was faster, or its ledger hides.

    An invisible ledger is a stale look-up, never a failed task: the claim goes back.
    """
    layout, files = life.spool.layout, life.files
    mine = token.owned(CLAIM, life.id)
    if move(files, layout.token(token.name), layout.token(mine.name)) is not Moved.YES:
        return None
    files.sync_folder(layout.tokens)
    for _ in range(_LEDGER_LOOKS):
        batch = life.spool.batch(mine.batch)
        if batch is not None:
            return mine, batch
    return_whole(life, mine, held=token.form != "")
    return None


def return_whole(life: Life, claim: Token, *, held: bool = False) -> None:
    """Give a claim back of which nothing was started: one rename, same attempt number."""
    layout, files = life.spool.layout, life.files
    target = claim.held() if held else claim.waiting()
    move(files, layout.token(claim.name), layout.token(target.name))


def split(life: Life, claim: Token, keep: tuple[int, int] | None, pieces: Sequence[Piece]) -> Token | None:
    """Let pieces of a claim go and keep the rest (or nothing).

    Drafts first, last piece first; the commit is the rename of the claim to the part kept (or its unlink, after
    the journal is durable); then the drafts become waiting. Raises OSError with the claim whole when a draft
    cannot be made, LifeEnded when the claim turned out not to be ours any more.
    """
    layout, files = life.spool.layout, life.files
    drafts: list[tuple[Token, Token]] = []
    try:
        for piece in sorted(pieces, key=lambda piece: -piece.start):
            part = claim.part(piece.start, piece.stop, piece.attempt)
            draft = part.owned(DRAFT, life.id)
            files.create(layout.token(draft.name))
            drafts.append((draft, part.held() if piece.held else part.waiting()))
        if drafts:
            files.sync_folder(layout.tokens)
        if keep is None:
            life.journal.sync()
    except OSError:
        _drop(life, [draft for draft, _ in drafts])
        raise
    kept = _commit(life, claim, keep, [draft for draft, _ in drafts])
    for draft, target in drafts:
        move(files, layout.token(draft.name), layout.token(target.name))
    return kept


def _commit(life: Life, claim: Token, keep: tuple[int, int] | None, drafts: Sequence[Token]) -> Token | None:
    layout, files = life.spool.layout, life.files
    if keep is None:
        try:
            files.unlink(layout.token(claim.name))
        except OSError as error:
            if error.errno not in GONE:
                raise
            _still_live(life, drafts)  # nobody else removes a claim of a live life: the first reply was lost
        return None
    kept = claim.part(*keep)
    if kept.name == claim.name:
        return kept
    if move(files, layout.token(claim.name), layout.token(kept.name)) is Moved.YES:
        return kept
    _still_live(life, drafts)
    # Still there and not moved: the storage did not answer. Keep the claim whole.
    _drop(life, drafts)
    raise OutOfReach(f"Cannot split {claim.name}: the storage did not answer.", hint="The worker tries again.")


def _still_live(life: Life, drafts: Sequence[Token]) -> None:
    try:
        life.check_live()
    except LifeEnded:
        _drop(life, drafts)
        raise


def _drop(life: Life, drafts: Sequence[Token]) -> None:
    for draft in drafts:
        try:
            life.files.unlink(life.spool.layout.token(draft.name))
        except OSError:
            continue  # void beside the whole claim: a reaper or the next check removes it


def release(life: Life, claim: Token) -> None:
    """Let go of a claim whose tasks have all ended: the journal is made durable first.

    Raises JournalEnded when that fails (the claim stays), LifeEnded when the claim is gone: we were reaped.
    """
    life.journal.sync()
    try:
        life.files.unlink(life.spool.layout.token(claim.name))
    except OSError as error:
        if error.errno not in GONE:
            raise
        _still_live(life, ())  # nobody else removes a claim of a live life: the first reply was lost
