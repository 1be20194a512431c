"""A spool opened for use: its files, its clock, and the batches that are visible now."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.core.errors import SpoolError
from fleetcraft.core.names import TaskId, Token, parse_token
from fleetcraft.spool.layout import FORMAT_NAME, FORMAT_VERSION, Layout, batch_number
from fleetcraft.spool.ledger import Batch, open_batch
from fleetcraft.store.files import GONE, Files, ensure_folder, explain, is_private, publish_file


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tasks of one batch stand now: in its own ledger, or inside one that folds it."""

    cover: Batch
    offset: int
    count: int


class Listing(NamedTuple):
    """One reading of tokens/; it is not a snapshot, and nothing is decided on one alone."""

    tokens: list[Token]
    foreign: int


class Spool:
    """One directory of tasks. Opening it changes nothing unless `create` is given."""

    def __init__(self, root: str, *, files: Files | None = None, clock: Clock | None = None) -> None:
        self.layout = Layout(os.path.abspath(root))
        self.files = files or Files()
        self.clock = clock or SystemClock()
        self._batches: dict[int, Batch] = {}
        self._places: dict[int, Place] = {}
        self._folded: set[int] = set()
        self._whole = 0  # every number up to here is known
        self._unreadable: dict[int, str] = {}

    @classmethod
    def open(
        cls, root: str, *, create: bool = False, group: bool = False,
        files: Files | None = None, clock: Clock | None = None,
    ) -> Spool:  # fmt: skip
        """Open a spool, and with `create` make it first where there is none.

        Raises SpoolError when it is missing, foreign, of a newer version, or writable by others.
        """
        spool = cls(root, files=files, clock=clock)
        if create:
            spool._create(group=group)
        spool._verify()
        return spool

    def _create(self, *, group: bool) -> None:
        layout = self.layout
        if os.path.exists(layout.marker):
            return
        try:
            try:
                os.makedirs(os.path.dirname(layout.root), exist_ok=True)
            except FileExistsError:
                pass  # made by another client, and no folder yet in what this one has cached: go on and see
            if os.path.isdir(layout.root) and os.listdir(layout.root) and not os.path.isdir(layout.batches):
                raise SpoolError(
                    f"{layout.root} is not empty and not a spool.", hint="Name another directory with --spool."
                )
            self.files.shared = group
            ensure_folder(self.files, layout.root)
            if group:
                os.chmod(layout.root, 0o2770)  # noqa: S103  asked for with --group: its members may enqueue and run
            for folder in layout.folders():
                ensure_folder(self.files, folder)
            marker = {"format": FORMAT_NAME, "version": FORMAT_VERSION, "group": group}
            publish_file(self.files, layout.marker, json.dumps(marker).encode() + b"\n")
        except OSError as error:
            raise explain(error, f"Cannot create the spool {layout.root}") from error

    def _verify(self) -> None:
        layout = self.layout
        try:
            marker = json.loads(self.files.read(layout.marker))
        except OSError as error:
            if error.errno not in GONE:
                raise explain(error, f"Cannot read {layout.marker}") from error
            raise SpoolError(
                f"There is no spool at {layout.root}.",
                hint=f"Create it by enqueuing: `fleetcraft task enqueue --spool {layout.root} -- COMMAND`.",
            ) from error
        except ValueError as error:
            raise SpoolError(f"{layout.marker} is not JSON.", hint="Run `fleetcraft spool check`.") from error
        if not isinstance(marker, dict) or marker.get("format") != FORMAT_NAME:
            raise SpoolError(f"{layout.marker} is not the marker of a spool.")
        if not isinstance(marker.get("version"), int) or marker["version"] > FORMAT_VERSION:
            raise SpoolError(
                f"The spool {layout.root} has version {marker.get('version')}; "
                f"this program knows up to {FORMAT_VERSION}.",
                hint="Use a newer fleetcraft.",
            )
        self.files.shared = bool(marker.get("group"))
        if not marker.get("group") and not is_private(layout.root):
            raise SpoolError(
                f"The spool {layout.root} can be written by other users, who could then run commands as you.",
                hint=f"Run `chmod go-w {layout.root}`, or create it with --group.",
            )

    def tokens(self) -> Listing:
        """List tokens/ once."""
        names, foreign = self.files.names(self.layout.tokens)
        tokens: list[Token] = []
        for name in names:
            token = parse_token(name)
            if token is None:
                foreign += 1
            else:
                tokens.append(token)
        return Listing(tokens, foreign)

    def refresh(self) -> None:
        """Look for batches that appeared or were folded since the last look."""
        for _ in range(5):
            names, _ = self.files.names(self.layout.batches)
            numbers = {number for name in names if (number := batch_number(name)) is not None}
            gone = self._batches.keys() - numbers
            try:
                for number in sorted(numbers - self._batches.keys()):
                    self._take_in(open_batch(self.files, self.layout, number))
            except OSError as error:
                if error.errno in GONE:
                    continue  # folded between the listing and the look; list again
                raise
            # A folded ledger is removed only after the one that folds it is visible.
            if gone - self._folded:
                continue
            for number in gone:
                del self._batches[number]
            # Numbers have no gaps, so a gap is a listing that was not whole: a fold appeared while it was read.
            while self._whole + 1 in self._batches or self._whole + 1 in self._folded:
                self._whole += 1
            if self._whole >= self.highest():
                break

    def _take_in(self, batch: Batch) -> None:
        """Note where its tasks stand; work grows with what is new, not with what was ever folded."""
        self._batches[batch.number] = batch
        if not batch.folds:
            self._places.setdefault(batch.number, Place(batch, 0, batch.count))
        elif batch.number not in self._folded:  # else it was folded again, flat, into a later one
            for part in batch.folds:
                self._places[part.batch] = Place(batch, part.offset, part.count)
                self._folded.add(part.batch)

    def batches(self) -> list[Batch]:
        """Visible batches in order, folded ones left out."""
        return [self._batches[number] for number in sorted(self._batches) if number not in self._folded]

    def highest(self) -> int:
        """The highest batch number that is visible."""
        return max(self._batches, default=0)

    def places(self) -> dict[int, Place]:
        """Where the tasks of every batch stand, by the batch that first published them."""
        return self._places

    def is_folded(self, number: int) -> bool:
        """True when the batch lives on inside another."""
        return number in self._folded

    def batch(self, number: int) -> Batch | None:
        """One ledger by number; None when it is not visible (yet, or any more)."""
        known = self._batches.get(number)
        if known is not None:
            return known
        try:
            batch = open_batch(self.files, self.layout, number)
        except OSError as error:
            if error.errno not in GONE:
                raise
            self.refresh()
            return self._batches.get(number)
        self._take_in(batch)
        return batch

    def total(self) -> int:
        """How many tasks were ever published."""
        return sum(place.count for place in self._places.values())

    def find(self, name: str) -> TaskId | None:
        """The id of a task by its name, or by `BATCH.INDEX` where no name matches."""
        for batch in reversed(self.batches()):
            position = batch.find(name)
            if position is not None:
                return batch.origin(position)
        return None

    def locate(self, task: TaskId) -> tuple[Batch, int] | None:
        """The ledger and position where a task stands now."""
        place = self._places.get(task.batch)
        if place is None or not 0 <= task.index < place.count:
            return None
        return place.cover, place.offset + task.index

    def task(self, task: TaskId) -> dict[str, object] | None:
        """The whole description of a task."""
        found = self.locate(task)
        return found[0].task(found[1]) if found else None

    def lives(self) -> Iterator[str]:
        """Names of the worker folders."""
        yield from sorted(self.files.folders(self.layout.workers))
