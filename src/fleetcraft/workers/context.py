"""What the parts of one worker share; each part owns its own decisions."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from fleetcraft.core.clock import Clock
from fleetcraft.core.outcome import Fold
from fleetcraft.core.resources import Request
from fleetcraft.spool.life import Life
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.requests import RequestLog
from fleetcraft.spool.spool import Spool
from fleetcraft.workers.book import Book, Pace
from fleetcraft.workers.options import WorkerOptions
from fleetcraft.workers.sink import Sink
from fleetcraft.workers.slots import Capacity


@dataclass(slots=True)
class Context:
    """One worker life from the inside."""

    options: WorkerOptions
    clock: Clock
    spool: Spool
    life: Life
    sink: Sink
    capacity: Capacity
    requests: RequestLog
    deadline_s: float | None  # on the monotonic clock
    book: Book = field(default_factory=Book)
    pace: Pace = field(default_factory=Pace)
    asked: Fold = field(default_factory=Fold)  # cancels and retries, known without reading any journal
    lanes: dict[str, Request] = field(default_factory=dict)
    reserved: str | None = None  # the lane for which room is being made; no other task is started meanwhile
    _reader: SpoolFold | None = None
    _asked_at: tuple[int, int] = (0, 0)

    @property
    def reader(self) -> SpoolFold:
        """The durable fold of all journals; made only when something depends on it."""
        if self._reader is None:
            self._reader = SpoolFold(self.spool, durable=True)
        return self._reader

    def read_everything(self) -> Fold:
        """Bring the durable fold up to date, our own records included."""
        self.sink.sync()
        self.spool.refresh()
        self.reader.refresh()
        return self.reader.fold

    def read_requests(self) -> bool:
        """Take new requests; True when there were any."""
        if not self.requests.refresh():
            return False
        self._asked_at = self.requests.apply_to(self.asked, self._asked_at)
        return True

    def keep_shortcut(self) -> None:
        """Spare later readers the journals of dead lives; a failure costs nothing but their time."""
        try:
            self.reader.refresh()
            self.reader.write_cache()
        except OSError as error:
            self.say(f"the shortcut over dead lives was not written: {error}")

    def left_s(self) -> float | None:
        """Time until the drain before the deadline; None without one."""
        if self.deadline_s is None:
            return None
        return self.deadline_s - self.options.drain_before_s - self.clock.mono()

    def say(self, text: str) -> None:
        """A line for the person who watches the worker; facts go to the journal."""
        if self.options.quiet:
            return
        try:
            sys.stderr.write(f"worker {self.life.id}: {text}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            return  # its file is on the full disk too, or its terminal is gone: no reason to stop working
