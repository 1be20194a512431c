"""Names are unique in a spool: finding, among very many, the tasks of a new batch whose names exist already.

Only hashes of names are compared at first, in parts, so that memory stays flat. Equal hashes prove nothing:
40 bits meet by chance among a million names, so every such pair is settled by its two lines.
"""

from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, overload

from fleetcraft.core.errors import NameTaken
from fleetcraft.core.resources import Request
from fleetcraft.core.task import canonical
from fleetcraft.spool.ledger import MAX_BATCH_TASKS, POSITION_BITS, Batch
from fleetcraft.store.files import Files, write_all

_PARTITIONS = 64
_POSITION_MASK = MAX_BATCH_TASKS - 1
# How many more entries one side must have before looking each of the few up beats walking both.
_FEW = 16
# Short enough that lines of 100 KB each do no harm, long enough that opening the file costs little.
_STRETCH_TASKS = 256
_PAIRS_AT_ONCE = 1 << 16
# What does not make a task another one: who may run it when, and how its environment was found.
_NOT_CONTENT = frozenset({"base_env", "env_digest", "python", "notify", "tags", "name"})


class Ours(Protocol):
    """A batch on its way: what the comparison needs of it."""

    @property
    def request(self) -> Request: ...
    @property
    def defaults(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def place(self) -> Callable[[int], str]: ...
    @property
    def count(self) -> int: ...
    @property
    def runs(self) -> Sequence[Sequence[int]]: ...

    def lines_at(self, positions: Iterable[int]) -> Iterator[bytes]:
        """The lines at sorted positions."""
        ...


@dataclass(slots=True)
class Known:
    """Positions that need not be published, one byte each, and the batches that hold their tasks."""

    marks: bytearray = field(default_factory=bytearray)
    batches: set[int] = field(default_factory=set)

    def mark(self, position: int) -> None:
        """This position is there already."""
        if len(self.marks) <= position:
            self.marks.extend(bytes(position + 1 - len(self.marks)))
        self.marks[position] = 1

    def left(self, count: int) -> list[tuple[int, int]]:
        """The stretches of `count` positions that are not there."""
        found: list[tuple[int, int]] = []
        marks = self.marks + bytes(count - len(self.marks))
        stop = 0
        while (start := marks.find(0, stop)) >= 0:
            stop = marks.find(1, start)
            stop = count if stop < 0 else stop
            found.append((start, stop))
        return found


def task_content(task: Mapping[str, Any], request: Request) -> bytes:
    """What decides whether two tasks of one name are the same."""
    return canonical([{key: value for key, value in task.items() if key not in _NOT_CONTENT}, request.as_json()])


class Spill:
    """Sorted runs of name entries in a file without a name, so that a million names take no memory."""

    __slots__ = ("_files", "_reader", "_writer", "runs")

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._writer = files.open_new(path)
        try:
            self._reader = files.open_read(path)
        finally:
            files.unlink(path)  # it ends with us, however we end
        self.runs: list[SpilledRun] = []

    def add(self, entries: array[int]) -> None:
        """Write one sorted run. Raises OSError."""
        start = sum(map(len, self.runs))
        write_all(self._files, self._writer, entries.tobytes())
        self.runs.append(SpilledRun(self._reader, start, len(entries)))

    def close(self) -> None:
        """Let the file go."""
        os.close(self._writer)
        os.close(self._reader)


class SpilledRun(Sequence[int]):
    """One sorted run in a file; every look reads just what is asked for."""

    __slots__ = ("_descriptor", "_length", "_start")

    def __init__(self, descriptor: int, start: int, length: int) -> None:
        self._descriptor = descriptor
        self._start = start
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> array[int]: ...

    def __getitem__(self, place: int | slice) -> int | array[int]:
        if isinstance(place, slice):
            first, last, _ = place.indices(self._length)
            return self._read(first, max(first, last))
        if not 0 <= place < self._length:
            raise IndexError(place)
        return self._read(place, place + 1)[0]

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])

    def _read(self, first: int, last: int) -> array[int]:
        return array("Q", os.pread(self._descriptor, 8 * (last - first), 8 * (self._start + first)))


