"""Which commands this process runs just now, for whoever looks through its children and must leave them alone.

Every command is the leader of its own session, so its pid names all that belongs to it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Running:
    """The commands of one process, whichever thread runs them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: set[int] = set()
        self._starting = 0

    @contextmanager
    def starting(self) -> Iterator[None]:
        """While a command is being started: its process may be there already, and nobody knows its pid yet."""
        with self._lock:
            self._starting += 1
        try:
            yield
        finally:
            with self._lock:
                self._starting -= 1

    def began(self, pid: int) -> None:
        """Take note of a command, before its start counts as over."""
        with self._lock:
            self._sessions.add(pid)

    def ended(self, pid: int) -> None:
        """It is about to be collected, and its pid may be given to another process then."""
        with self._lock:
            self._sessions.discard(pid)

    def is_starting(self) -> bool:
        """True while a child of ours may be a command that is not known as one yet."""
        with self._lock:
            return self._starting > 0

    def is_command(self, session: int) -> bool:
        """True for the session of a command that runs."""
        with self._lock:
            return session in self._sessions


RUNNING = Running()
