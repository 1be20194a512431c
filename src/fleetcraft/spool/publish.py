"""Publish: a batch becomes visible whole, and a name is published once, whoever else publishes meanwhile.

The order of steps (docs/explanation/protocol.md, Publish): ledger and index aside and synced; names of all
earlier batches read; a draft token for the whole range; the commit, one exclusive link; the draft renamed to
waiting. A crash before the commit leaves nothing that counts; after it, anyone may do the last rename.
"""

from __future__ import annotations

import json
import os
import secrets
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.clock import stamp_utc
from fleetcraft.core.errors import NameTaken, OutOfReach, TaskInvalid
from fleetcraft.core.names import DRAFT, Token
from fleetcraft.core.resources import Request
from fleetcraft.core.task import canonical
from fleetcraft.spool.ledger import (
    LEDGER_FORMAT,
    LEDGER_VERSION,
    MAX_BATCH_TASKS,
    POSITION_BITS,
    SMALL_BATCH_TASKS,
    Batch,
    name_hash,
    to_little_endian,
)
from fleetcraft.spool.spool import Spool
from fleetcraft.spool.tokens import Moved, move
from fleetcraft.store.files import GONE, explain, write_all

_RUN_TASKS = 1 << 16
_PARTITIONS = 64
_POSITION_MASK = MAX_BATCH_TASKS - 1
# What does not make a task another one: who may run it when, and how its environment was found.
_NOT_CONTENT = frozenset({"base_env", "env_digest", "python", "notify", "tags", "name"})


@dataclass(slots=True)
class Published:
    """What one publication did."""

    batch: int | None = None
    added: int = 0
    existing: int = 0


