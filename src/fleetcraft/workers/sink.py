"""Where a worker writes what happened: its journal, the fold of that journal, heartbeat and summary.

When the storage is full nothing is lost: records wait here in order, and the worker starts and releases
nothing until they are written.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from fleetcraft.core.outcome import Fold
from fleetcraft.core.records import dump
from fleetcraft.spool.life import SUMMARY, Life
from fleetcraft.store.files import publish_file
from fleetcraft.store.journal import is_storage_full

_SUMMARY_STEP_BYTES = 64 * 1024

Build = Callable[[int], str]
# What the fold needs of a record: an object, the (batch, index) of a plain first success, or nothing.
Facts = Mapping[str, Any] | tuple[int, int] | None
OpenNow = Callable[[], list[list[Any]]]


class Sink:
    """The only way a worker appends to its journal."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.fold = Fold()
        self.storage_full = False
        # What is in progress, told by those who run it: cheaper than folding every start and end.
        self.open_now: OpenNow = list
        self._later: deque[tuple[Build, Facts]] = deque()
        self._pending: deque[tuple[Build, Facts]] = deque()
        self._summary_at = 0
        self._summary_bytes = 0
        self.last_sync_s = life.spool.clock.mono()
        life.on_record = lambda body: self.fold.add(life.id, body)

    @property
    def clear(self) -> bool:
        """True when every record is in the journal."""
        return not self._pending and not self._later

    def put(self, build: Build, facts: Facts) -> None:
        """Append the record that `build(number)` spells; `facts` is what the fold needs of it.

        Raises OSError when the storage failed otherwise than by being full.
        """
        if self._pending:
            self._pending.append((build, facts))
            return
        self._write(build, facts)

    def put_later(self, build: Build, facts: Facts) -> None:
        """Append at the next `flush_later`: the slot that became free is filled first."""
        self._later.append((build, facts))

    def flush_later(self) -> None:
        """Write what was put off; before anything depends on it. Raises OSError like `put`."""
        while self._later:
            self.put(*self._later.popleft())

    def _write(self, build: Build, facts: Facts) -> None:
        try:
            self.life.journal.append(build(self.life.journal.number + 1))
        except OSError as error:
            if not is_storage_full(error):
                raise
            self.storage_full = True
            self._pending.appendleft((build, facts))
            return
        if isinstance(facts, tuple):
            self.fold.add_success(*facts)
        elif facts is not None:
            self.fold.add(self.life.id, facts)

    def record(self, body: Mapping[str, Any]) -> None:
        """Append a record given as an object."""
        self.put(lambda number: dump({"n": number, **body}), body)

    def flush(self) -> bool:
        """Try to write what waits; True when nothing waits any more."""
        self.flush_later()
        while self._pending:
            before = len(self._pending)
            build, facts = self._pending.popleft()
            self._write(build, facts)
            if len(self._pending) >= before:
                return False
        self.storage_full = False
        return True

    def sync(self) -> None:
        """Make the journal durable. Raises JournalEnded."""
        self.flush_later()
        self.life.journal.sync()
        self.last_sync_s = self.life.spool.clock.mono()

    def summarize(self, *, force: bool = False) -> None:
        """Replace the summary when enough was written since; readers then read only the tail. Raises OSError."""
        self.flush_later()
        length = self.life.journal.length
        if not self.clear or length == self._summary_at:
            return
        if not force and length - self._summary_at < max(_SUMMARY_STEP_BYTES, 2 * self._summary_bytes):
            return
        fold = {**self.fold.as_json(), "open": self.open_now()}
        body = dump({"version": 1, "covers": length, "fold": fold}).encode()
        publish_file(self.life.files, os.path.join(self.life.folder, SUMMARY), body, durable=False)
        self._summary_at, self._summary_bytes = length, len(body)
