"""Frozen answers: which bytes were read, their digests, what was computed from them, and by which definition.

A file of evidence is written once and never again. Whoever has the logs can read the same bytes and compute anew;
logs that only grew since then still verify.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

from fleetcraft.core.errors import Refused, UsageError
from fleetcraft.store.files import Files, explain, write_all
from fleetcraft.usage.pieces import read_all
from fleetcraft.usage.sources import Source
from fleetcraft.usage.summary import Tallied

SCHEMA = "fleetcraft.gpu.evidence/1"
_SOURCE_KEYS = ("path", "kind", "host", "start_ms", "job", "rollup", "root")
_MAYBE_TEXT, _MAYBE_TIME = (str, NoneType), (int, NoneType)
_SOURCES = {**dict.fromkeys(_SOURCE_KEYS, str), "start_ms": _MAYBE_TIME}
_ASKED = {
    "fleet": _MAYBE_TEXT, "job": _MAYBE_TEXT, "since_ms": _MAYBE_TIME, "until_ms": _MAYBE_TIME, "now_ms": int,
    "by": str, "rule": str, "zone": str, "interval_ms": _MAYBE_TIME, "one_gpu": bool, "expected": dict,
}  # fmt: skip
# Sums of floats may be taken in another order by another version.
_CLOSE = 1e-9


def compose(
    sources: Sequence[Source], tallied: Tallied, asked: Mapping[str, Any], result: Mapping[str, Any], made_utc: float
) -> dict[str, Any]:
    """The document: what was asked, what was read, what came out."""
    from fleetcraft import __version__

    where = {source.path: os.path.abspath(source.path) for source in sources}
    body = {
        "schema": SCHEMA,
        "made_utc": made_utc,
        "version": __version__,
        "asked": dict(asked),
        "sources": [
            {
                key: os.path.abspath(getattr(source, key)) if key == "path" else getattr(source, key)
                for key in _SOURCE_KEYS
            }
            for source in sources
        ],
        "read": [
            {"path": where.get(path, os.path.abspath(path)), "start": start, "end": end, "sha256": digest}
            for path, start, end, digest in tallied.pieces
        ],
        "result": dict(result),
    }
    return {**body, "digest": digest_of(body)}


def digest_of(body: Mapping[str, Any]) -> str:
    """The digest of a document without its own."""
    plain = {key: value for key, value in body.items() if key != "digest"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write(path: str, document: Mapping[str, Any], files: Files | None = None) -> None:
    """Write it where nothing is, for reading only. Raises Refused where something is."""
    files = files or Files()
    data = (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()
    folder, name = os.path.split(os.path.abspath(path))
    aside = os.path.join(folder, f".{name}.{os.urandom(8).hex()}.tmp")
    try:
        descriptor = files.open_new(aside)
        try:
            try:
                write_all(files, descriptor, data)
                os.fchmod(descriptor, 0o444)
                files.sync(descriptor)
            finally:
                files.close(descriptor)
            files.link(aside, os.path.join(folder, name))  # a rename would replace what is there
        finally:
            files.unlink(aside)
        files.sync_folder(folder)
    except FileExistsError as error:
        raise taken(path) from error
    except OSError as error:
        raise explain(error, f"Cannot write {path}") from error


def taken(path: str) -> Refused:
    """The refusal to write where something is."""
    return Refused(
        f"{path} exists, and evidence is never overwritten.", hint="Name another file, or move that one away."
    )


def load(path: str) -> dict[str, Any]:
    """A document of evidence. Raises UsageError for anything else."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", hint="Look at the path.") from error
    except ValueError as error:
        raise UsageError(f"{path} is no evidence: {error}.", hint="`--output FILE` makes one.") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UsageError(f"{path} is no evidence of the kind {SCHEMA}.", hint="`--output FILE` makes one.")
    _check(document, path)
    return document


def _check(document: Mapping[str, Any], path: str) -> None:
    """Whoever changed the file may have left anything in it, and it says what to open. Raises UsageError."""

    def listed(name: str, kinds: Mapping[str, Any]) -> bool:
        entries = document.get(name)
        return isinstance(entries, list) and all(isinstance(one, dict) and _fits(one, kinds) for one in entries)

    asked = document.get("asked")
    read = listed("read", {"path": str, "start": int, "end": int, "sha256": str})
    wrong = [
        name
        for name, good in (
            ("asked", isinstance(asked, dict) and _fits(asked, _ASKED)),
            ("sources", listed("sources", _SOURCES)),
            ("read", read and all(0 <= one["start"] <= one["end"] for one in document["read"])),
            ("result", isinstance(document.get("result"), dict)),
        )
        if not good
    ]
    if wrong:
        raise UsageError(
            f"{path} is damaged: {', '.join(wrong)} cannot be what was written.",
            hint="Take the file from where it was kept.",
        )


def _fits(entry: Mapping[str, Any], kinds: Mapping[str, Any]) -> bool:
    return all(
        name in entry and isinstance(entry[name], kind) and (kind is bool or not isinstance(entry[name], bool))
        for name, kind in kinds.items()
    )


def sources_of(document: Mapping[str, Any]) -> list[Source]:
    """The files that were read, in the order in which they were."""
    return [Source(**{key: source[key] for key in _SOURCE_KEYS}) for source in document["sources"]]


def ranges_of(document: Mapping[str, Any]) -> dict[str, list[tuple[int, int]]]:
    """Which bytes of each file were read."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for piece in document["read"]:
        ranges.setdefault(piece["path"], []).append((piece["start"], piece["end"]))
    return ranges


def changed_bytes(document: Mapping[str, Any]) -> list[str]:
    """A sentence for each stretch of bytes that is not what it was."""
    found: list[str] = []
    if digest_of(document) != document.get("digest"):
        found.append("the evidence file itself was changed: its own digest does not fit")
    for piece in document["read"]:
        where = f"{piece['path']}, bytes {piece['start']} to {piece['end']}"
        try:
            data = read_all(piece["path"])[piece["start"] : piece["end"]]
        except OSError as error:
            found.append(f"{where}: cannot be read: {error.strerror}")
            continue
        except ValueError as error:
            found.append(f"{where}: cannot be read: {error}")
            continue
        if len(data) < piece["end"] - piece["start"]:
            found.append(f"{where}: the file is shorter now")
        elif hashlib.sha256(data).hexdigest() != piece["sha256"]:
            found.append(f"{where}: other content")
    return found


def differences(before: Any, after: Any, place: str = "") -> list[str]:
    """Where two results differ, by the path of keys."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = [*before, *(key for key in after if key not in before)]
        return [
            text
            for key in keys
            for text in differences(before.get(key), after.get(key), f"{place}.{key}" if place else str(key))
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            text
            for at, (one, other) in enumerate(zip(before, after, strict=True))
            for text in differences(one, other, f"{place}[{_label(one, at)}]")
        ]
    if isinstance(before, float) and isinstance(after, (int, float)):
        return (
            []
            if abs(before - after) <= _CLOSE * max(abs(before), abs(after))
            else [f"{place}: {before} then, {after} now"]
        )
    return [] if before == after else [f"{place}: {before} then, {after} now"]


def _label(item: Any, at: int) -> str:
    return str(item.get("name") or item.get("host") or at) if isinstance(item, Mapping) else str(at)