def entries_between(runs: Sequence[Sequence[int]], low: int, high: int) -> list[int]:
    """The sorted entries of several sorted runs between two values."""
    found: list[int] = []
    for run in runs:
        found.extend(run[bisect_left(run, low) : bisect_left(run, high)])
    found.sort()
    return found


def partitions() -> list[tuple[int, int]]:
    """The range of all entries in parts."""
    step = (1 << 64) // _PARTITIONS
    return [(part * step, (part + 1) * step) for part in range(_PARTITIONS)]


def find_repeated(ours: Ours, known: Known) -> None:
    """Mark positions that repeat a name of this very batch with the same content. Raises NameTaken."""
    groups: list[list[int]] = []
    for low, high in partitions():
        entries = entries_between(ours.runs, low, high)
        hashes = [entry >> POSITION_BITS for entry in entries]
        if len(set(hashes)) == len(hashes):
            continue
        groups.extend(members for _, members in _grouped(entries) if len(members) > 1)
    wanted = sorted({position for members in groups for position in members})
    lines = dict(zip(wanted, ours.lines_at(wanted), strict=True)) if wanted else {}
    for members in groups:
        firsts: dict[str, tuple[int, Any]] = {}
        for position in sorted(members):
            task = json.loads(lines[position])
            first = firsts.setdefault(task["name"], (position, task))
            if first[0] == position:
                continue
            if first[1] != task:
                raise _taken_inside(task["name"], ours.place(position), ours.place(first[0]))
            known.mark(position)


