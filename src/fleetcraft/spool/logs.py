"""Task output by byte range, wherever it is now: in the folder of its life, or packed into a segment."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator

from fleetcraft.core.errors import SpoolDamaged
from fleetcraft.spool.segments import BLOCK_BYTES, PackedFile, Segment, open_segment, segment_numbers
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import GONE


def log_name(slot: int, file_no: int) -> str:
    """The file name of one output log."""
    return f"output-{slot}.log" if file_no == 0 else f"output-{slot}.{file_no}.log"


def read_log(spool: Spool, life: str, file_no: int, slot: int, start: int, end: int | None = None) -> Iterator[bytes]:
    """The bytes from `start` to `end` (or to the end of the file) of one output log, in pieces.

    Raises FileNotFoundError at once when neither the folder nor any segment has the file, SpoolDamaged when a
    packed block cannot be read, OSError.
    """
    name = log_name(slot, file_no)
    path = os.path.join(spool.layout.life(life), name)
    for _ in range(2):
        try:
            descriptor = spool.files.open_read(path)
        except OSError as error:
            if error.errno not in GONE:
                raise
        else:
            return _from_file(descriptor, start, end)
        found = find_packed(spool, life, name)
        if found is not None:
            return _from_blocks(spool, *found, start, end)
        # A folder that vanished between the two looks was packed before that: look once more.
    raise FileNotFoundError(errno.ENOENT, f"no segment in {spool.layout.segments} has this output either", path)


def find_packed(spool: Spool, life: str, name: str) -> tuple[Segment, PackedFile] | None:
    """The newest segment that holds a file of a life. Raises OSError, SpoolDamaged."""
    for number in reversed(segment_numbers(spool)):
        segment = open_segment(spool, number)
        packed = segment.lives.get(life)
        for one in packed.files if packed is not None else ():
            if one.name == name:
                return segment, one
    return None


def _from_file(descriptor: int, start: int, end: int | None) -> Iterator[bytes]:
    try:
        while end is None or start < end:
            chunk = os.pread(descriptor, BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - start), start)
            if not chunk:
                return
            start += len(chunk)
            yield chunk
    finally:
        os.close(descriptor)


def _from_blocks(spool: Spool, segment: Segment, packed: PackedFile, start: int, end: int | None) -> Iterator[bytes]:
    end = packed.length if end is None else min(end, packed.length)
    if start >= end:
        return
    descriptor = spool.files.open_read(segment.logs)
    try:
        first = start // BLOCK_BYTES
        offset = packed.at + sum(packed.blocks[:first])
        for number in range(first, (end - 1) // BLOCK_BYTES + 1):
            length = packed.blocks[number]
            try:
                block = zlib.decompress(os.pread(descriptor, length, offset))
            except zlib.error as error:
                raise SpoolDamaged(
                    f"Output {packed.name} in {segment.logs} cannot be read at byte {offset} ({error}).",
                    hint="Run `fleetcraft spool check`.",
                ) from error
            offset += length
            base = number * BLOCK_BYTES
            yield block[max(0, start - base) : end - base]
    finally:
        os.close(descriptor)
