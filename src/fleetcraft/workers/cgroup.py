"""How often the kernel killed something of this cgroup for lack of memory; None where it does not say."""

from __future__ import annotations

import os
from functools import cache


@cache
def _events_descriptor() -> tuple[int, bytes] | None:
    """An open file that counts kills, and the key of the count. Opened once: it is read after each failed task."""
    for path, key in _candidates():
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC), key
        except OSError:
            continue
    return None


def _candidates() -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    try:
        with open("/proc/self/cgroup", encoding="ascii", errors="replace") as source:
            lines = source.read().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found.append((f"/sys/fs/cgroup{path}/memory.events", b"oom_kill"))
            found.append((f"/sys/fs/cgroup/unified{path}/memory.events", b"oom_kill"))
        elif "memory" in controllers.split(","):
            found.append((f"/sys/fs/cgroup/memory{path}/memory.oom_control", b"oom_kill"))
    return found


def oom_kills() -> int | None:
    """The count now, or None when it cannot be read."""
    opened = _events_descriptor()
    if opened is None:
        return None
    try:
        content = os.pread(opened[0], 4096, 0)
    except OSError:
        return None
    for line in content.splitlines():
        name, _, value = line.partition(b" ")
        if name == opened[1] and value.isdigit():
            return int(value)
    return None