def _grouped(entries: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Positions by equal hash, from sorted entries."""
    members: list[int] = []
    current = -1
    for entry in entries:
        hashed = entry >> POSITION_BITS
        if hashed != current:
            if members:
                yield current, members
            current, members = hashed, []
        members.append(entry & _POSITION_MASK)
    if members:
        yield current, members


def check_across(batches: Sequence[Ours]) -> None:
    """Raise NameTaken when two batches of one enqueue hold a name with different content."""
    if len(batches) < 2:
        return
    for low, high in partitions():
        seen: dict[int, list[tuple[Ours, int]]] = {}
        for ours in batches:
            for entry in entries_between(ours.runs, low, high):
                owners = seen.setdefault(entry >> POSITION_BITS, [])
                for other, position in owners:
                    if other is not ours:
                        _compare_across(other, position, ours, entry & _POSITION_MASK)
                owners.append((ours, entry & _POSITION_MASK))


def _compare_across(one: Ours, first: int, other: Ours, second: int) -> None:
    left = {**one.defaults[0], **json.loads(next(one.lines_at([first])))}
    right = {**other.defaults[0], **json.loads(next(other.lines_at([second])))}
    if left["name"] == right["name"] and task_content(left, one.request) != task_content(right, other.request):
        raise _taken_inside(right["name"], other.place(second), one.place(first))


def _taken_inside(name: str, place: str, first: str) -> NameTaken:
    return NameTaken(
        f"{place}: the name {name!r} stands at {first} with other content.",
        hint="A name is unique in its spool; rename one of the two.",
    )


def find_known(ours: Ours, batches: Sequence[Batch], known: Known) -> None:
    """Mark the positions of ours whose name and content are in `batches` already. Raises NameTaken."""
    matches = _matches(ours, batches)
    alike = _Alike(ours)
    while pairs := list(islice(matches, _PAIRS_AT_ONCE)):
        pairs.sort(key=lambda pair: pair[0])
        lines = _theirs(pairs)
        for (mine, batch, position), raw in zip(pairs, _each(ours, [pair[0] for pair in pairs]), strict=True):
            other_raw = lines[batch.number, position]
            plainly = raw == other_raw and alike.is_alike(batch, position)
            if plainly or _is_same(ours, mine, raw, batch, position, other_raw):
                known.mark(mine)
                known.batches.add(batch.number)


@dataclass(slots=True)
class _Alike:
    """Whether equal lines mean equal tasks: the same request, and shared values that say the same."""

    ours: Ours
    _answers: dict[tuple[int, int], bool] = field(default_factory=dict)

    def is_alike(self, batch: Batch, position: int) -> bool:
        folded = batch.folded_at(position)
        key = (batch.number, folded.defaults if folded else 0)
        answer = self._answers.get(key)
        if answer is None:
            left = task_content(self.ours.defaults[0], self.ours.request)
            answer = left == task_content(batch.defaults(position), batch.request)
            self._answers[key] = answer
        return answer


def _each(ours: Ours, positions: Sequence[int]) -> Iterator[bytes]:
    """The lines at sorted positions that may repeat."""
    lines = ours.lines_at(sorted(set(positions)))
    last, line = -1, b""
    for position in positions:
        if position != last:
            last, line = position, next(lines)
        yield line


def _matches(ours: Ours, batches: Sequence[Batch]) -> Iterator[tuple[int, Batch, int]]:
    """(our position, batch, its position) wherever the hashes of two names agree."""
    alike: list[tuple[Batch, Sequence[int]]] = []
    for batch in batches:
        theirs = batch.name_entries()
        if len(theirs) * _FEW < ours.count:
            for place, mine in _looked_up([theirs], ours.runs):
                yield mine, batch, place
        elif ours.count * _FEW < len(theirs):
            for mine, place in _looked_up(ours.runs, [theirs]):
                yield mine, batch, place
        else:
            alike.append((batch, theirs))
    if alike:
        yield from _walked(ours, alike)


def _looked_up(few: Sequence[Sequence[int]], many: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """(position in few, position in many) wherever hashes agree."""
    for run in few:
        for entry in run:
            for other in many:
                for position in _positions(other, entry >> POSITION_BITS):
                    yield entry & _POSITION_MASK, position


def _walked(ours: Ours, alike: Sequence[tuple[Batch, Sequence[int]]]) -> Iterator[tuple[int, Batch, int]]:
    """The same for batches as large as ours: part by part, so that one part of ours is in memory."""
    for low, high in partitions():
        mine_by_hash = dict(_grouped(entries_between(ours.runs, low, high)))
        for batch, theirs in alike if mine_by_hash else ():
            for entry in theirs[bisect_left(theirs, low) : bisect_left(theirs, high)]:
                for mine in mine_by_hash.get(entry >> POSITION_BITS, ()):
                    yield mine, batch, entry & _POSITION_MASK


def _positions(entries: Sequence[int], hashed: int) -> Iterator[int]:
    place = bisect_left(entries, hashed << POSITION_BITS)
    while place < len(entries) and entries[place] >> POSITION_BITS == hashed:
        yield entries[place] & _POSITION_MASK
        place += 1


def _theirs(pairs: Sequence[tuple[int, Batch, int]]) -> dict[tuple[int, int], bytes]:
    """Their lines, read in stretches: one open file per stretch instead of one per line."""
    wanted: dict[int, tuple[Batch, set[int]]] = {}
    for _, batch, position in pairs:
        wanted.setdefault(batch.number, (batch, set()))[1].add(position)
    found: dict[tuple[int, int], bytes] = {}
    for number, (batch, numbers) in wanted.items():
        for position, line in read_lines_at(batch, sorted(numbers)):
            found[number, position] = line
    return found


def read_lines_at(batch: Batch, positions: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """(position, line) for sorted positions of a published batch."""
    at = 0
    while at < len(positions):
        first = positions[at]
        end = bisect_left(positions, first + _STRETCH_TASKS, at)
        stretch = batch.lines(first, positions[end - 1] + 1)
        for position in positions[at:end]:
            yield position, stretch[position - first]
        at = end


def _is_same(ours: Ours, mine: int, raw: bytes, batch: Batch, position: int, other_raw: bytes) -> bool:
    """True when both lines say the same; False when only the hashes agree. Raises NameTaken."""
    line, other_line = json.loads(raw), json.loads(other_raw)
    if line["name"] != other_line["name"]:
        return False
    task, other = {**ours.defaults[0], **line}, batch.complete(position, other_line)
    if task_content(task, ours.request) != task_content(other, batch.request):
        changed = sorted(
            key for key in task.keys() | other.keys() if key not in _NOT_CONTENT and task.get(key) != other.get(key)
        )
        what = ", ".join(changed) or "the resources"
        raise NameTaken(
            f"{ours.place(mine)}: the name {line['name']!r} exists already with other content ({what} differ); "
            f"the first is task {batch.origin(position)}.",
            hint=f"See it with `fleetcraft task show {_quoted(line['name'])}`, or choose another name.",
        )
    return True


def _quoted(name: str) -> str:
    import shlex  # only when an error is being written

    return shlex.quote(name)
