"""Claim, split, give back, release: how a life takes tasks and lets go of them, each in a fixed order.

Coverage is the invariant: every unfinished task of a published batch is covered by a waiting token, a claim,
a fenced token or a live draft, at every moment and after a crash at any point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleetcraft.core.errors import LifeEnded, OutOfReach
from fleetcraft.core.names import CLAIM, DRAFT, WAITING, Token
from fleetcraft.core.ranges import RangeSet
from fleetcraft.spool.ledger import Batch
from fleetcraft.spool.life import Life
from fleetcraft.spool.maintenance import settle_folded
from fleetcraft.spool.tokens import Moved, draft, move
from fleetcraft.store.files import GONE, UNKNOWN
from fleetcraft.store.journal import JournalEnded

_LEDGER_LOOKS = 5


class CoverUnknown(OutOfReach):
    """Whether a claim was changed is not known: its life must end without touching its claims, for a reaper to tell."""

    code = "cover_unknown"


@dataclass(frozen=True, slots=True)
class Piece:
    """Tasks on their way out of a claim."""

    start: int
    stop: int
    attempt: int
    held: bool = False


def take(life: Life, token: Token) -> tuple[Token, Batch] | None:
    """Claim a waiting (or held) token by one rename. None when somebody else was faster, or its ledger hides.

    An invisible ledger is a stale look-up, never a failed task: the claim goes back. Raises LifeEnded (and lets
    the token go) when this life was taken for dead meanwhile, OSError when the storage failed.
    """
    layout, files = life.spool.layout, life.files
    if life.spool.is_folded(token.batch):
        settle_folded(life.spool, [token])  # a retry shows in the next listing under its new place
        return None
    mine = token.owned(CLAIM, life.id)
    if move(files, layout.token(token.name), layout.token(mine.name)) is not Moved.YES:
        return None
    held = token.form != WAITING
    try:
        # A pause between the listing and the rename may have outlasted this life: then nobody looks after its names.
        life.check_live()
    except LifeEnded:
        return_whole(life, mine, held=held)
        raise
    files.sync_folder(layout.tokens)
    for _ in range(_LEDGER_LOOKS):
        batch = life.spool.batch(mine.batch)
        if batch is not None:
            return mine, batch
    return_whole(life, mine, held=held)
    return None


def return_whole(life: Life, claim: Token, *, held: bool = False) -> None:
    """Give a claim back of which nothing was started: one rename, same attempt number."""
    layout, files = life.spool.layout, life.files
    target = claim.held() if held else claim.waiting()
    move(files, layout.token(claim.name), layout.token(target.name))


def split(life: Life, claim: Token, keep: tuple[int, int] | None, pieces: Sequence[Piece]) -> Token | None:
    """Let pieces of a claim go and keep the rest (or nothing).

    Drafts first, last piece first; the commit is the rename of the claim to the part kept, or its unlink; then the
    drafts become waiting. The journal is made durable before a task loses its cover. Raises OSError with the claim
    whole when that could not be done, JournalEnded likewise, LifeEnded when the claim turned out not to be ours any
    more, and CoverUnknown when the storage did not say whether it was done: then the life must end, for only its
    reaper can tell.
    """
    layout, files = life.spool.layout, life.files
    drafts: list[tuple[Token, Token]] = []
    try:
        for piece in sorted(pieces, key=lambda piece: -piece.start):
            part = claim.part(piece.start, piece.stop, piece.attempt)
            drafts.append((part.owned(DRAFT, life.id), part.held() if piece.held else part.waiting()))
            draft(files, layout.token(drafts[-1][0].name))
        if drafts:
            files.sync_folder(layout.tokens)
        if keep is None or not _covers_all(claim, keep, pieces):
            life.journal.sync()
    except (OSError, JournalEnded):
        _drop(life, [mine for mine, _ in drafts])
        raise
    kept = _commit(life, claim, keep, [mine for mine, _ in drafts])
    for mine, target in drafts:
        move(files, layout.token(mine.name), layout.token(target.name))
    return kept


def _covers_all(claim: Token, keep: tuple[int, int], pieces: Sequence[Piece]) -> bool:
    covered = RangeSet([keep, *((piece.start, piece.stop) for piece in pieces)])
    return not list(covered.missing(claim.start, claim.stop))


def _commit(life: Life, claim: Token, keep: tuple[int, int] | None, drafts: Sequence[Token]) -> Token | None:
    layout, files = life.spool.layout, life.files
    if keep is None:
        _let_go(life, claim, drafts)
        return None
    kept = claim.part(*keep)
    if kept.name == claim.name:
        return kept
    try:
        moved = move(files, layout.token(claim.name), layout.token(kept.name))
    except OSError:
        _drop(life, drafts)  # full or denied: it was not done
        raise
    if moved is Moved.YES:
        return kept
    _still_live(life, drafts)
    # The drafts stay: if the rename was done after all, they are the only cover of their tasks.
    raise CoverUnknown(
        f"The storage did not say whether {claim.name} became {kept.name}.", hint="The worker ends and is reaped."
    )


def _let_go(life: Life, claim: Token, drafts: Sequence[Token] = ()) -> None:
    """Unlink a claim; a second try settles a lost reply."""
    path = life.spool.layout.token(claim.name)
    for last in (False, False, True):
        try:
            life.files.unlink(path)
            return
        except OSError as error:
            if error.errno in GONE:
                _still_live(life, drafts)  # nobody else removes a claim of a live life: an earlier reply was lost
                return
            if error.errno not in UNKNOWN:
                _drop(life, drafts)
                raise
            if last:
                raise CoverUnknown(
                    f"The storage did not say whether {claim.name} was removed.", hint="The worker ends and is reaped."
                ) from error


def _still_live(life: Life, drafts: Sequence[Token]) -> None:
    try:
        life.check_live()
    except LifeEnded:
        _drop(life, drafts)
        raise


def _drop(life: Life, drafts: Sequence[Token]) -> None:
    for mine in drafts:
        try:
            life.files.unlink(life.spool.layout.token(mine.name))
        except OSError:
            continue  # void beside the whole claim: a reaper or the next check removes it


def release(life: Life, claim: Token) -> None:
    """Let go of a claim whose tasks have all ended: the journal is made durable first.

    Raises JournalEnded when that fails (the claim stays), LifeEnded when the claim is gone: we were reaped;
    CoverUnknown when the storage did not say.
    """
    life.journal.sync()
    _let_go(life, claim)
