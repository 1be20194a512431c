"""Finding the few records of interest in large journals without decoding the rest.

Lines are found by bytes that every record of interest must hold, then decoded and checked like all others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from fleetcraft.core.records import ADOPTED, decode_line
from fleetcraft.spool.life import JOURNAL
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import GONE

_CHUNK_BYTES = 1 << 20


def journal_paths(spool: Spool) -> list[tuple[str, str]]:
    """(life, path) of every journal, and ("", path) of every segment that holds journals of dead lives."""
    files = spool.files
    found = [(life, os.path.join(spool.layout.life(life), JOURNAL)) for life in spool.lives()]
    try:
        names = files.names(spool.layout.segments)[0]
    except OSError as error:
        if error.errno not in GONE:
            raise
        names = []
    segments = sorted(name for name in names if name.endswith(".jsonl") and not name.startswith("."))
    return [("", os.path.join(spool.layout.segments, name)) for name in segments] + found


def unwrap(life: str, record: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The life that a record speaks of, and the record: segments and adopted copies carry both inside."""
    if not life or record.get("t") == ADOPTED:
        inner, owner = record.get("rec"), record.get("life")
        if not isinstance(inner, dict) or not isinstance(owner, str):
            return None
        return unwrap(owner, inner) if inner.get("t") == ADOPTED else (owner, inner)
    return life, record


def scan(spool: Spool, needles: Sequence[bytes], *, only: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """(life, record) of every whole record whose line holds one of the needles; a journal's own order is kept.

    With `only` the journals of other lives are left out; segments hold several.
    """
    for life, path in journal_paths(spool):
        if only and life and life != only:
            continue
        try:
            for line in _lines_with(path, needles):
                record = decode_line(line)
                found = unwrap(life, record) if record is not None else None
                if found is not None:
                    yield found
        except OSError as error:
            if error.errno not in GONE:
                raise  # compacted meanwhile: its records were read from a segment, or are read at the next look


def task_needles(index: int) -> list[bytes]:
    """What the line of a record about position `index` must hold: the position itself, or a count of several."""
    return [b'"i":%d,' % index, b'"i":%d}' % index, b'"k":']


def speaks_of(record: dict[str, Any], batch: int, index: int) -> bool:
    """True when a record is about that task."""
    first = record.get("i")
    return record.get("b") == batch and isinstance(first, int) and first <= index < first + int(record.get("k", 1))


def _lines_with(path: str, needles: Sequence[bytes]) -> Iterator[bytes]:
    pending = b""
    with open(path, "rb") as source:
        while True:
            chunk = source.read(_CHUNK_BYTES)
            block = pending + chunk
            end = block.rfind(b"\n") + 1
            if end == 0 and chunk:
                pending = block
                continue
            pending = block[end:]
            yield from _hits(block[:end], needles)
            if not chunk:
                return  # a torn last line is not a record yet


def _hits(block: bytes, needles: Sequence[bytes]) -> Iterator[bytes]:
    starts = set()
    for needle in needles:
        at = block.find(needle)
        while at >= 0:
            starts.add(block.rfind(b"\n", 0, at) + 1)
            end = block.find(b"\n", at)
            at = block.find(needle, end)
    for start in sorted(starts):
        yield block[start : block.index(b"\n", start)]


def host_of(reader: SpoolFold, life: str) -> str | None:
    """The host of a life, where its folder is still there."""
    reading = reader.lives.get(life)
    if reading is not None and reading.identity is not None:
        return reading.identity.host
    from fleetcraft.spool.life import read_identity

    identity = read_identity(reader.spool.files, reader.spool.layout.life(life))
    return identity.host if identity else None
