"""Who holds a device: our processes, told from those of others by the user that runs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fleetcraft.telemetry.api import GpuProcess, Reason
from fleetcraft.telemetry.nvml_errors import is_blank

# Where pids mean what the driver means by them: the number is fixed in the kernel.
_FIRST_NAMESPACE = "pid:[4026531836]"
# The drivers in between fill the list of processes with the wrong structure.
_BROKEN_FROM, _BROKEN_TO = (535, 43), (535, 86)


def is_own(pid: int) -> bool | None:
    """Whether the process is of this user; None when /proc shows no such process."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except OSError:
        return None


def sees_all_pids() -> bool:
    """False inside a pid namespace (a container), where the driver's pids are not ours."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE
    except OSError:
        return False


def lists_wrongly(driver: str) -> bool:
    """Whether this driver is known for a broken list of processes."""
    parts = driver.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return False
    return _BROKEN_FROM <= (int(parts[0]), int(parts[1])) <= _BROKEN_TO


def processes_of(infos: Sequence[Any]) -> tuple[GpuProcess, ...]:
    """What the driver lists, each with its own memory; None where it does not say."""
    found = []
    for info in infos:
        memory = info.usedGpuMemory
        found.append(
            GpuProcess(pid=int(info.pid), memory_bytes=None if memory is None or is_blank(memory) else int(memory))
        )
    return tuple(found)


@dataclass(slots=True)
class _Side:
    pids: int = 0
    memory_bytes: int = 0
    unknown: bool = False

    def add(self, process: GpuProcess) -> None:
        self.pids += 1
        if process.memory_bytes is None:
            self.unknown = True
        else:
            self.memory_bytes += process.memory_bytes


class Owners:
    """Tells ours from others' on one device; it remembers which pids nobody could find the last time."""

    def __init__(self, own: Callable[[int], bool | None], *, all_pids: bool) -> None:
        self._own = own
        self._all_pids = all_pids
        self._unseen: frozenset[int] = frozenset()

    def split(self, processes: Sequence[GpuProcess]) -> dict[str, float | Reason]:
        """Counts and memory by field name; a memory is a reason when one of its processes has none told."""
        ours, others, unseen = _Side(), _Side(), set()
        for process in processes:
            own = self._own(process.pid)
            if own is not None:
                (ours if own else others).add(process)
                continue
            unseen.add(process.pid)
            # Gone between list and look is forgotten. Listed twice and never seen is somebody whom /proc hides.
            if self._all_pids and process.pid in self._unseen:
                others.add(process)
        self._unseen = frozenset(unseen)
        if unseen and not self._all_pids:
            return dict.fromkeys(
                ("own_pids", "own_memory_bytes", "foreign_pids", "foreign_memory_bytes"), Reason.UNTRUSTED
            )
        return {
            "own_pids": ours.pids,
            "own_memory_bytes": Reason.UNSUPPORTED if ours.unknown else ours.memory_bytes,
            "foreign_pids": others.pids,
            "foreign_memory_bytes": Reason.UNSUPPORTED if others.unknown else others.memory_bytes,
        }
