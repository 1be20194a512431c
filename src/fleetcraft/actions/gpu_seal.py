"""Segments that nobody writes any more become Parquet: smaller, and faster to read.

The order is fixed: written aside, read back and compared, renamed, and only then vouched for by `.sealed.json`. The
original goes only when that was asked for, and only after what is on disk was compared with it once more.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetcraft import __version__
from fleetcraft.core.errors import OutOfReach, UsageError
from fleetcraft.store.files import Files, explain, publish_file
from fleetcraft.telemetry import rollup
from fleetcraft.telemetry.segment import ENDING, LEAD, Header
from fleetcraft.telemetry.segment_read import Piece, Reader
from fleetcraft.usage.sealed import polars
from fleetcraft.usage.sources import SEALED, SEGMENT, Source, find

if TYPE_CHECKING:
    import polars as pl

SCHEMA = "fleetcraft.telemetry.sealed/1"
DONE, KEPT, LIVE, EMPTY, DAMAGED = "sealed", "already sealed", "still written", "without samples", "damaged"
# One that says nothing of its end was left by a crash when it did not change for so long.
DEFAULT_OLDER_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """What became of one segment."""

    path: str
    host: str
    state: str
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    removed: bool = False
    detail: str = ""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {name: getattr(self, name) for name in self.__slots__}


def seal(
    paths: Sequence[str], *, now_utc: float, older_s: float = DEFAULT_OLDER_S, remove: bool = False,
    dry_run: bool = False, files: Files | None = None,
) -> Iterator[Sealed]:  # fmt: skip
    """Seal every segment under these paths that has ended. Raises UsageError, StorageFull, OutOfReach."""
    polars()
    files = files or Files()
    for source in find(paths):
        if source.kind not in (SEGMENT, SEALED):
            continue
        path = os.path.splitext(source.path)[0] + ENDING
        try:
            if source.kind == SEALED:
                if files.exists(path):
                    yield _again(files, source, path, remove=remove, dry_run=dry_run)
            else:
                yield _one(files, source, path, now_utc - older_s, remove=remove, dry_run=dry_run)
        except OSError as error:
            raise explain(error, f"Cannot seal {path}") from error


@dataclass(slots=True)
class _Content:
    """A segment as it was read once."""

    header: Header
    head: dict[str, Any]
    piece: Piece
    columns: tuple[str, ...]
    size: int
    digest: str
    damage: str


def _read(path: str) -> _Content | None:
    """None where it is no segment, or holds no sample."""
    with open(path, "rb") as source:
        data = source.read()
    reader = Reader(path)
    pieces = []
    while (piece := reader.read(len(data))).end > piece.start:
        pieces.append(piece)
    if reader.header is None or not pieces:
        return None
    whole = Piece(
        rows=[row for one in pieces for row in one.rows], statements=[told for one in pieces for told in one.statements]
    )
    malformed = sum(one.malformed for one in pieces)
    tail = len(data) - reader.offset
    damage = [f"{malformed} lines are no samples"] if malformed else []
    damage += [f"the last {tail} bytes are no whole line"] if tail else []
    told = json.loads(data[: data.index(b"\n")].partition(b" ")[2])
    return _Content(
        reader.header, told, whole, reader.columns, len(data), hashlib.sha256(data).hexdigest(), "; ".join(damage)
    )


def _one(files: Files, source: Source, path: str, before_utc: float, *, remove: bool, dry_run: bool) -> Sealed:
    if not os.path.isfile(path):  # a pipe would be waited for, without end
        return Sealed(path=path, host=source.host, state=DAMAGED, detail="it is no file")
    content = _read(path)
    if content is None or not content.piece.rows:
        return Sealed(path=path, host=source.host, state=EMPTY)
    rows = len(content.piece.rows)
    known: dict[str, Any] = {"path": path, "host": source.host, "rows": rows, "bytes_before": content.size}
    ended = content.piece.statements[-1:] and content.piece.statements[-1].kind == "end"
    if not ended and os.stat(path).st_mtime > before_utc:
        return Sealed(**known, state=LIVE)
    if dry_run:
        return Sealed(**known, state=DONE, detail=content.damage)
    frame, bad = _frame(content)
    target = path.removesuffix(ENDING) + ".parquet"
    size, digest = _publish(files, frame, target)
    rollup.refresh(path, files)
    told = {
        "schema": SCHEMA, "segment": os.path.basename(path), "segment_bytes": content.size,
        "segment_sha256": content.digest, "parquet_bytes": size, "parquet_sha256": digest, "rows": rows,
        "version": __version__, "damage": content.damage, "bad_cells": bad, "head": content.head,
        "statements": [{"t": one.kind, "utc_ms": one.utc_ms, **one.body} for one in content.piece.statements],
    }  # fmt: skip
    publish_file(files, _beside(target), json.dumps(told, separators=(",", ":")).encode() + b"\n")
    removed, why = _remove(files, path, target, content, bad) if remove else (False, content.damage)
    return Sealed(**known, state=DONE, bytes_after=size, removed=removed, detail=why)


def _again(files: Files, source: Source, path: str, *, remove: bool, dry_run: bool) -> Sealed:
    """One that was sealed before and has its original still."""
    known: dict[str, Any] = {
        "path": path, "host": source.host, "state": KEPT, "bytes_before": files.size(path),
        "bytes_after": files.size(source.path),
    }  # fmt: skip
    content = _read(path) if remove and not dry_run else None
    if content is None:
        return Sealed(**known)
    _, bad = _frame(content)
    removed, why = _remove(files, path, source.path, content, bad)
    return Sealed(**known, rows=len(content.piece.rows), removed=removed, detail=why)


def _frame(content: _Content) -> tuple[pl.DataFrame, int]:
    """The samples in columns, and how many cells are no number."""
    library = polars()
    columns = list(zip(*content.piece.rows, strict=True))
    made, bad = [], 0
    for name, cells in zip(content.columns, columns, strict=True):
        text = library.Series(name, cells, dtype=library.String)
        if name in ("state", "reasons"):
            made.append(text)
            continue
        there = text.replace("", None)
        whole = name in LEAD or not any("." in cell or "e" in cell.lower() for cell in cells)
        numbers = there.cast(library.Int64 if whole else library.Float64, strict=False)
        bad += numbers.null_count() - there.null_count()
        made.append(numbers)
    return library.DataFrame(made), bad


def _publish(files: Files, frame: pl.DataFrame, target: str) -> tuple[int, str]:
    """Write it whole or not at all; what was written is read back first. Returns its size and digest."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", statistics=True)
    data = buffer.getvalue()
    if not polars().read_parquet(io.BytesIO(data)).equals(frame):
        raise OutOfReach(f"{target} does not read back as it was written.", hint="Nothing was changed; report this.")
    publish_file(files, target, data)
    return len(data), hashlib.sha256(data).hexdigest()


def _beside(target: str) -> str:
    return target.removesuffix(".parquet") + ".sealed.json"


def _remove(files: Files, path: str, target: str, content: _Content, bad: int) -> tuple[bool, str]:
    """Remove the original when what is on disk says all that it says."""
    if content.damage or bad:
        return False, f"the original stays: {content.damage or f'{bad} cells are no numbers'}"
    told = json.loads(files.read(_beside(target)))
    stored = files.read(target)
    if told.get("segment_sha256") != content.digest or told.get("parquet_sha256") != hashlib.sha256(stored).hexdigest():
        return False, "the original stays: it, or what was sealed, changed since"
    frame, _ = _frame(content)
    if not polars().read_parquet(io.BytesIO(stored)).equals(frame):
        return False, "the original stays: what was sealed does not say the same"
    with open(path, "rb") as source:
        if hashlib.sha256(source.read()).hexdigest() != content.digest:
            return False, "the original stays: it is still written"
    files.unlink(path)
    return True, ""


def older_s(seconds: float) -> float:
    """The time itself. Raises UsageError where living samplers could be taken for dead."""
    if seconds < 300:
        raise UsageError("--older-than must be five minutes or more.", hint="A sampler may pause on a full disk.")
    return seconds