@dataclass(slots=True)
class LedgerWriter:
    """One ledger on its way: lines go straight to a file aside, so memory does not grow with the tasks."""

    spool: Spool
    request: Request
    priority: int
    held: bool
    defaults: Sequence[Mapping[str, Any]]
    folds: Sequence[tuple[int, int, int]] = ()
    place: Callable[[int], str] = "task {}".format
    offers: bool = True  # a fold of ended batches offers nothing
    publication: str = field(default_factory=lambda: "p" + secrets.token_hex(8))
    count: int = 0
    _lines: list[bytes] = field(default_factory=list)
    _offset: int = 0
    _offsets: array[int] = field(default_factory=lambda: array("Q"))
    _hashes: array[int] = field(default_factory=lambda: array("Q"))
    _runs: list[array[int]] = field(default_factory=list)
    _ledger: int = -1
    _index: int = -1
    _header_bytes: int = 0

    def add(self, name: str, line: bytes) -> None:
        """Take one task line (without newline); its name must be the line's."""
        if self.count >= MAX_BATCH_TASKS:
            raise TaskInvalid(f"A batch takes {MAX_BATCH_TASKS} tasks.", hint="Enqueue in several files.")
        self._lines.append(line)
        self._offsets.append(self._offset)
        self._offset += len(line) + 1
        self._hashes.append(name_hash(name) << POSITION_BITS | self.count)
        self.count += 1
        if len(self._lines) >= 1 << 13:
            self._flush()

    def _flush(self) -> None:
        if self._ledger < 0:
            self._open()
        if self._lines:
            self._lines.append(b"")
            write_all(self.spool.files, self._ledger, b"\n".join(self._lines))
            self._lines.clear()
            if self._index >= 0:
                base = self._header_bytes
                write_all(
                    self.spool.files, self._index, to_little_endian(array("Q", [base + at for at in self._offsets]))
                )
                self._offsets = array("Q")
        if len(self._hashes) >= _RUN_TASKS:
            self._runs.append(array("Q", sorted(self._hashes)))
            self._hashes = array("Q")

    def _open(self) -> None:
        layout, files = self.spool.layout, self.spool.files
        header = self._header(0)
        self._header_bytes = len(header)
        self._ledger = files.open_new(layout.aside(self.publication))
        write_all(files, self._ledger, header)
        self._index = files.open_new(layout.index(self.publication))

    def _header(self, batch: int) -> bytes:
        header = {
            "format": LEDGER_FORMAT,
            "version": LEDGER_VERSION,
            "batch": batch,
            "count": self.count,
            "publication": self.publication,
            "created_utc": stamp_utc(self.spool.clock.utc()),
            "lane": self.request.lane,
            "priority": self.priority,
            "request": self.request.as_json(),
            "after": self.held,
            "defaults": list(self.defaults),
        }
        if self.folds:
            header["folds"] = [list(part) for part in self.folds]
            header["offers"] = self.offers
        raw = canonical(header)
        # The number of the batch is known only at the commit, so the line keeps room for longer numbers.
        room = self._header_bytes or len(raw) + 48
        return raw + b" " * (room - 1 - len(raw)) + b"\n"

    def finish(self) -> None:
        """Write the rest, the index and the names; everything but the batch number is then on disk."""
        files, layout = self.spool.files, self.spool.layout
        self._flush()
        if self._hashes:
            self._runs.append(array("Q", sorted(self._hashes)))
            self._hashes = array("Q")
        if self.count > SMALL_BATCH_TASKS:
            end = array("Q", [self._header_bytes + self._offset])
            write_all(files, self._index, to_little_endian(end))
            files.sync(self._index)
            self._write_names()
        else:
            files.unlink(layout.index(self.publication))
        os.close(self._index)
        self._index = -1

    def _write_names(self) -> None:
        files = self.spool.files
        descriptor = files.open_new(self.spool.layout.names(self.publication))
        try:
            for low, high in _partitions():
                write_all(files, descriptor, to_little_endian(array("Q", self.entries(low, high))))
            files.sync(descriptor)
        finally:
            os.close(descriptor)

    def entries(self, low: int, high: int) -> list[int]:
        """The sorted name entries between two values; merging by parts keeps memory flat."""
        found: list[int] = []
        for run in self._runs:
            found.extend(run[bisect_left(run, low) : bisect_left(run, high)])
        found.sort()
        return found

    def lines_at(self, positions: Sequence[int]) -> list[bytes]:
        """Read back lines of the file aside, for comparing and filtering."""
        with open(self.spool.layout.aside(self.publication), "rb") as source:
            source.seek(self._header_bytes)
            wanted = set(positions)
            found = {place: line[:-1] for place, line in enumerate(source) if place in wanted}
        return [found[position] for position in positions]

    def discard(self) -> None:
        """Remove everything aside."""
        layout, files = self.spool.layout, self.spool.files
        for descriptor in (self._ledger, self._index):
            if descriptor >= 0:
                os.close(descriptor)
        self._ledger = self._index = -1
        for path in (
            layout.aside(self.publication), layout.index(self.publication), layout.names(self.publication),
        ):  # fmt: skip
            try:
                files.unlink(path)
            except OSError:
                continue  # never made, or not removable now; a stray name is foreign to every reader

    def commit(self) -> Published:
        """Publish what was added; names that exist already with the same content are left out.

        Raises NameTaken when a name exists with other content, StorageFull or OutOfReach when the storage
        did not do it; then nothing was published.
        """
        try:
            return self._commit()
        except OSError as error:
            self.discard()
            raise explain(error, f"Cannot publish into {self.spool.layout.root}") from error
        except BaseException:
            self.discard()
            raise

    def _commit(self) -> Published:
        self.finish()
        spool = self.spool
        repeated = self._repeated_inside()
        checked: set[int] = set()
        existing: dict[int, int] = {}
        while True:
            spool.refresh()
            if not self.folds:
                for batch in spool.batches():
                    if batch.number not in checked:
                        existing.update(self._known_in(batch))
                        checked.add(batch.number)
            if existing or repeated:
                for number in set(existing.values()):
                    finish_publication(spool, number)
                return self._without(existing.keys() | repeated)
            number = self._try(spool.highest() + 1)
            if number:
                return Published(number, self.count, 0)

    def _try(self, number: int) -> int:
        """One attempt to take batch `number`; 0 when another publisher took it."""
        spool, files, layout = self.spool, self.spool.files, self.spool.layout
        draft = self._token(number).owned(DRAFT, self.publication)
        if self.offers:
            files.create(layout.token(draft.name))
            files.sync_folder(layout.tokens)
        os.lseek(self._ledger, 0, os.SEEK_SET)
        write_all(files, self._ledger, self._header(number))
        files.sync(self._ledger)
        aside, ledger = layout.aside(self.publication), layout.ledger(number)
        mine = files.identity(aside)
        try:
            files.link(aside, ledger)
        except OSError as error:
            # The reply may have been lost: the inode behind the name tells whose it is.
            if files.identity(ledger) != mine:
                if self.offers:
                    files.unlink(layout.token(draft.name))
                if isinstance(error, FileExistsError):
                    return 0
                raise
        files.unlink(aside)
        os.close(self._ledger)
        self._ledger = -1
        files.sync_folder(layout.batches)
        if self.offers:
            offer_draft(spool, draft, held=self.held)
        return number

    def _token(self, number: int) -> Token:
        return Token(lane=self.request.lane, priority=self.priority, batch=number, start=0, stop=self.count)

    def _repeated_inside(self) -> set[int]:
        """Positions that repeat a name of this very batch with the same content. Raises NameTaken."""
        if self.folds:
            return set()
        repeated: set[int] = set()
        for low, high in _partitions():
            entries = self.entries(low, high)
            hashes = [entry >> POSITION_BITS for entry in entries]
            if len(set(hashes)) == len(hashes):
                continue
            for place in range(1, len(entries)):
                if hashes[place] == hashes[place - 1]:
                    pair = sorted(entry & _POSITION_MASK for entry in entries[place - 1 : place + 1])
                    self._compare_pair(pair[0], pair[1], repeated)
        return repeated

    def _compare_pair(self, first: int, second: int, repeated: set[int]) -> None:
        one, other = (json.loads(line) for line in self.lines_at([first, second]))
        if one["name"] != other["name"]:
            return
        if one != other:
            raise NameTaken(
                f"{self.place(second)}: the name {other['name']!r} stands at {self.place(first)} with other content.",
                hint="A name is unique in its spool; rename one of the two.",
            )
        repeated.add(second)

    def _known_in(self, batch: Batch) -> dict[int, int]:
        """Positions of ours whose name and content are in `batch` already. Raises NameTaken."""
        pairs: list[tuple[int, int]] = []
        theirs = batch.name_entries()
        for low, high in _partitions() if self.count > 1000 or len(theirs) < 1000 else _around(self._runs):
            ours = {entry >> POSITION_BITS: entry & _POSITION_MASK for entry in self.entries(low, high)}
            if not ours:
                continue
            for entry in theirs[bisect_left(theirs, low) : bisect_left(theirs, high)]:
                mine = ours.get(entry >> POSITION_BITS)
                if mine is not None:
                    pairs.append((mine, entry & _POSITION_MASK))
        known: dict[int, int] = {}
        lines = self.lines_at([mine for mine, _ in pairs]) if pairs else []
        for (mine, position), raw in zip(pairs, lines, strict=True):
            if self._same(raw, mine, batch, position):
                known[mine] = batch.number
        return known

    def _same(self, raw: bytes, mine: int, batch: Batch, position: int) -> bool:
        """True when both lines say the same; False when only the hashes agree. Raises NameTaken."""
        line = json.loads(raw)
        other = batch.task(position)
        if line["name"] != other["name"]:
            return False
        task = {**self.defaults[0], **line}
        if task_content(task, self.request) != task_content(other, batch.request):
            changed = sorted(
                key for key in task.keys() | other.keys() if key not in _NOT_CONTENT and task.get(key) != other.get(key)
            )
            what = ", ".join(changed) or "the resources"
            raise NameTaken(
                f"{self.place(mine)}: the name {line['name']!r} exists already with other content ({what} differ); "
                f"the first is task {batch.origin(position)}.",
                hint=f"See it with `fleetcraft task show {line['name']}`, or choose another name.",
            )
        return True

    def _without(self, dropped: set[int] | Any) -> Published:
        """Publish again without some positions."""
        fresh = LedgerWriter(
            self.spool, self.request, self.priority, self.held, self.defaults, place=self.place,
        )  # fmt: skip
        with open(self.spool.layout.aside(self.publication), "rb") as source:
            source.seek(self._header_bytes)
            for place, line in enumerate(source):
                if place not in dropped:
                    fresh.add(json.loads(line)["name"], line[:-1])
        self.discard()
        if not fresh.count:
            return Published(None, 0, len(dropped))
        result = fresh.commit()
        return Published(result.batch, result.added, result.existing + len(dropped))


