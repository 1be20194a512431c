"""Publish: a batch becomes visible whole, and a name is published once, whoever else publishes meanwhile.

The order of steps (docs/explanation/protocol.md, Publish): ledger and index aside and synced; names of all
earlier batches read; a draft token for the whole range; the commit, one exclusive link; the draft renamed to
waiting. A crash before the commit leaves nothing that counts; after it, anyone may do the last rename.
"""

from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from fleetcraft.core.clock import stamp_utc
from fleetcraft.core.errors import OutOfReach, TaskInvalid
from fleetcraft.core.names import DRAFT, Token
from fleetcraft.core.resources import Request
from fleetcraft.core.task import canonical
from fleetcraft.spool.ledger import (
    LEDGER_FORMAT,
    LEDGER_VERSION,
    MAX_BATCH_TASKS,
    POSITION_BITS,
    SMALL_BATCH_TASKS,
    name_hash,
    to_little_endian,
)
from fleetcraft.spool.spool import Spool
from fleetcraft.spool.tokens import Moved, move
from fleetcraft.spool.tokens import draft as create_draft
from fleetcraft.spool.uniqueness import Known, Spill, entries_between, find_known, find_repeated, partitions
from fleetcraft.store.files import GONE, Files, explain, write_all

_RUN_TASKS = 1 << 16
_LOOKS = 5


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
    publication: str = field(default_factory=lambda: "p" + os.urandom(8).hex())
    count: int = 0
    _lines: list[bytes] = field(default_factory=list)
    _offset: int = 0
    _offsets: array[int] = field(default_factory=lambda: array("Q"))
    _hashes: array[int] = field(default_factory=lambda: array("Q"))
    _tail: array[int] = field(default_factory=lambda: array("Q"))  # sorted, too few for the spill
    _spill: Spill | None = None
    _known: Known = field(default_factory=Known)
    _checked: set[int] = field(default_factory=set)
    _ledger: int = -1
    _index: int = -1
    _header_bytes: int = 0
    _finished: bool = False
    _committed: int = 0

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
            if self._spill is None:
                self._spill = Spill(self.spool.files, self.spool.layout.names(self.publication))
            self._spill.add(array("Q", sorted(self._hashes)))
            self._hashes = array("Q")

    @property
    def runs(self) -> Sequence[Sequence[int]]:
        """Sorted runs of name entries: 40 bits of name hash, 24 bits of position."""
        if self._hashes:
            self._tail = array("Q", sorted([*self._tail, *self._hashes]))
            self._hashes = array("Q")
        spilled = self._spill.runs if self._spill else []
        return [*spilled, self._tail] if self._tail else spilled

    def _open(self) -> None:
        layout, files = self.spool.layout, self.spool.files
        header = self._header(0)
        self._header_bytes = len(header)
        self._ledger = files.open_new(layout.aside(self.publication))
        write_all(files, self._ledger, header)
        # The first flush comes at the end or after thousands of lines, so it knows whether the batch is small.
        if self.count > SMALL_BATCH_TASKS:
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
        self._flush()
        if self._index >= 0:
            files = self.spool.files
            write_all(files, self._index, to_little_endian(array("Q", [self._header_bytes + self._offset])))
            files.sync(self._index)
            os.close(self._index)
            self._index = -1
            self._write_names()
        self._finished = True

    def _write_names(self) -> None:
        files = self.spool.files
        descriptor = files.open_new(self.spool.layout.names(self.publication))
        try:
            for low, high in partitions():
                write_all(files, descriptor, to_little_endian(array("Q", entries_between(self.runs, low, high))))
            files.sync(descriptor)
        finally:
            os.close(descriptor)

    def lines_at(self, positions: Iterable[int]) -> Iterator[bytes]:
        """The lines at sorted positions, for comparing and filtering; the whole batch is never in memory."""
        if self._ledger < 0:
            for position in positions:
                yield self._lines[position]
            return
        self._flush()
        wanted = iter(positions)
        position = next(wanted, -1)
        if position < 0:
            return
        with open(self.spool.layout.aside(self.publication), "rb") as source:
            source.seek(self._header_bytes)
            for place, line in enumerate(source):
                if place == position:
                    yield line[:-1]
                    position = next(wanted, -1)
                    if position < 0:
                        return

    def discard(self) -> None:
        """Remove everything aside."""
        layout, files = self.spool.layout, self.spool.files
        for descriptor in (self._ledger, self._index):
            if descriptor >= 0:
                os.close(descriptor)
        self._ledger = self._index = -1
        self._close_spill()
        made = [layout.aside(self.publication)]
        if not self._committed:  # from then on the index belongs to everybody
            made += [layout.index(self.publication), layout.names(self.publication)]
        for path in made:
            try:
                files.unlink(path)
            except OSError:
                continue  # never made, or not removable now; a stray name is foreign to every reader

    def _close_spill(self) -> None:
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    def commit(self) -> Published:
        """Publish what was added; names that exist already with the same content are left out.

        Raises NameTaken when a name exists with other content, StorageFull or OutOfReach when the storage
        did not do it; then nothing was published, unless the error says that it may have been.
        """
        try:
            return self._commit()
        except OSError as error:
            self.discard()
            if self._committed:
                raise OutOfReach(
                    f"The storage failed ({error.strerror}) while batch {self._committed} was published.",
                    hint="Enqueue the same again, or run `fleetcraft spool check --repair`: either offers its tasks.",
                ) from error
            raise explain(error, f"Cannot publish into {self.spool.layout.root}") from error
        except BaseException:
            self.discard()
            raise

    def check_names(self) -> None:
        """Raise NameTaken for what can be seen now, before this or any batch beside it is published."""
        if self.folds:
            return  # the names of a fold are those of its parts
        if not self._checked:
            find_repeated(self, self._known)
            self._checked.add(0)  # no batch has that number: it stands for this one
        fresh = [batch for batch in self.spool.batches() if batch.number not in self._checked]
        find_known(self, fresh, self._known)
        self._checked.update(batch.number for batch in fresh)

    def _commit(self) -> Published:
        spool = self.spool
        if not self.count:
            self.discard()
            return Published()
        looks = 0
        while True:
            spool.refresh()
            try:
                self.check_names()
            except OSError as error:
                looks += 1
                if error.errno not in GONE or looks == _LOOKS:
                    raise
                continue  # a batch was folded while its names were being read; the fold has them
            if self._known.marks:
                for number in self._known.batches:
                    finish_publication(spool, number)
                return self._without_known()
            if not self._finished:
                self.finish()
            number = self._try(spool.highest() + 1)
            if number:
                return Published(number, self.count, 0)

    def _try(self, number: int) -> int:
        """One attempt to take batch `number`; 0 when another publisher took it."""
        spool, files, layout = self.spool, self.spool.files, self.spool.layout
        draft = self._token(number).owned(DRAFT, self.publication)
        try:
            if self.offers:
                create_draft(files, layout.token(draft.name))
                files.sync_folder(layout.tokens)
            os.lseek(self._ledger, 0, os.SEEK_SET)
            write_all(files, self._ledger, self._header(number))
            files.sync(self._ledger)
        except OSError:
            self._drop(draft)
            raise
        aside, ledger = layout.aside(self.publication), layout.ledger(number)
        mine = files.identity(aside)
        self._committed = number  # from here on an error leaves it open; then the index must stay
        try:
            files.link(aside, ledger)
        except OSError as error:
            # The reply may have been lost: the inode behind the name tells whose it is.
            if mine is None or files.identity(ledger) != mine:
                self._committed = 0
                self._drop(draft)
                if isinstance(error, FileExistsError):
                    spool.batch(number)  # an old listing may go on hiding it; a look-up by name does not
                    return 0
                raise
        # The name of a batch that was folded while we were slow is free again, but its number is not: readers
        # that see the fold ignore this ledger, so it is taken back before its tasks are offered.
        spool.refresh()
        if spool.is_folded(number) and not self._stands_in_fold(number):
            _unlink_if_there(files, ledger)
            self._committed = 0
            self._drop(draft)
            return 0
        _unlink_if_there(files, aside)
        os.close(self._ledger)
        self._ledger = -1
        self._close_spill()
        files.sync_folder(layout.batches)
        if self.offers:
            offer_draft(spool, draft, held=self.held)
        return number

    def _stands_in_fold(self, number: int) -> bool:
        """True when the fold of this number holds our lines: it was folded since our commit, not before."""
        place = self.spool.places()[number]
        if place.count != self.count:
            return False
        ours = self.lines_at(range(self.count))
        return all(
            place.cover.lines(place.offset + at, place.offset + at + 1) == [line] for at, line in enumerate(ours)
        )

    def _drop(self, draft: Token) -> None:
        if not self.offers:
            return
        try:
            self.spool.files.unlink(self.spool.layout.token(draft.name))
        except OSError:
            return  # of a publication that never was: it means nothing, and check counts it

    def _token(self, number: int) -> Token:
        return Token(lane=self.request.lane, priority=self.priority, batch=number, start=0, stop=self.count)

    def _without_known(self) -> Published:
        """Publish again without what is there already."""
        kept = self._known.left(self.count)
        if not kept:
            self.discard()
            return Published(None, 0, self.count)
        starts = list(accumulate((stop - start for start, stop in kept), initial=0))

        def place(position: int) -> str:
            part = bisect_right(starts, position) - 1
            return self.place(kept[part][0] + position - starts[part])

        fresh = LedgerWriter(self.spool, self.request, self.priority, self.held, self.defaults, place=place)
        try:
            for line in self.lines_at(position for start, stop in kept for position in range(start, stop)):
                fresh.add(json.loads(line)["name"], line)
        except BaseException:
            fresh.discard()
            raise
        self.discard()
        result = fresh.commit()
        return Published(result.batch, result.added, result.existing + self.count - fresh.count)


def _unlink_if_there(files: Files, path: str) -> None:
    try:
        files.unlink(path)
    except OSError as error:
        if error.errno not in GONE:
            raise


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
