"""The output of one attempt: a byte range of its slot's file, or all that is there from its start on while it runs."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fleetcraft.core.errors import FleetcraftError, UsageError
from fleetcraft.core.states import TaskState
from fleetcraft.readmodel.detail import AttemptView, TaskDetail, detail_of, show_task
from fleetcraft.readmodel.records import scan
from fleetcraft.spool.life import LIVE, find_state
from fleetcraft.spool.logs import log_name, read_log
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import GONE

_CHUNK_BYTES = 1 << 20
FOLLOW_S = 0.2


class LogGone(FleetcraftError):
    """The output existed and is not there any more."""

    code = "log_gone"


def choose_attempt(detail: TaskDetail, attempt: int | None) -> AttemptView:
    """The attempt with that number, else the one that decided, else the last. Raises UsageError."""
    if not detail.attempts:
        raise UsageError(
            f"Task {detail.name!r} has no output: it is {detail.state.value} and was not started yet.",
            hint=f"See `fleetcraft why task {detail.name}`.",
        )
    chosen = [view for view in detail.attempts if attempt is None or view.attempt == attempt]
    if not chosen:
        numbers = ", ".join(str(view.attempt) for view in detail.attempts)
        raise UsageError(f"Task {detail.name!r} has no attempt {attempt}; it has {numbers}.")
    event = detail.verdict.event
    if attempt is None and event is not None and detail.verdict.state is not None:
        decided = [
            view for view in chosen if (view.gen, view.attempt, view.worker) == (event.gen, event.attempt, event.life)
        ]
        chosen = decided or chosen
    return chosen[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLog:
    """The output of one attempt, and which attempt that is."""

    detail: TaskDetail
    attempt: AttemptView
    chunks: Iterator[bytes]


def open_log(
    spool: Spool,
    name: str,
    attempt: int | None = None,
    *,
    follow: bool = False,
    wait: Callable[[float], None] = time.sleep,
    reader: SpoolFold | None = None,
) -> TaskLog:
    """Find what an attempt wrote; the bytes are read as they are asked for.

    With `follow` they come until the attempt ends, and a task that was not started is waited for.
    Raises TaskUnknown, UsageError, OSError; reading the chunks raises LogGone, OSError.
    """
    reader = reader or SpoolFold(spool)
    detail = show_task(spool, name, reader)
    if follow:
        while not detail.attempts and not detail.state.ended and detail.state is not TaskState.BLOCKED:
            wait(FOLLOW_S)
            detail = detail_of(spool, detail.id, reader)
    view = choose_attempt(detail, attempt)
    chunks = _bytes_of(spool, detail, view, follow=follow, wait=wait, reader=reader)
    return TaskLog(detail=detail, attempt=view, chunks=chunks)


def task_log(spool: Spool, name: str, attempt: int | None = None, **how: Any) -> Iterator[bytes]:
    """The bytes that an attempt wrote; `how` as in `open_log`."""
    return open_log(spool, name, attempt, **how).chunks


def _bytes_of(
    spool: Spool,
    detail: TaskDetail,
    view: AttemptView,
    *,
    follow: bool,
    wait: Callable[[float], None],
    reader: SpoolFold,
) -> Iterator[bytes]:
    file_no, start, end = _range(spool, detail, view)
    if file_no is None or start == end:
        return
    slot = view.facts.get("slot") or 0
    try:
        if end is not None or view.state != "running":
            yield from read_log(spool, view.worker, file_no, slot, start, end)
            return
        descriptor = spool.files.open_read(_log_path(spool, view, file_no))
    except OSError as error:
        if error.errno not in GONE:
            raise
        raise LogGone(
            f"The output of task {detail.name!r}, attempt {view.attempt}, is gone: {error.filename}.",
            hint="It was in the folder of its worker, which somebody removed.",
        ) from error
    try:
        position = start
        while end is None or position < end:
            chunk = os.pread(descriptor, _CHUNK_BYTES if end is None else min(_CHUNK_BYTES, end - position), position)
            if end is None:
                # Asked after the read: the next task of the slot writes only when our receipt is in the journal, so
                # what was read before an answer of "still open" is ours. The range in the receipt is the truth.
                end = _end_now(spool, detail, view, reader, position + len(chunk))
                if end is not None:
                    chunk = chunk[: max(0, end - position)]
            if chunk:
                position += len(chunk)
                yield chunk
            elif end is not None or not follow:
                return
            else:
                wait(FOLLOW_S)
    finally:
        os.close(descriptor)


def _end_now(spool: Spool, detail: TaskDetail, view: AttemptView, reader: SpoolFold, position: int) -> int | None:
    """The end of the range when the attempt has ended; None while it is open."""
    reader.refresh()
    opened = any(
        life == view.worker and batch == detail.id.batch and attempt == view.attempt and detail.id.index in ranges
        for (life, batch, _, attempt, _), ranges in reader.fold.open.items()
    )
    if opened and find_state(spool.files, spool.layout.life(view.worker)) == LIVE:
        return None
    for other in detail_of(spool, detail.id, reader).attempts:
        if (other.gen, other.attempt, other.worker) == (view.gen, view.attempt, view.worker) and other.log is not None:
            return position if other.log[2] is None else other.log[2]
    return position


def _log_path(spool: Spool, view: AttemptView, file_no: int) -> str:
    return os.path.join(spool.layout.life(view.worker), log_name(view.facts.get("slot") or 0, file_no))


def _range(spool: Spool, detail: TaskDetail, view: AttemptView) -> tuple[int | None, int, int | None]:
    if view.log is not None:
        return view.log
    if view.state == "ended" and view.facts.get("outcome") != "lost":
        return None, 0, 0  # its receipt names no output
    reading = detail.picture.reader.lives.get(view.worker)
    for entry in (reading.heartbeat or {}).get("running", ()) if reading else ():
        if entry.get("task") == str(detail.id) and entry.get("a") == view.attempt and "log" in entry:
            return int(entry["log"][0]), int(entry["log"][1]), None
    return _after_the_last(spool, view)


def _after_the_last(spool: Spool, view: AttemptView) -> tuple[int | None, int, int | None]:
    """Where an attempt without receipt writes: behind the last one that ended on its slot; nothing follows it there."""
    slot = view.facts.get("slot")
    file_no, start = 0, 0
    for life, record in scan(spool, [b'"log":['], only=view.worker):
        if life == view.worker and record.get("s") == slot and record.get("t") == "receipt":
            file_no, start = int(record["log"][0]), int(record["log"][2])
    if spool.files.exists(_log_path(spool, view, file_no + 1)):
        file_no, start = file_no + 1, 0  # the slot went on in a new file
    return file_no, start, None


def decoded(chunks: Iterator[bytes]) -> Iterator[str]:
    """Text of the bytes; a character split between two chunks stays whole, a wrong byte becomes U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for chunk in chunks:
        text = decoder.decode(chunk)
        if text:
            yield text
    rest = decoder.decode(b"", final=True)
    if rest:
        yield rest
