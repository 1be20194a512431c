"""The same work on many items, by as many processes as there are cores, where that pays.

Children are forked, so that nothing is imported again. What a child could not do, the parent does: a child that dies
costs time, never an answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
_MOST = 8


def processes_for(items: int, *, per_process: int) -> int:
    """How many processes pay for so many items. A process with threads is not forked."""
    threading = sys.modules.get("threading")
    if not hasattr(os, "fork") or (threading is not None and threading.active_count() > 1):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _MOST, items // per_process))


def spread(items: Sequence[Item], work: Callable[[Item], Result], processes: int) -> list[Result]:
    """`work` of each item, in order."""
    if processes <= 1:
        return [work(item) for item in items]
    import pickle  # noqa: F401  before the fork, for all

    children = [_start(items[number::processes], work) for number in range(1, processes)]
    results: list[list[Result]] = [[work(item) for item in items[::processes]]]
    for number, (pid, descriptor) in enumerate(children, start=1):
        mine = items[number::processes]
        some: list[Result] | None = _collect(pid, descriptor)
        results.append(some if some is not None and len(some) == len(mine) else [work(item) for item in mine])
    return [results[at % processes][at // processes] for at in range(len(items))]


def _start(items: Sequence[Item], work: Callable[[Item], Result]) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return pid, read_end
    import pickle

    # Whatever happens here, this process must not go on as its parent.
    status = 1
    try:
        os.close(read_end)
        with open(write_end, "wb") as pipe:
            pickle.dump([work(item) for item in items], pipe, pickle.HIGHEST_PROTOCOL)
        status = 0
    finally:
        os._exit(status)


def _collect(pid: int, descriptor: int) -> list[Result] | None:
    """What a child found; None where it came to no end."""
    import pickle

    with open(descriptor, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    if status != 0:
        return None
    try:
        found = pickle.loads(data)  # noqa: S301  our own child wrote it
    except (pickle.UnpicklingError, EOFError, ValueError):
        return None
    return found if isinstance(found, list) else None
