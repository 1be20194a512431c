"""The seam to /proc: what the kernel says about processes, and the only way a single one is signalled."""

from __future__ import annotations

import os
from typing import NamedTuple

from fleetcraft.spool import host

_GONE = ("Z", "X", "x")


class Seen(NamedTuple):
    """A process as /proc showed it; pid and start time name it for ever."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int
    is_gone: bool = False  # it runs nothing any more and waits to be collected


class ProcessTable:
    """The seam to /proc; every answer may be out of date when it arrives."""

    def pids(self) -> list[int]:
        """Every process."""
        return host.all_pids()

    def look(self, pid: int) -> Seen | None:
        """The process with that pid, one that waits to be collected included, or None."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as source:
                raw = source.read()
        except OSError:
            return None
        fields = raw[raw.rindex(b")") + 2 :].split()
        state = fields[0].decode("ascii", "replace")
        # The first thread may be over while others of the process run.
        is_gone = state in _GONE and int(fields[17]) < 2
        return Seen(pid, state, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), is_gone)

    def mark(self, pid: int) -> str | None:
        """The attempt that its environment names; None when it names none, or may not be read."""
        try:
            with open(f"/proc/{pid}/environ", "rb") as source:
                content = b"\0" + source.read()
        except OSError:
            return None
        _, found, rest = content.partition(b"\0" + host.MARK_VARIABLE.encode() + b"=")
        return os.fsdecode(rest.partition(b"\0")[0]) if found else None

    def is_thread(self, pid: int) -> bool:
        """True for a number that is a thread of some process, not a process."""
        try:
            with open(f"/proc/{pid}/status", "rb") as source:
                return b"\nTgid:\t%d\n" % pid not in source.read()
        except OSError:
            return True

    def where(self, pid: int) -> str:
        """State and waiting channel: the evidence for a process that does not end."""
        seen = self.look(pid)
        return f"state {seen.state if seen else 'unknown'}, in {host.waiting_channel(pid) or 'unknown'}"

    def send(self, pid: int, number: int) -> None:
        """Signal one process. Raises OSError."""
        os.kill(pid, number)
