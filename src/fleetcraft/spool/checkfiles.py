"""The part of check that looks at files one by one: ledgers, indexes, journals, requests, and what is left over.

Everything here reads; the repairs it offers rebuild shortcuts from the ledger or remove what provably means nothing.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.names import is_life_id
from fleetcraft.spool.evidence import Liveness, ReapPolicy, Watch, judge
from fleetcraft.spool.host import Identity
from fleetcraft.spool.layout import request_number, retry_number
from fleetcraft.spool.ledger import POSITION_BITS, Batch, name_hash, to_little_endian
from fleetcraft.spool.life import DEAD, IDENTITY, JOURNAL, find_state, read_identity
from fleetcraft.spool.maintenance import remove_life
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import GONE, publish_file
from fleetcraft.store.journal import read_lines

_CHUNK_BYTES = 1 << 20
_SHOWN = 20  # damaged lines are listed up to this many, and counted in full


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be. `serious` ones make check fail until they are repaired."""

    kind: str
    place: str
    detail: str
    serious: bool = True
    repaired: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For reports."""
        return {name: getattr(self, name) for name in self.__slots__}


Report = Callable[[Finding], None]


def check_ledgers(spool: Spool, report: Report, *, repair: bool) -> None:
    """Numbers without gaps; every ledger whole; every index and names file as its ledger says."""
    layout = spool.layout
    known = {batch.number for batch in spool.batches()}
    for number in range(1, spool.highest() + 1):
        if number not in known and not spool.is_folded(number):
            where = layout.ledger(number)
            report(Finding(kind="ledger_missing", place=where, detail=f"Batch {number} is neither there nor folded."))
    for batch in spool.batches():
        try:
            _check_ledger(spool, batch, report, repair=repair)
        except OSError as error:
            if error.errno not in GONE:
                raise
            if spool.files.exists(layout.ledger(batch.number)):
                raise  # its index is looked for by name below; anything else that is missing is an error of ours


def _check_ledger(spool: Spool, batch: Batch, report: Report, *, repair: bool) -> None:
    path = spool.layout.ledger(batch.number)
    header = batch.header
    wrong = []
    if header["batch"] != batch.number:
        wrong.append(f"its header says batch {header['batch']}")
    if batch.folds and sum(part.count for part in batch.folds) != batch.count:
        wrong.append("the batches that it folds do not add up")
    offsets, hashes, damaged = _read_ledger(spool, path, batch.body_offset)
    if len(hashes) != batch.count:
        wrong.append(f"{len(hashes)} lines where {batch.count} are due")
    if damaged:
        wrong.append(f"{len(damaged)} lines are not JSON (tasks {damaged[:_SHOWN]})")
    if wrong:
        report(Finding(kind="ledger_damaged", place=path, detail="; ".join(wrong) + "."))
    elif not batch.is_small:
        _check_shortcuts(spool, batch, offsets, hashes, report, repair=repair)


def _read_ledger(spool: Spool, path: str, offset: int) -> tuple[array[int], array[int], list[int]]:
    """Offsets of the lines and of the end, name entries in order of position, positions that are not JSON."""
    offsets, hashes, damaged = array("Q", [offset]), array("Q"), []
    for line in _raw_lines(spool, path, offset):
        try:
            name = json.loads(line)["name"]
        except (ValueError, KeyError, TypeError):
            damaged.append(len(hashes))
            name = ""
        hashes.append(name_hash(name) << POSITION_BITS | len(hashes))
        offset += len(line) + 1
        offsets.append(offset)
    return offsets, hashes, damaged


def _raw_lines(spool: Spool, path: str, offset: int) -> Iterator[bytes]:
    descriptor = spool.files.open_read(path)
    try:
        pending = b""
        while chunk := os.pread(descriptor, _CHUNK_BYTES, offset):
            offset += len(chunk)
            *lines, pending = (pending + chunk).split(b"\n")
            yield from lines
        if pending:
            yield pending
    finally:
        os.close(descriptor)


def _check_shortcuts(
    spool: Spool, batch: Batch, offsets: array[int], hashes: array[int], report: Report, *, repair: bool
) -> None:
    layout = spool.layout
    wanted = (
        ("index_damaged", layout.index(batch.publication), to_little_endian(offsets)),
        ("names_damaged", layout.names(batch.publication), to_little_endian(array("Q", sorted(hashes)))),
    )
    for kind, path, content in wanted:
        try:
            found = spool.files.read(path)
        except OSError as error:
            if error.errno not in GONE:
                raise
            found = b""
        if found != content:
            if repair:
                publish_file(spool.files, path, content)
            detail = f"It does not say what the ledger of batch {batch.number} says, and can be made anew from it."
            report(Finding(kind=kind, place=path, detail=detail, repaired=repair))


def check_lives(spool: Spool, report: Report, *, repair: bool) -> None:
    """Lives that were never born, what is left of removed ones, lives without a name, damaged lines in journals."""
    files = spool.files
    owners = {token.life for token in spool.tokens().tokens}
    for name in spool.lives():
        folder = spool.layout.life(name)
        if not is_life_id(name):
            report(Finding(kind="foreign", place=folder, detail="Not the name of a life.", serious=False))
            continue
        state = find_state(files, folder)
        identity = read_identity(files, folder)
        if state in (None, DEAD) and not _size(spool, os.path.join(folder, JOURNAL)):
            whole = state == DEAD and identity is not None and files.exists(os.path.join(folder, JOURNAL))
            if not whole and files.exists(folder):
                # It owns nothing and says nothing, but its process may be about to be born, or about to remove it.
                gone = _is_dead(identity) if identity is not None else state == DEAD
                if gone and repair and name not in owners:
                    remove_life(spool, folder)
                detail = "What is left of a life that ended." if state == DEAD else "It has no state; it owned nothing."
                report(Finding(kind="life_empty", place=folder, detail=detail, serious=False, repaired=gone and repair))
            continue
        if identity is None and state != DEAD:
            detail = "Who this life is cannot be read, so nobody can prove that it ended."
            report(Finding(kind="life_nameless", place=os.path.join(folder, IDENTITY), detail=detail))
        _check_journal(spool, os.path.join(folder, JOURNAL), report)


def _is_dead(identity: Identity) -> bool:
    return judge(identity, Watch(0, 0.0), 0.0, ReapPolicy()).liveness is Liveness.DEAD


def _size(spool: Spool, path: str) -> int:
    try:
        return spool.files.size(path)
    except OSError as error:
        if error.errno not in GONE:
            raise
        return 0


def _check_journal(spool: Spool, path: str, report: Report) -> None:
    damaged: list[list[int]] = []
    count = missing = expected = 0
    end = 0
    try:
        for line in read_lines(spool.files, path):
            end = line.offset + line.length
            if line.record is None:
                count += 1
                if count <= _SHOWN:
                    damaged.append([line.offset, line.length])
            else:
                number = line.record.get("n", 0)
                missing += max(0, number - expected - 1)
                expected = max(expected, number)
        torn = spool.files.size(path) - end
    except OSError as error:
        if error.errno not in GONE:
            raise
        return  # compacted since the listing
    if count or missing:
        detail = f"{count} damaged lines; {missing} record numbers are missing."
        facts = {"lines": damaged, "count": count, "missing": missing, "torn_bytes": torn}
        # Whatever a lost receipt said, its task was still covered or is found uncovered: nothing is lost silently.
        report(Finding(kind="journal_damaged", place=path, detail=detail, serious=False, facts=facts))


def check_requests(spool: Spool, report: Report) -> None:
    """Requests that cannot be read: what a person asked for there is not known."""
    files, folder = spool.files, spool.layout.requests
    for name in sorted(files.names(folder)[0]):
        path = os.path.join(folder, name)
        if request_number(name) is None and retry_number(name) is None:
            if not name.startswith("."):
                report(Finding(kind="foreign", place=path, detail="Not the name of a request.", serious=False))
            continue
        try:
            known = "kind" in json.loads(files.read(path))
        except (ValueError, TypeError):
            known = False
        if not known:
            report(Finding(kind="request_damaged", place=path, detail="This request cannot be read; ask again."))
