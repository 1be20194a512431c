"""Segments: the journals and output of many ended lives, packed into two files and a shortcut.

`<k>.jsonl` has a header line and then every record with its life; it becomes visible whole, by one link. The header
names the `.logs` file, which holds the output compressed in blocks, so that any range is found by two reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleetcraft.core.errors import SpoolDamaged
from fleetcraft.core.outcome import Fold
from fleetcraft.core.records import decode_line
from fleetcraft.spool.life import read_json
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import GONE
from fleetcraft.store.journal import read_lines

SEGMENT_FORMAT = "fleetcraft-segment"
SEGMENT_VERSION = 1
BLOCK_BYTES = 1 << 20

_SEGMENT = re.compile(r"([1-9][0-9]{0,17})\.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFile:
    """One output file inside a `.logs` file: where its compressed blocks are."""

    name: str
    length: int
    sha256: str
    at: int  # offset of the first block
    blocks: tuple[int, ...]  # compressed length of each

    def as_json(self) -> dict[str, Any]:
        """As it stands in the header."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "blocks": list(self.blocks)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PackedFile:
        """Raises KeyError or TypeError on foreign data."""
        return cls(**{**{name: data[name] for name in cls.__slots__}, "blocks": tuple(data["blocks"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLife:
    """One life inside a segment. Its folder may go only while it is exactly what was packed."""

    life: str
    identity: Mapping[str, Any] | None
    heartbeat: Mapping[str, Any] | None
    records: int
    damaged: int
    journal_bytes: int
    journal_sha256: str
    files: tuple[PackedFile, ...]

    def as_json(self) -> dict[str, Any]:
        """As it stands in the header."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "files"}
        return {**plain, "files": [packed.as_json() for packed in self.files]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PackedLife:
        """Raises KeyError or TypeError on foreign data."""
        plain = {name: data[name] for name in cls.__slots__ if name != "files"}
        return cls(**plain, files=tuple(PackedFile.from_json(packed) for packed in data["files"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The header of one segment."""

    number: int
    path: str
    logs: str  # path
    lives: Mapping[str, PackedLife]


def segment_number(name: str) -> int | None:
    """The number of a segment's file name, or None."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def segment_numbers(spool: Spool) -> list[int]:
    """The segments that are visible now. Raises OSError."""
    try:
        names = spool.files.names(spool.layout.segments)[0]
    except OSError as error:
        if error.errno not in GONE:
            raise
        return []
    return sorted(number for name in names if (number := segment_number(name)) is not None)


def segment_path(spool: Spool, number: int) -> str:
    """The records of a segment."""
    return os.path.join(spool.layout.segments, f"{number}.jsonl")


def open_segment(spool: Spool, number: int) -> Segment:
    """Read a header. Raises OSError, SpoolDamaged."""
    path = segment_path(spool, number)
    descriptor = spool.files.open_read(path)
    try:
        head = b""
        while b"\n" not in head:
            more = os.pread(descriptor, max(1 << 16, len(head)), len(head))
            if not more:
                break
            head += more
    finally:
        os.close(descriptor)
    header = decode_line(head.partition(b"\n")[0])
    try:
        if header is None or header["format"] != SEGMENT_FORMAT or header["version"] > SEGMENT_VERSION:
            raise ValueError("not a segment of a version that we know")
        lives = [PackedLife.from_json(packed) for packed in header["lives"]]
        logs = os.path.join(spool.layout.segments, os.path.basename(header["logs"]))
    except (ValueError, KeyError, TypeError) as error:
        raise SpoolDamaged(
            f"The header of segment {path} cannot be read ({error}).", hint="Run `fleetcraft spool check`."
        ) from error
    return Segment(number=number, path=path, logs=logs, lives={packed.life: packed for packed in lives})


def segment_records(spool: Spool, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """(life, record) of every whole line. Raises OSError."""
    for line in read_lines(spool.files, segment_path(spool, number)):
        if line.record is not None and "rec" in line.record:
            yield line.record["life"], line.record["rec"]


def load_fold(spool: Spool, number: int, fold: Fold, *, shortcuts: bool = True) -> None:
    """Add a segment to a fold: by its shortcut where that covers it, else record by record. Raises OSError."""
    if shortcuts:
        data = read_json(spool.files, summary_path(spool, number))
        # A copy first, so that a damaged shortcut leaves no half of itself behind.
        copy = Fold()
        try:
            if data is not None and data["covers"] == spool.files.size(segment_path(spool, number)):
                copy.merge_json(data["fold"])
                fold.merge_json(data["fold"])
                return
        except (KeyError, TypeError, ValueError):
            pass
    for life, record in segment_records(spool, number):
        fold.add(life, record)


def summary_path(spool: Spool, number: int) -> str:
    """The fold of a segment, a shortcut."""
    return os.path.join(spool.layout.segments, f"{number}.summary.json")
