"""When work waited that a worker of some shape could have run: from enqueue times, starts and returns in the journals.

Held batches count from their start on only (when their conditions came true is not on record), and so do tasks that
a person opened again. Work is compatible by shape: GPUs, CPUs and memory; ceilings and permits are not looked at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.resources import Request
from fleetcraft.readmodel.gpu_attempts import Journals, ms
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool
from fleetcraft.usage.ledger_api import Interval
from fleetcraft.usage.ledger_profile import union

FOREVER_MS = 1 << 62


@dataclass(frozen=True, slots=True)
class Shape:
    """What a worker has to run tasks with."""

    gpus: int
    cpus: int
    memory_bytes: int | None = None

    def takes(self, request: Request, *, on_gpu: bool) -> bool:
        """True where a task of this kind would use what the ledger is about."""
        if request.gpus > self.gpus or (not request.exclusive and request.cpus > self.cpus):
            return False
        if request.vram_bytes and self.memory_bytes is not None and request.vram_bytes > self.memory_bytes:
            return False
        return bool(request.gpus or request.exclusive) or not on_gpu


@dataclass(slots=True)
class Queue:
    """How many tasks of each request waited, as steps in time."""

    steps: dict[Request, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, request: Request, moment_ms: int, change: int) -> None:
        """One step."""
        self.steps.setdefault(request, []).append((moment_ms, change))

    def waited(self, shape: Shape, *, on_gpu: bool) -> list[Interval]:
        """When anything waited that this worker could run."""
        found: list[Interval] = []
        for request, steps in self.steps.items():
            if shape.takes(request, on_gpu=on_gpu):
                found += _above_zero(steps)
        return union(found)


def _above_zero(steps: Iterable[tuple[int, int]]) -> list[Interval]:
    found: list[Interval] = []
    waiting, since_ms = 0, 0
    for moment_ms, change in sorted(steps, key=lambda step: (step[0], -step[1])):
        before, waiting = waiting, waiting + change
        if before <= 0 < waiting:
            since_ms = moment_ms
        elif waiting <= 0 < before:
            found.append((since_ms, moment_ms))
    if waiting > 0:
        found.append((since_ms, FOREVER_MS))
    return found


def read_queue(spool: Spool, reader: SpoolFold, journals: Journals) -> Queue:
    """The queue of the whole spool, over all time. `reader` must be fresh."""
    queue = Queue()
    first: dict[int, int] = {}
    for moment_ms, batch, *_ in journals.starts:
        first[batch] = min(first.get(batch, moment_ms), moment_ms)
    kinds: dict[int, tuple[Request, bool]] = {}
    for number, place in spool.places().items():
        request, held = place.cover.request, place.cover.held
        kinds[number] = (request, held)
        if not held:
            created_ms = ms(place.cover.header.get("created_utc", 0))
            # A batch that was folded into a larger one keeps its tasks and loses its own time.
            queue.add(request, min(created_ms, first.get(number, created_ms)), place.count)
    for moment_ms, batch, _index, count, gen, attempt in journals.starts:
        known = kinds.get(batch)
        if known is None:
            continue
        request, held = known
        if (held or gen) and attempt == 1:
            queue.add(request, moment_ms, count)
        queue.add(request, moment_ms, -count)
    _returned(reader, journals, kinds, queue)
    _cancelled(spool, journals, kinds, queue)
    return queue


def _returned(
    reader: SpoolFold, journals: Journals, kinds: dict[int, tuple[Request, bool]], queue: Queue
) -> None:  # fmt: skip
    """Attempts that ended with budget left go back; one that decided about its task does not."""
    last: dict[tuple[int, int, int], int] = {}
    for one in journals.attempts:
        key = (one.batch, one.index, one.gen)
        last[key] = max(last.get(key, 0), one.attempt)
    for one in journals.attempts:
        known = kinds.get(one.batch)
        if known is None or one.end_ms is None or one.is_final:
            continue
        if last[one.batch, one.index, one.gen] == one.attempt:
            state = reader.fold.verdict(one.batch, one.index).state
            if state is not None and state.ended:
                continue
        queue.add(known[0], one.end_ms + one.retry_ms, one.count)


def _cancelled(
    spool: Spool, journals: Journals, kinds: dict[int, tuple[Request, bool]], queue: Queue
) -> None:  # fmt: skip
    """Tasks that were cancelled before they started wait no more."""
    started: dict[int, set[int]] = {}
    cancels = list(_cancel_requests(spool))
    wanted = {batch for _, batch, _ in cancels}
    for _, batch, index, count, *_rest in journals.starts:
        if batch in wanted:
            started.setdefault(batch, set()).update(range(index, index + count))
    gone: set[tuple[int, int]] = set()
    for moment_ms, batch, pairs in cancels:
        known = kinds.get(batch)
        if known is None or known[1]:
            continue
        begun = started.get(batch, set())
        fresh = {
            (batch, index)
            for start, stop in pairs
            for index in range(start, stop)
            if index not in begun and (batch, index) not in gone
        }
        gone |= fresh
        if fresh:
            queue.add(known[0], moment_ms, -len(fresh))


def _cancel_requests(spool: Spool) -> Iterable[tuple[int, int, list[tuple[int, int]]]]:
    for body in read_requests(spool):
        if body.get("kind") == "cancel":
            for batch, _gen, pairs in body.get("items", ()):
                yield ms(body.get("at_utc", 0)), int(batch), [(int(start), int(stop)) for start, stop in pairs]


def read_requests(spool: Spool) -> list[dict[str, Any]]:
    """What people asked, in order of time; what cannot be read is left out."""
    found: list[dict[str, Any]] = []
    for name in spool.files.names(spool.layout.requests)[0]:
        if not name.endswith(".json"):
            continue
        try:
            body = json.loads(spool.files.read(os.path.join(spool.layout.requests, name)))
        except (OSError, ValueError):
            continue
        if isinstance(body, dict):
            found.append(body)
    return sorted(found, key=lambda body: float(body.get("at_utc", 0)))
