"""Logs of GPUs that other tools wrote, as segments of a telemetry root; the same log twice changes nothing.

A segment appears whole or not at all, and names the log that it came from by its digest. A log that has grown since
is recognised by what it began with, and only its new rows are added.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any

from fleetcraft.actions.gpu_import_segment import KEY, build, is_even, write
from fleetcraft.core.errors import UsageError
from fleetcraft.store.files import Files, explain
from fleetcraft.telemetry import rollup
from fleetcraft.telemetry.foreign import Log, parse_log
from fleetcraft.telemetry.foreign_time import day_ms
from fleetcraft.telemetry.segment import ENDING, FAMILY, harmless

DONE, GREW, KEPT, EMPTY, UNREADABLE = "imported", "new rows imported", "already imported", "without rows", "not a log"
_DEFAULT_INTERVAL_MS = 30_000
_ENDINGS = (".csv", ".log", ".txt", ".dmon")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person asked for."""

    paths: Sequence[str]
    root: str
    host: str = ""  # of a single log; empty: the name of each file
    job: str = ""
    zone: tzinfo | None = None
    zone_name: str = ""
    day: str = ""
    columns: Sequence[str] | None = None
    interval_ms: int | None = None
    dry_run: bool = False


@dataclass(slots=True, kw_only=True)
class Imported:
    """What became of one log."""

    source: str
    host: str
    state: str
    segment: str = ""
    rows: int = 0
    gpus: int = 0
    interval_s: float | None = None
    interval_known: bool = False
    first_ms: int | None = None
    last_ms: int | None = None
    lines_lost: int = 0
    unknown: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class _Earlier:
    """A log that was imported: how long it was, and how many rows it had."""

    digest: str
    size: int
    rows: int


def import_logs(asked: Asked, *, now_ms: int, files: Files | None = None) -> Iterator[Imported]:
    """Import every log under the paths. Raises UsageError, StorageFull, OutOfReach."""
    files = files or Files()
    _check(asked)
    sources = list(_sources(asked.paths))
    if asked.host and len(sources) > 1:
        raise UsageError(
            f"--host names one machine, and there are {len(sources)} logs.",
            hint="Import them one by one, or name each file after its machine.",
        )
    known: dict[str, list[_Earlier]] = {}
    for source in sources:
        host = asked.host or os.path.splitext(os.path.basename(source))[0]
        folder = os.path.join(asked.root, harmless(host))
        try:
            with open(source, "rb") as opened:
                data = opened.read()
            if folder not in known:
                known[folder] = list(_earlier(folder))
            yield _one(asked, files, source, host, folder, data, known[folder], now_ms)
        except OSError as error:
            raise explain(error, f"Cannot import {source}") from error


def _check(asked: Asked) -> None:
    if asked.day:
        try:
            day_ms(asked.day)
        except ValueError:
            raise UsageError(f"--day {asked.day} is no date.", hint="Write it as 2026-07-19.") from None


