"""A person's retry: a new generation of tasks that ended, opened exactly once whoever else asks for it.

The order of steps (docs/explanation/protocol.md, A person's requests): drafts of the new generation; the commit,
an exclusive link of the next retry number of the batch; the drafts renamed. Two retries of one task meet at that
number: the loser reads what the winner opened and looks again. A crash before the commit leaves drafts that mean
nothing; after it, anyone may do the renames.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fleetcraft.core.errors import FleetcraftError, OutOfReach
from fleetcraft.core.names import DRAFT, Token
from fleetcraft.core.outcome import Fold
from fleetcraft.core.ranges import RangeSet
from fleetcraft.spool.held import Due, Upstream, judge_token
from fleetcraft.spool.layout import retry_number
from fleetcraft.spool.ledger import Batch
from fleetcraft.spool.publish import offer_draft
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.requests import RETRY, commit
from fleetcraft.spool.spool import Place, Spool
from fleetcraft.spool.tokens import draft
from fleetcraft.store.files import GONE, explain

# Each round is lost to another retry of the same batch, or to a listing that is older than one.
_ROUNDS = 20

# Generations to open, with the tasks of each, in positions of the batch that first published them.
Wanted = Mapping[int, RangeSet]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A committed retry."""

    request: str  # the name of the request file
    tasks: RangeSet


def open_generation(spool: Spool, reader: SpoolFold, batch: int, choose: Callable[[Fold], Wanted]) -> Opened | None:
    """Open a new generation of those tasks of a batch that `choose` names; None when it names none.

    `choose` is asked anew after every lost round, with a fold that knows the other retry. `reader` must be a
    durable one: a task counts as ended only by records that no crash can take back. Raises StorageFull or
    OutOfReach.
    """
    try:
        for _ in range(_ROUNDS):
            # The number first, the requests after it: every retry with a smaller number is then known to `choose`.
            number = _next_number(spool, batch)
            reader.requests.refresh(force=True)
            spool.refresh()
            reader.refresh()
            _finish_others(spool, reader)
            wanted = {gen: ranges for gen, ranges in choose(reader.fold).items() if ranges}
            if not wanted:
                return None
            opened = _try(spool, reader.fold, batch, number, wanted)
            if opened is not None:
                return opened
    except OSError as error:
        raise explain(error, f"Cannot retry tasks of batch {batch} in {spool.layout.root}") from error
    raise OutOfReach(
        f"Another retry of batch {batch} came first {_ROUNDS} times.", hint="Nothing was changed; run the same again."
    )


def _next_number(spool: Spool, batch: int) -> int:
    names, _ = spool.files.names(spool.layout.requests)
    taken = [found[1] for name in names if (found := retry_number(name)) and found[0] == batch]
    return max(taken, default=0) + 1


def _finish_others(spool: Spool, reader: SpoolFold) -> None:
    """Do the last step of committed retries whose person's process died before it."""
    for token in spool.tokens().tokens:
        if token.form == DRAFT and token.life in reader.requests.owners:
            cover = spool.batch(token.batch)
            if cover is not None:
                _offer(spool, reader.fold, cover, [token])


def _try(spool: Spool, fold: Fold, batch: int, number: int, wanted: Wanted) -> Opened | None:
    """One round; None when another retry took the number."""
    place = spool.places()[batch]
    owner = f"q{os.urandom(8).hex()}"
    name = f"b{batch}.{number}.json"
    drafts: list[Token] = []
    try:
        for token in _tokens(place, wanted):
            mine = token.owned(DRAFT, owner)
            drafts.append(mine)
            draft(spool.files, spool.layout.token(mine.name))
        spool.files.sync_folder(spool.layout.tokens)
    except OSError:
        _drop(spool, drafts)
        raise
    items = [[batch, gen, [list(pair) for pair in ranges]] for gen, ranges in sorted(wanted.items())]
    try:
        commit(spool, {"kind": RETRY, "owner": owner, "items": items}, lambda _: name, number)
    except FileExistsError:
        _drop(spool, drafts)
        return None
    except FleetcraftError:
        if not _is_committed(spool, name, owner):
            _drop(spool, drafts)
            raise
    _offer(spool, fold, place.cover, drafts)
    return Opened(request=name, tasks=RangeSet(pair for ranges in wanted.values() for pair in ranges))


def _tokens(place: Place, wanted: Wanted) -> Iterable[Token]:
    """One token for each contiguous range, in the coordinates of the ledger where the tasks stand now."""
    cover = place.cover
    for gen, ranges in sorted(wanted.items()):
        for start, stop in ranges:
            yield Token(
                lane=cover.lane, priority=cover.priority, batch=cover.number,
                start=place.offset + start, stop=place.offset + stop, gen=gen,
            )  # fmt: skip


def _is_committed(spool: Spool, name: str, owner: str) -> bool:
    """Whether our request is there although its commit ended in an error. Raises OSError when that is unknown."""
    try:
        body = json.loads(spool.files.read(os.path.join(spool.layout.requests, name)))
    except OSError as error:
        if error.errno in GONE:
            return False
        raise
    except ValueError:
        return False
    return isinstance(body, dict) and body.get("owner") == owner


def _drop(spool: Spool, drafts: Iterable[Token]) -> None:
    for mine in drafts:
        try:
            spool.files.unlink(spool.layout.token(mine.name))
        except OSError:
            continue  # of a retry that never was: it means nothing, and check removes it


def _offer(spool: Spool, fold: Fold, cover: Batch, drafts: Iterable[Token]) -> None:
    """Last step. Tasks of a held batch that were cancelled before they were due must wait on."""
    upstream = Upstream(spool)
    for mine in drafts:
        held = False
        if cover.held:
            due = judge_token(upstream, cover, mine, fold)[Due.DUE]
            held = len(due) < mine.count
        try:
            offer_draft(spool, mine, held=held)
        except OSError as error:
            if error.errno not in GONE:
                raise
