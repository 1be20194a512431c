"""Finding tasks by name in bulk, and the nearest name for an error."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from fleetcraft.core.names import TaskId
from fleetcraft.spool.ledger import MAX_BATCH_TASKS, POSITION_BITS, Batch, name_hash
from fleetcraft.spool.spool import Spool
from fleetcraft.spool.uniqueness import read_lines_at

_FEW = 64
_NEAREST_LOOKS = 20_000
_SCAN_TASKS = 1024


def find_names(spool: Spool, names: Collection[str]) -> dict[str, TaskId]:
    """The ids of those names that exist; very many are found by one walk over the hashes of each batch."""
    if len(names) <= _FEW:
        single = ((name, spool.find(name)) for name in names)
        return {name: task for name, task in single if task is not None}
    by_hash: dict[int, list[str]] = {}
    for name in names:
        by_hash.setdefault(name_hash(name), []).append(name)
    found: dict[str, TaskId] = {}
    for batch in spool.batches():
        positions = sorted(
            entry & (MAX_BATCH_TASKS - 1) for entry in batch.name_entries() if entry >> POSITION_BITS in by_hash
        )
        for position, raw in read_lines_at(batch, positions):
            name = json.loads(raw)["name"]
            if name in by_hash.get(name_hash(name), ()):
                found[name] = batch.origin(position)
    return found


def scan_lines(batch: Batch, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """(position, line) of a stretch of any length, in memory that stays flat."""
    for low in range(start, stop, _SCAN_TASKS):
        high = min(stop, low + _SCAN_TASKS)
        yield from enumerate(batch.lines(low, high), low)


def recent_names(spool: Spool) -> Iterator[str]:
    """Names of tasks, the newest batches first."""
    for batch in reversed(spool.batches()):
        for _, raw in scan_lines(batch, 0, batch.count):
            yield json.loads(raw)["name"]


def nearest(word: str, candidates: Iterable[str]) -> str:
    """A sentence that names the most similar candidate, or nothing."""
    import difflib  # only when an error is being written

    close = difflib.get_close_matches(word, list(islice(candidates, _NEAREST_LOOKS)), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
