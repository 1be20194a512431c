"""Packing the folders of ended lives into a segment, and telling whether a folder is still what was packed."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fleetcraft.core.clock import stamp_utc
from fleetcraft.core.outcome import Fold
from fleetcraft.core.records import dump, encode_line
from fleetcraft.spool.life import HEARTBEAT, IDENTITY, JOURNAL, SUMMARY, Life, read_json
from fleetcraft.spool.segments import (
    BLOCK_BYTES,
    SEGMENT_FORMAT,
    SEGMENT_VERSION,
    PackedFile,
    PackedLife,
    load_fold,
    segment_numbers,
    segment_path,
    summary_path,
)
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import GONE, publish_file, write_all
from fleetcraft.store.journal import read_lines

_COMPRESSION = 3
_FLUSH_BYTES = 1 << 20
# What a life folder holds besides its journal and its output; nothing of it is needed afterwards, or the header has it.
_SMALL = frozenset({IDENTITY, HEARTBEAT, SUMMARY, JOURNAL})


def write_summary(spool: Spool, number: int) -> None:
    """The shortcut of a segment; deleting it changes no answer. Raises OSError."""
    fold = Fold()
    load_fold(spool, number, fold, shortcuts=False)
    covers = spool.files.size(segment_path(spool, number))
    body = dump({"version": 1, "covers": covers, "fold": fold.as_json()})
    publish_file(spool.files, summary_path(spool, number), body.encode(), durable=False)


@dataclass(slots=True)
class SegmentWriter:
    """One segment on its way. `pack` each life, then `commit`."""

    life: Life
    id: str = ""
    lives: list[PackedLife] = field(default_factory=list)
    number: int = 0  # of the segment, once it is committed
    _at: int = 0
    _logs: int = -1

    def __post_init__(self) -> None:
        self.id = f"c{os.urandom(3).hex()}-{self.life.id}"

    @property
    def _folder(self) -> str:
        return self.life.spool.layout.segments

    @property
    def _logs_path(self) -> str:
        return os.path.join(self._folder, f"{self.id}.logs")

    @property
    def _aside(self) -> str:
        return os.path.join(self._folder, f".{self.id}.jsonl")

    def pack(self, packed: PackedLife) -> None:
        """Take a life as `measure` saw it, and compress its output. Raises OSError."""
        folder = self.life.spool.layout.life(packed.life)
        names = output_names(self.life.spool, folder)
        if packed.damaged:
            names.append(JOURNAL)  # the damaged bytes are evidence, and the records leave them out
        files = tuple(self._compress(os.path.join(folder, name), name) for name in names)
        self.lives.append(PackedLife.from_json({**packed.as_json(), "files": [one.as_json() for one in files]}))

    def _compress(self, path: str, name: str) -> PackedFile:
        files = self.life.files
        if self._logs < 0:
            self._logs = files.open_new(self._logs_path)
        start, length, digest, blocks = self._at, 0, hashlib.sha256(), []
        descriptor = files.open_read(path)
        try:
            while chunk := _full_block(descriptor, length):
                block = zlib.compress(chunk, _COMPRESSION)
                write_all(files, self._logs, block)
                length += len(chunk)
                digest.update(chunk)
                blocks.append(len(block))
                self._at += len(block)
        finally:
            os.close(descriptor)
        return PackedFile(name=name, length=length, sha256=digest.hexdigest(), at=start, blocks=tuple(blocks))

    def commit(self) -> int:
        """Write the records, make everything durable, take the next number. Raises OSError, LifeEnded."""
        files, spool = self.life.files, self.life.spool
        if self._logs < 0:
            self._logs = files.open_new(self._logs_path)
        files.sync(self._logs)
        descriptor = files.open_new(self._aside)
        try:
            for block in _blocks(self._lines()):
                write_all(files, descriptor, block)
            files.sync(descriptor)
        finally:
            os.close(descriptor)
        self._link()
        files.sync_folder(self._folder)
        files.unlink(self._aside)
        try:
            write_summary(spool, self.number)
        except OSError:
            pass  # readers then take the long way
        return self.number

    def _link(self) -> None:
        files, spool = self.life.files, self.life.spool
        mine = files.identity(self._aside)
        number = max(segment_numbers(spool), default=0) + 1
        while True:
            # Not needed for the records, which are a set: a life that was reaped has given its permit back.
            self.life.check_live()
            target = segment_path(spool, number)
            try:
                files.link(self._aside, target)
            except OSError as error:
                if mine is None or files.identity(target) != mine:
                    if not isinstance(error, FileExistsError):
                        raise
                    number += 1
                    continue
            self.number = number
            return

    def _lines(self) -> Iterator[bytes]:
        spool = self.life.spool
        header = {
            "format": SEGMENT_FORMAT, "version": SEGMENT_VERSION, "id": self.id,
            "logs": os.path.basename(self._logs_path), "created_utc": stamp_utc(spool.clock.utc()),
            "records": sum(packed.records for packed in self.lives), "lives": [one.as_json() for one in self.lives],
        }  # fmt: skip
        yield encode_line(dump(header))
        for packed in self.lives:
            path = os.path.join(spool.layout.life(packed.life), JOURNAL)
            for line in read_lines(spool.files, path, 0, packed.journal_bytes):
                if line.record is not None:
                    yield encode_line(dump({"life": packed.life, "n": line.record.get("n", 0), "rec": line.record}))

    def discard(self) -> None:
        """Close, and remove what is not committed; never raises for reasons of storage."""
        self.close()
        for path in (self._aside, self._logs_path) if not self.number else (self._aside,):
            try:
                self.life.files.unlink(path)
            except OSError:
                continue  # never made; or left for check, which knows by its name whose it was

    def close(self) -> None:
        """Close the descriptor."""
        if self._logs >= 0:
            os.close(self._logs)
            self._logs = -1


def _full_block(descriptor: int, offset: int) -> bytes:
    """A block is always full except the last one of a file, so that a range is found by division."""
    chunk = b""
    while len(chunk) < BLOCK_BYTES:
        more = os.pread(descriptor, BLOCK_BYTES - len(chunk), offset + len(chunk))
        if not more:
            break
        chunk += more
    return chunk


def _blocks(lines: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _FLUSH_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def output_names(spool: Spool, folder: str) -> list[str]:
    """The files of a life whose bytes a segment keeps. Raises OSError."""
    names = spool.files.names(folder)[0]
    return sorted(name for name in names if name not in _SMALL and not name.startswith((".", "state.")))


def measure(spool: Spool, life: str) -> tuple[PackedLife, set[int]]:
    """What the journal of a life amounts to, and the batches that it speaks of. Raises OSError."""
    folder = spool.layout.life(life)
    path = os.path.join(folder, JOURNAL)
    digest, size = _digest(spool, path)
    batches: set[int] = set()
    records = damaged = 0
    for line in read_lines(spool.files, path, 0, size):
        if line.record is None:
            damaged += 1
            continue
        records += 1
        for record in (line.record, line.record.get("rec")):
            if isinstance(record, dict) and isinstance(record.get("b"), int):
                batches.add(record["b"])
    packed = PackedLife(
        life=life, identity=read_json(spool.files, os.path.join(folder, IDENTITY)),
        heartbeat=read_json(spool.files, os.path.join(folder, HEARTBEAT)), records=records, damaged=damaged,
        journal_bytes=size, journal_sha256=digest, files=(),
    )  # fmt: skip
    return packed, batches


def is_unchanged(spool: Spool, packed: PackedLife) -> bool:
    """True when a folder still says exactly what the segment holds. A missing journal was removed after packing."""
    folder = spool.layout.life(packed.life)
    try:
        if _digest(spool, os.path.join(folder, JOURNAL)) != (packed.journal_sha256, packed.journal_bytes):
            return False
    except OSError as error:
        if error.errno not in GONE:
            raise
    known = {one.name: one.length for one in packed.files}
    names = output_names(spool, folder)
    return all(spool.files.size(os.path.join(folder, name)) == known.get(name) for name in names)


def _digest(spool: Spool, path: str) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    descriptor = spool.files.open_read(path)
    try:
        while chunk := os.pread(descriptor, BLOCK_BYTES, size):
            digest.update(chunk)
            size += len(chunk)
    finally:
        os.close(descriptor)
    return digest.hexdigest(), size
