"""The batches of one enqueue on their way: one for each request, priority and heldness, published together at the end.

Nothing is visible before every name was checked. Batches without `after` come first, so that what waits never
appears before what it waits for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fleetcraft.actions.shared import Shared
from fleetcraft.core.errors import FleetcraftError
from fleetcraft.core.resources import Request
from fleetcraft.spool.ledger import MAX_BATCH_TASKS
from fleetcraft.spool.publish import LedgerWriter, Published
from fleetcraft.spool.spool import Spool
from fleetcraft.spool.uniqueness import check_across

GroupKey = tuple[Request, int, bool]


class LineMap:
    """Which line of the input each position came from; one entry for as long as lines just follow each other."""

    __slots__ = ("_lines", "_place", "_positions", "ahead")

    def __init__(self, place: Callable[[int], str]) -> None:
        self._place = place
        self._positions = array("Q")
        self._lines = array("Q")
        self.ahead = -1  # how far the line number is ahead of the position

    def note(self, position: int, number: int) -> None:
        """From this position on lines count from `number`."""
        self._positions.append(position)
        self._lines.append(number)
        self.ahead = number - position

    def place(self, position: int) -> str:
        """The line of a position, as shown in errors."""
        part = bisect_right(self._positions, position) - 1
        return self._place(self._lines[part] + position - self._positions[part])


@dataclass(slots=True)
class Group:
    """The tasks that may share a batch; another batch begins when one is full."""

    start: Callable[[Callable[[int], str]], LedgerWriter]
    place: Callable[[int], str]
    names: list[str]
    keep_names: int
    writers: list[LedgerWriter] = field(default_factory=list)
    _writer: LedgerWriter = field(init=False)
    _lines: LineMap = field(init=False)

    def __post_init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self._lines = LineMap(self.place)
        self._writer = self.start(self._lines.place)
        self.writers.append(self._writer)

    def add(self, name: str, line: bytes, number: int) -> None:
        """Take one task; `number` is its line in the input. Raises OSError."""
        position = self._writer.count
        if position >= MAX_BATCH_TASKS:
            self._open()
            position = 0
        if number - position != self._lines.ahead:
            self._lines.note(position, number)
        self._writer.add(name, line)
        if len(self.names) < self.keep_names:
            self.names.append(name)


class Groups:
    """All groups of one enqueue."""

    def __init__(self, spool: Spool, shared: Shared, place: Callable[[int], str], keep_names: int) -> None:
        self._spool = spool
        self._shared = shared
        self._place = place
        self._groups: dict[GroupKey, Group] = {}
        self.names: list[str] = []
        self._keep_names = keep_names

    def group(self, request: Request, priority: int, held: bool) -> Group:  # noqa: FBT001  one part of a key
        """The group of a task."""
        key = (request, priority, held)
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = Group(self._starter(key), self._place, self.names, self._keep_names)
        return found

    def _starter(self, key: GroupKey) -> Callable[[Callable[[int], str]], LedgerWriter]:
        request, priority, held = key

        def start(place: Callable[[int], str]) -> LedgerWriter:
            return LedgerWriter(self._spool, request, priority, held, (self._shared.header,), place=place)

        return start

    @property
    def count(self) -> int:
        """How many tasks were taken."""
        return sum(writer.count for writer in self.writers())

    def writers(self) -> list[LedgerWriter]:
        """Every batch in the order of publication."""
        ordered = sorted(self._groups.items(), key=lambda item: item[0][2])
        return [writer for _, group in ordered for writer in group.writers if writer.count]

    def discard(self) -> None:
        """Forget everything that was not published."""
        for group in self._groups.values():
            for writer in group.writers:
                writer.discard()

    def publish(self) -> Iterator[Published]:
        """Check all names, then publish batch by batch. Raises NameTaken, StorageFull or OutOfReach."""
        writers = self.writers()
        if len(writers) > 1:
            self._spool.refresh()
            for writer in writers:
                writer.check_names()
            check_across(writers)
        done = 0
        for number, writer in enumerate(writers):
            try:
                result = writer.commit()
            except FleetcraftError as error:
                if number:
                    error.message += f" {number} of {len(writers)} batches ({done} tasks) were published before."
                    error.hint = f"{error.hint} Enqueuing the same again goes on from there.".strip()
                raise
            done += result.added
            yield result