def _partitions() -> list[tuple[int, int]]:
    step = (1 << 64) // _PARTITIONS
    return [(part * step, (part + 1) * step) for part in range(_PARTITIONS)]


def _around(runs: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """One narrow window per hash, for few names against a large batch."""
    hashes = {entry >> POSITION_BITS for run in runs for entry in run}
    return [(value << POSITION_BITS, (value + 1) << POSITION_BITS) for value in sorted(hashes)]


def task_content(task: Mapping[str, Any], request: Request) -> bytes:
    """What decides whether two tasks of one name are the same."""
    return canonical([{key: value for key, value in task.items() if key not in _NOT_CONTENT}, request.as_json()])


def offer_draft(spool: Spool, draft: Token, *, held: bool) -> None:
    """Last step of a publication: the draft becomes waiting (or held). Anyone may do it, any number of times."""
    target = draft.held() if held else draft.waiting()
    layout = spool.layout
    if move(spool.files, layout.token(draft.name), layout.token(target.name)) is Moved.UNKNOWN:
        raise OutOfReach(
            f"The storage did not say whether {draft.name} was renamed.",
            hint="The batch is published; `fleetcraft spool check --repair` offers it.",
        )
    spool.files.sync_folder(layout.tokens)


def finish_publication(spool: Spool, number: int) -> None:
    """Do the last step of a committed publication whose publisher died before it."""
    batch = spool.batch(number)
    if batch is None:
        return
    for token in spool.tokens().tokens:
        if token.form == DRAFT and token.life == batch.publication and token.batch == number:
            try:
                offer_draft(spool, token, held=batch.held)
            except OSError as error:
                if error.errno not in GONE:
                    raise
