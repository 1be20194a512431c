"""What folding, compaction and check share: doing it alone, and finishing or closing what others left half done.

A life holds a maintenance permit while it works, so two of them never change the same files at once. The permit
comes back when the holder gives it back or is reaped; closing its unfinished ledgers goes before that.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace

from fleetcraft.core.names import DRAFT, Token
from fleetcraft.spool.layout import Layout
from fleetcraft.spool.life import JOURNAL, Life
from fleetcraft.spool.permits import list_permits
from fleetcraft.spool.publish import offer_draft
from fleetcraft.spool.spool import Spool
from fleetcraft.spool.tokens import Moved, move
from fleetcraft.store.files import GONE

# A person's resource names may not collide with these by accident: hence the underscore.
FOLDING, COMPACTION, CHECKING = "_folding", "_compaction", "_checking"

_FOLD_PUBLICATION = re.compile(r"f[0-9a-f]{6}-(?P<life>[a-z0-9][a-z0-9-]{0,56})")
_ASIDE = re.compile(r"\.(?P<publication>[a-z0-9-]{1,64})\.jsonl")


def _base(layout: Layout, permit: str) -> str:
    return os.path.join(layout.uses, f"{permit}.1")


def take_permit(life: Life, permit: str) -> bool:
    """Become the only life that does this work. False when another one has the permit. Raises OSError."""
    files, layout = life.files, life.spool.layout
    base = _base(layout, permit)
    mine = f"{base}@{life.id}"
    if move(files, base, mine) is Moved.YES:
        return True
    # Absence in a listing proves nothing. What was born says the birth file, and that is never removed.
    return _bring_into_being(life, permit) and move(files, base, mine) is Moved.YES


def _bring_into_being(life: Life, permit: str) -> bool:
    """Make a permit once and for ever; True when it became free just now.

    Every life brings a seed with a name of its own. The one whose seed got the birth file's name by link has made
    the permit, and anybody may turn that one seed into the permit, also when its life is gone.
    """
    files, layout = life.files, life.spool.layout
    birth = os.path.join(layout.uses, f".born{permit}")
    if files.identity(birth) is None:
        seed = os.path.join(layout.uses, f".seed{permit}-{life.id}")
        files.create(seed)
        mine = files.identity(seed)
        try:
            files.link(seed, birth)
        except OSError:
            if files.identity(birth) != mine:
                remove(life.spool, seed)
        files.sync_folder(layout.uses)
    born = files.identity(birth)
    for name in files.names(layout.uses)[0]:
        seed = os.path.join(layout.uses, name)
        if name.startswith(f".seed{permit}-") and born is not None and files.identity(seed) == born:
            return move(files, seed, _base(layout, permit)) is Moved.YES
    return False


def return_permit(life: Life, permit: str) -> None:
    """Give the permit back; when that fails, the reaper or the next check does it."""
    base = _base(life.spool.layout, permit)
    try:
        move(life.files, f"{base}@{life.id}", base)
    except OSError:
        return


def permit_holder(spool: Spool, permit: str) -> str | None:
    """The life that has the permit now, as one listing shows it. Raises OSError."""
    for name, _, owner in list_permits(spool):
        if name == permit and owner:
            return owner
    return None


def fold_publication(life: str) -> str:
    """An id for one folding publication of a life; the life can be read back from it."""
    return f"f{secrets.token_hex(3)}-{life}"


def folding_life(publication: str) -> str | None:
    """The life behind a folding publication, or None for a person's publication."""
    match = _FOLD_PUBLICATION.fullmatch(publication)
    return match["life"] if match else None


def aside_publication(name: str) -> str | None:
    """The publication behind the name of a ledger that is not committed, or None for any other name."""
    match = _ASIDE.fullmatch(name)
    return match["publication"] if match else None


def close_folds(spool: Spool, life: str) -> int:
    """Take away the uncommitted ledgers of a life that is being reaped, so that none is committed later.

    The reaper calls this after `.live` became `.reaping` and before `.fenced`. The commit of a ledger is a link of
    exactly this name, made after the life saw itself live: it has either happened before, and every later look
    shows it, or it never will. Raises OSError.
    """
    closed = 0
    for name in _all_names(spool):
        publication = aside_publication(name)
        if publication is not None and folding_life(publication) == life:
            remove(spool, os.path.join(spool.layout.batches, name))
            closed += 1
    return closed


def _all_names(spool: Spool) -> list[str]:
    return spool.files.names(spool.layout.batches)[0]


def remove(spool: Spool, path: str) -> bool:
    """Unlink; True when it was there. Raises OSError for anything but absence."""
    try:
        spool.files.unlink(path)
    except OSError as error:
        if error.errno not in GONE:
            raise
        return False
    return True


def remove_life(spool: Spool, folder: str) -> bool:
    """Remove a life's folder: output first, then the journal, the state last. False when it is not empty then."""
    names = spool.files.names(folder)[0]
    order = sorted(names, key=lambda name: (name.startswith("state."), name == JOURNAL))
    for name in order:
        remove(spool, os.path.join(folder, name))
    try:
        spool.files.remove_folder(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        if error.errno not in GONE:
            raise
    return True


def committed_drafts(spool: Spool, tokens: Iterable[Token], owners: Mapping[str, int]) -> list[tuple[Token, bool]]:
    """Drafts whose publication or retry is committed, and whether each becomes held.

    `owners` are the committed retries of the request log. The spool must have been refreshed after `tokens`
    was listed.
    """
    found: list[tuple[Token, bool]] = []
    for token in tokens:
        if token.form != DRAFT:
            continue
        batch = spool.batch(token.batch)
        if token.life in owners:
            # Of a held batch it is held again: whoever looks at held tokens sees whether it is due.
            found.append((token, batch is not None and batch.held))
        elif batch is not None and batch.publication == token.life and not spool.is_folded(token.batch):
            # A folded number was used before: such a publication undoes itself and takes another one.
            found.append((token, batch.held))
    return found


def finish_drafts(spool: Spool, tokens: Iterable[Token], owners: Mapping[str, int]) -> int:
    """Do the last step for publications and retries that were committed and whose owner died. Raises OSError.

    Cheap when no token is a draft. Doing it for an owner that is still alive does no harm: renames are idempotent.
    """
    found = committed_drafts(spool, tokens, owners)
    for token, held in found:
        offer_draft(spool, token, held=held)
    return len(found)


def moved_into_fold(spool: Spool, token: Token) -> Token | None:
    """The same tasks in the coordinates of the batch that folds them, or None when that is not known."""
    place = spool.places().get(token.batch)
    if place is None or place.cover.number == token.batch:
        return None
    return replace(token, batch=place.cover.number, start=place.offset + token.start, stop=place.offset + token.stop)


def settle_folded(spool: Spool, tokens: Iterable[Token]) -> tuple[int, int]:
    """Waiting and held tokens of folded batches: old covers go, a person's retries move along.

    A retry may have been offered while its batch was being folded; generation 0 is covered by the fold itself.
    Returns how many moved and how many were removed. Raises OSError.
    """
    moved = removed = 0
    for token in tokens:
        if token.life or not spool.is_folded(token.batch):
            continue
        if token.gen == 0:
            removed += remove(spool, spool.layout.token(token.name))
            continue
        target = moved_into_fold(spool, token)
        if target is not None:
            source = spool.layout.token(token.name)
            moved += move(spool.files, source, spool.layout.token(target.name)) is Moved.YES
    return moved, removed
