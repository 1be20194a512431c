"""Enqueue: descriptions become a few batches, each published whole, in memory that does not grow with their number.

An error in any line leaves the spool as it was. Enqueuing the same input again adds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

from fleetcraft.actions.assembly import Assembly
from fleetcraft.actions.intake import InputNotes, line_blocks
from fleetcraft.actions.shared import EnqueueOptions
from fleetcraft.core.errors import TaskInvalid
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import explain

__all__ = ["EnqueueOptions", "EnqueueResult", "enqueue_stream", "enqueue_tasks"]

SHOWN_NAMES = 20
_PROGRESS_TASKS = 10_000
# Below this folding finds nothing to do, and asking it would cost an import.
_MANY_BATCHES = 64

_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


@dataclass(slots=True)
class EnqueueResult:
    """What one enqueue did."""

    added: int = 0
    existing: int = 0  # there already with the same content, or repeated in the input
    batches: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # the first ones, in the order of the input
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


def enqueue_tasks(
    spool: Spool,
    tasks: Iterable[dict[str, Any] | str],
    options: EnqueueOptions,
    *,
    progress: Callable[[int], None] | None = None,
    keep_names: int = SHOWN_NAMES,
) -> EnqueueResult:
    """Enqueue descriptions (a text is a shell line). `progress` is told how many were taken so far.

    Raises TaskInvalid, NameTaken, StorageFull or OutOfReach.
    """
    with _assembly(spool, options, "task {}".format, keep_names) as (assembly, result):
        for number, task in enumerate(tasks, 1):
            if isinstance(task, str):
                assembly.add({"shell": task}, number)
            else:
                assembly.add(task, number)
            if progress is not None and number % _PROGRESS_TASKS == 0:
                progress(number)
        _publish(assembly, result, progress)
    _fold_many(spool, result)
    return result


def enqueue_stream(
    spool: Spool,
    source: BinaryIO,
    label: str,
    options: EnqueueOptions,
    *,
    progress: Callable[[int], None] | None = None,
    keep_names: int = SHOWN_NAMES,
) -> EnqueueResult:
    """Enqueue the lines of a file or of standard input, which `label` names in errors.

    Raises TaskInvalid, NameTaken, StorageFull or OutOfReach; every message about a line names it.
    """
    notes = InputNotes()

    def place(number: int) -> str:
        return f"{label}:{number}"

    with _assembly(spool, options, place, keep_names) as (assembly, result):
        for first, lines in line_blocks(source, label, notes):
            _TAKERS[options.form](assembly, first, lines, notes, label)
            if progress is not None:
                progress(assembly.groups.count)
        _publish(assembly, result, progress)
    result.notes[:0] = notes.sentences()
    _fold_many(spool, result)
    return result


@contextmanager
def _assembly(
    spool: Spool, options: EnqueueOptions, place: Callable[[int], str], keep_names: int
) -> Iterator[tuple[Assembly, EnqueueResult]]:
    """Collect and publish; whatever goes wrong, nothing unpublished stays behind."""
    started = spool.clock.mono()
    result = EnqueueResult()
    assembly = Assembly(spool, options, place, keep_names)
    try:
        yield assembly, result
    except OSError as error:
        assembly.groups.discard()
        raise explain(error, f"Cannot write into {spool.layout.root}") from error
    except BaseException:
        assembly.groups.discard()
        raise
    result.seconds = spool.clock.mono() - started


def _publish(assembly: Assembly, result: EnqueueResult, progress: Callable[[int], None] | None) -> None:
    if progress is not None:
        progress(assembly.groups.count)
    assembly.finish()
    for published in assembly.groups.publish():
        result.added += published.added
        result.existing += published.existing
        if published.batch is not None:
            result.batches.append(published.batch)
    result.names = assembly.groups.names
    result.notes = assembly.notes()


def _fold_many(spool: Spool, result: EnqueueResult) -> None:
    """Who enqueues one by one makes many small batches; whoever adds one keeps their number down."""
    if result.batches and len(spool.batches()) >= _MANY_BATCHES:
        from fleetcraft.spool.folding import maybe_fold  # most enqueues need none of it

        maybe_fold(spool)


def _take_json(
    assembly: Assembly, first: int, lines: list[bytes], notes: InputNotes, label: str, *, only: bool = False
) -> None:
    """A line that begins with `{` is JSON; with `only` every line must be, else any other is a plain line."""
    take = assembly.take_if_plain
    for number, raw in enumerate(lines, first):
        try:
            text = raw.decode("ascii")
            task, end = _scan(text, 0)
            if end == len(text) and "\\u" not in text and take(task, raw, number):
                continue
        except (ValueError, StopIteration, RecursionError):
            pass  # not plain ASCII JSON: the careful way finds out what it is
        word = raw.lstrip()[:1]
        if only or word == b"{":
            if word:
                assembly.add(_parse(raw, number, label, only=only), number)
        else:
            _take_shell(assembly, raw, word, number, notes)


def _take_lines(assembly: Assembly, first: int, lines: list[bytes], notes: InputNotes, label: str) -> None:
    """Every line is a plain line, also one that begins with `{`."""
    del label
    for number, raw in enumerate(lines, first):
        _take_shell(assembly, raw, raw.lstrip()[:1], number, notes)


_TAKERS: dict[str, Callable[[Assembly, int, list[bytes], InputNotes, str], None]] = {
    "auto": _take_json,
    "jsonl": partial(_take_json, only=True),
    "lines": _take_lines,
}


def _take_shell(assembly: Assembly, raw: bytes, word: bytes, number: int, notes: InputNotes) -> None:
    if word == b"#":
        notes.comments += 1
    elif word:
        # Undecodable bytes become surrogates, and the very same bytes again when the line is run.
        assembly.add_shell(raw.decode("utf-8", "surrogateescape"), number)


def _parse(raw: bytes, number: int, label: str, *, only: bool) -> Any:
    hint = "" if only else "A shell line that begins with { needs --form lines."
    try:
        task = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise TaskInvalid(
            f"{label}:{number}: byte {error.start + 1} of the line (0x{raw[error.start]:02x}) is not UTF-8.",
            hint="JSON is UTF-8; write other bytes as \\udc80 to \\udcff, or give a plain line.",
        ) from error
    except (ValueError, RecursionError) as error:
        what = f"{error.msg} (column {error.colno})" if isinstance(error, json.JSONDecodeError) else str(error)
        raise TaskInvalid(f"{label}:{number}: not valid JSON: {what}.", hint=hint) from error
    if not isinstance(task, dict):
        raise TaskInvalid(f"{label}:{number}: a task must be a JSON object, not {type(task).__name__}.")
    return task
