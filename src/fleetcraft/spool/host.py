"""What identifies a process for ever: machine, boot, pid namespace, pid and start time; and who is still there.

Only what /proc says is used, so nothing here needs a tool or a privilege.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

# Every child of a worker life carries this variable, so that its descendants can be found whatever they did.
LIFE_VARIABLE = "FLEETCRAFT_LIFE"
# One attempt's processes; the value is unique for ever. (FLEETCRAFT_ATTEMPT is the number, for people.)
MARK_VARIABLE = "FLEETCRAFT_MARK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process life."""

    life: str
    kind: str  # "worker", or "maintenance" for a command that needed to own something for a moment
    host: str
    machine_id: str | None
    boot_id: str | None
    pid: int
    pid_namespace: str | None
    start_ticks: int | None
    nonce: str
    job_id: str | None
    created_utc: float
    job_restarts: int | None = None  # how often the scheduler had started the job anew when this life began

    def as_json(self) -> dict[str, Any]:
        """The content of identity.json."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Identity:
        """Read identity.json; raises KeyError or TypeError on foreign content."""
        values = {name: data[name] for name in cls.__slots__ if name != "job_restarts"}
        return cls(**values, job_restarts=data.get("job_restarts"))


def _line(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as source:
            return source.readline().strip() or None
    except (OSError, ValueError):
        return None


def boot_id() -> str | None:
    """Id of this boot of this kernel."""
    return _line("/proc/sys/kernel/random/boot_id")


def machine_id() -> str | None:
    """Id of this installation, where it has one."""
    return _line("/etc/machine-id")


def host_name() -> str:
    """The host's name as the kernel has it."""
    return socket.gethostname() or "host"


def pid_namespace() -> str | None:
    """The namespace in which our pids mean something."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it."""

    pid: int
    state: str
    parent: int
    start_ticks: int

    @property
    def is_gone(self) -> bool:
        """True for a zombie: it runs nothing any more and only waits to be collected."""
        return self.state in ("Z", "X", "x")


def process(pid: int) -> Process | None:
    """The process with that pid, or None when there is none (or /proc cannot tell: see `can_see_processes`)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as source:
            raw = source.read()
    except OSError:
        return None
    # The command name stands in parentheses and may itself hold spaces and parentheses.
    fields = raw[raw.rindex(b")") + 2 :].split()
    return Process(pid, fields[0].decode("ascii", "replace"), int(fields[1]), int(fields[19]))


def can_see_processes() -> bool:
    """True when /proc shows our own process, so that a missing pid means a missing process."""
    return process(os.getpid()) is not None


def all_pids() -> list[int]:
    """Every pid that /proc lists."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environment_has(pid: int, variable: str, value: str) -> bool | None:
    """Whether a process was started with that variable; None when we may not look (not our process)."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as source:
            content = source.read()
    except PermissionError:
        return None
    except OSError:
        return False
    return f"{variable}={value}".encode() in content.split(b"\0")


def processes_marked(variable: str, value: str) -> list[Process]:
    """Our living processes that carry the marker, whatever their parent, group or session is."""
    mine = os.getuid()
    found: list[Process] = []
    for pid in all_pids():
        try:
            if os.stat(f"/proc/{pid}").st_uid != mine:
                continue
        except OSError:
            continue
        if environment_has(pid, variable, value):
            seen = process(pid)
            if seen is not None and not seen.is_gone:
                found.append(seen)
    return found


def waiting_channel(pid: int) -> str | None:
    """Where in the kernel a process sleeps: the evidence for one that cannot be ended."""
    return _line(f"/proc/{pid}/wchan")
