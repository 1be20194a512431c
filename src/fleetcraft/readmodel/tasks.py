"""Tasks one after another, with what their last attempt left: a stream, so that a million of them cost no memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from fleetcraft.core.names import TaskId
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.states import TaskState
from fleetcraft.readmodel.picture import Picture, take_picture
from fleetcraft.readmodel.receipts import ReceiptIndex
from fleetcraft.readmodel.records import host_of
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Place, Spool

_CHUNK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """One task. The fields from `worker` on come from its last attempt and are None where there was none."""

    name: str
    id: TaskId
    state: TaskState
    batch: int
    attempts: int
    tags: tuple[str, ...]
    after: tuple[str, ...]
    worker: str | None = None
    host: str | None = None
    slot: int | None = None
    gpus: tuple[str, ...] = ()
    started_utc: float | None = None
    ended_utc: float | None = None
    wall_s: float | None = None
    cpu_s: float | None = None
    max_rss_bytes: int | None = None
    outcome: str | None = None
    exit: int | None = None
    signal: int | None = None
    cause: str | None = None
    error: str | None = None
    outputs: tuple[Mapping[str, Any], ...] = ()
    value: Any = None

    def as_json(self) -> dict[str, Any]:
        """For the JSON document."""
        return {name: getattr(self, name) for name in self.__slots__} | self.as_brief_json() | {"gpus": list(self.gpus)}

    def as_brief_json(self) -> dict[str, Any]:
        """The same without the last attempt."""
        return {
            "name": self.name,
            "id": str(self.id),
            "state": self.state.value,
            "batch": self.batch,
            "attempts": self.attempts,
            "tags": list(self.tags),
            "after": list(self.after),
        }


def list_tasks(
    spool: Spool,
    *,
    states: Collection[TaskState] = (),
    tags: Collection[str] = (),
    batch: int | None = None,
    pattern: str | None = None,
    limit: int | None = None,
    details: bool = False,
    reader: SpoolFold | None = None,
) -> Iterator[TaskView]:
    """Tasks in the order of their ids. Empty `states` means all; every one of `tags` must be there.

    With `details` the last attempt is read from the journals. Raises OSError.
    """
    picture = take_picture(spool, reader)
    rows = _rows(picture, states, tags, batch, pattern)
    if not details:
        yield from islice(rows, limit)
        return
    if limit is not None:
        # Few rows: find them first, so that only their records are located.
        chosen = list(islice(rows, limit))
        wanted: dict[int, RangeSet] = {}
        for row in chosen:
            wanted.setdefault(row.id.batch, RangeSet()).add(row.id.index, row.id.index + 1)
        rows = iter(chosen)
    else:
        wanted = {number: _selected(picture, number, place, states) for number, place in _places(picture, batch)}
    index = ReceiptIndex(picture, {number: ranges for number, ranges in wanted.items() if ranges})
    hosts: dict[str, str | None] = {}
    for row in rows:
        yield with_last_attempt(row, index.find(row.id.batch, row.id.index), picture.reader, hosts)


def _places(picture: Picture, batch: int | None) -> Iterator[tuple[int, Place]]:
    for number, place in sorted(picture.spool.places().items()):
        if batch is None or number == batch:
            yield number, place


def _selected(picture: Picture, number: int, place: Place, states: Collection[TaskState]) -> RangeSet:
    if not states:
        return RangeSet([(0, place.count)])
    found = RangeSet()
    for state in states:
        for start, stop in picture.states.get(number, {}).get(state, RangeSet()):
            found.add(start, stop)
    return found


def _rows(
    picture: Picture, states: Collection[TaskState], tags: Collection[str], batch: int | None, pattern: str | None
) -> Iterator[TaskView]:
    wanted_tags = set(tags)
    for number, place in _places(picture, batch):
        for start, stop in _selected(picture, number, place, states):
            for low in range(start, stop, _CHUNK):
                high = min(stop, low + _CHUNK)
                names = _states_of(picture, number, low, high)
                lines = place.cover.lines(place.offset + low, place.offset + high)
                for index, raw in enumerate(lines, low):
                    line = json.loads(raw)
                    if pattern is not None and not fnmatchcase(line["name"], pattern):
                        continue
                    task = place.cover.complete(place.offset + index, line)
                    if wanted_tags and not wanted_tags <= set(task.get("tags") or ()):
                        continue
                    yield _row(picture, number, index, task, names[index - low])


def _states_of(picture: Picture, number: int, low: int, high: int) -> list[TaskState]:
    names = [TaskState.WAITING] * (high - low)
    for state, ranges in picture.states.get(number, {}).items():
        for start, stop in ranges.within(low, high):
            names[start - low : stop - low] = [state] * (stop - start)
    return names


def _row(picture: Picture, number: int, index: int, task: Mapping[str, Any], state: TaskState) -> TaskView:
    fold = picture.reader.fold
    if (number, index) in fold.events or (number, index) in fold.generations or state is TaskState.RUNNING:
        attempts = fold.verdict(number, index).attempt
    else:
        attempts = 1 if state is TaskState.SUCCEEDED else 0
    return TaskView(
        name=task["name"],
        id=TaskId(number, index),
        state=state,
        batch=number,
        attempts=attempts,
        tags=tuple(task.get("tags") or ()),
        after=tuple(task.get("after") or ()),
    )


def with_last_attempt(
    row: TaskView, found: tuple[str, dict[str, Any]] | None, reader: SpoolFold, hosts: dict[str, str | None]
) -> TaskView:
    """The same task with what its last attempt left."""
    if found is None:
        return row
    life, record = found
    if record.get("t") == "lost":
        life = record.get("life", life)
    if life not in hosts:
        hosts[life] = host_of(reader, life)
    facts = attempt_facts(record, row.id.index)
    return TaskView(
        name=row.name, id=row.id, state=row.state, batch=row.batch, attempts=row.attempts, tags=row.tags,
        after=row.after, worker=life, host=hosts[life],
        **{name: facts[name] for name in _FACTS},
    )  # fmt: skip


_FACTS = (
    "slot", "gpus", "started_utc", "ended_utc", "wall_s", "cpu_s", "max_rss_bytes", "outcome", "exit", "signal",
    "cause", "error", "outputs", "value",
)  # fmt: skip


def attempt_facts(record: Mapping[str, Any], index: int) -> dict[str, Any]:
    """What one record says about one task, in the words that are shown; None where it says nothing."""
    count = int(record.get("k", 1))
    offset = index - int(record.get("i", index))
    walls, values = record.get("walls_us"), record.get("values")
    wall_s = record.get("wall")
    if count > 1:
        wall_s = walls[offset] / 1e6 if isinstance(walls, list) and offset < len(walls) else None
    value = record.get("value")
    if isinstance(values, list) and offset < len(values):
        value = values[offset]
    rss_kib, cpu_s = record.get("rss_kib"), record.get("cpu")
    return {
        "slot": record.get("s"),
        "gpus": tuple(record.get("gpus") or ()),
        "started_utc": record.get("at"),
        "ended_utc": record.get("end"),
        "wall_s": wall_s,
        # The kernel counts CPU time for the whole group of calls; one of them has no figure of its own.
        "cpu_s": cpu_s if count == 1 else None,
        "max_rss_bytes": rss_kib * 1024 if isinstance(rss_kib, int) and count == 1 else None,
        "outcome": "lost" if record.get("t") == "lost" else record.get("o"),
        "exit": record.get("exit"),
        "signal": record.get("signal"),
        "cause": record.get("cause") or None,
        "error": record.get("error"),
        "outputs": tuple(record.get("outputs") or ()),
        "value": value,
    }