def _sources(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        if os.path.isdir(path):
            names = sorted(name for name in os.listdir(path) if name.endswith(_ENDINGS) and not name.startswith("."))
            if not names:
                raise UsageError(f"There is no log in {path}.", hint=f"Its name ends with {', '.join(_ENDINGS)}.")
            yield from (os.path.join(path, name) for name in names)
        elif os.path.exists(path):
            yield path
        else:
            raise UsageError(f"There is no file or folder {path}.", hint="Look at the path.")


def _earlier(folder: str) -> Iterator[_Earlier]:
    """What was imported for this host before, by the first lines of its segments."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    for name in names:
        told = _told(os.path.join(folder, name))
        if told is not None:
            try:
                yield _Earlier(str(told["sha256"]), int(told["bytes"]), int(told["rows_of_log"]))
            except (KeyError, TypeError, ValueError):
                continue


def _told(path: str) -> dict[str, Any] | None:
    """What the head of a segment, or of a sealed one, says of its import."""
    try:
        if path.endswith(".sealed.json"):
            with open(path, encoding="utf-8") as source:
                head = json.load(source).get("head")
        elif path.endswith(ENDING) and not path.endswith(".rollup.csv"):
            with open(path, encoding="utf-8", errors="replace") as source:
                line = source.readline()
            head = json.loads(line.partition(" ")[2]) if line.startswith(FAMILY) else None
        else:
            return None
        told = head.get(KEY) if isinstance(head, dict) else None
    except (ValueError, AttributeError):
        return None
    return told if isinstance(told, dict) else None


def _one(
    asked: Asked, files: Files, source: str, host: str, folder: str, data: bytes, known: list[_Earlier], now_ms: int
) -> Imported:
    result = Imported(source=source, host=host, state=KEPT)
    digest = hashlib.sha256(data).hexdigest()
    if any(one.digest == digest for one in known):
        return result
    if data.startswith(FAMILY.encode()):
        result.state = UNREADABLE
        result.unknown.append({"kind": "segment", "text": "it is a segment of ours; copy it as it is", "count": 0})
        return result
    log = parse_log(data, zone=asked.zone, day=asked.day, columns=asked.columns)
    _describe(result, log, asked, now_ms)
    before = max((one for one in known if _begins_with(data, one)), key=lambda one: one.size, default=None)
    skip = 0 if before is None else before.rows
    rows = len(log.utc_ms) - skip
    if rows <= 0:
        is_log = bool(log.columns) or not data.strip(b"\0\r\n ")
        result.state = (EMPTY if skip == 0 else KEPT) if is_log else UNREADABLE
        if result.state != EMPTY:
            return result
    else:
        result.state, result.rows = (DONE if before is None else GREW), rows
    # One without rows is written too: its host was to be seen and was not, and that is worth a line later.
    if asked.dry_run:
        return result
    told = {
        "source": os.path.basename(source), "sha256": digest, "bytes": len(data), "rows_of_log": len(log.utc_ms),
        "lines_lost": result.lines_lost, "zone": asked.zone_name if log.zone_known else "taken for UTC",
        "unknown": result.unknown,
    }  # fmt: skip
    made = build(host, log, skip, job=asked.job, interval_s=result.interval_s or 0.0, told=told)
    result.segment = write(files, folder, made)
    if rows > 0 and is_even(made):
        rollup.refresh(result.segment, files)
    known.append(_Earlier(digest, len(data), len(log.utc_ms)))
    return result


def _begins_with(data: bytes, earlier: _Earlier) -> bool:
    return earlier.size < len(data) and hashlib.sha256(data[: earlier.size]).hexdigest() == earlier.digest


def _describe(result: Imported, log: Log, asked: Asked, now_ms: int) -> None:
    result.gpus = len(set(log.device)) if log.device is not None else int(bool(log.utc_ms))
    result.interval_known = asked.interval_ms is not None or log.interval_ms is not None
    result.interval_s = (asked.interval_ms or log.interval_ms or _DEFAULT_INTERVAL_MS) / 1000
    result.lines_lost = log.malformed + int(log.cut_tail)
    result.unknown = [{"kind": one.kind, "text": one.text, "count": one.count} for one in log.findings]
    for name, reasons in sorted(log.reasons.items()):
        words = ", ".join(f"{many} {reason}" for reason, many in sorted(reasons.items()))
        result.unknown.append({"kind": "absent", "text": f"{name} is absent: {words}", "count": sum(reasons.values())})
    if not log.utc_ms:
        return
    result.first_ms, result.last_ms = min(log.utc_ms), max(log.utc_ms)
    if not result.interval_known:
        text = f"it is too short to tell its interval; {result.interval_s:g} s is assumed"
        result.unknown.append({"kind": "no_interval", "text": text, "count": 0})
    ahead = sum(stamp > now_ms for stamp in log.utc_ms) if result.last_ms > now_ms else 0
    if ahead:
        text = f"{ahead} stamps lie in the future: its clock or its zone is another one"
        result.unknown.append({"kind": "future", "text": text, "count": ahead})
