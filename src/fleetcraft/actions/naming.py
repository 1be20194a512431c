"""Names for tasks that came without one: a digest of what they do, and a number among equals.

The digest covers exactly what makes two tasks the same, so enqueuing the same list again finds every task there.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping
from typing import Any

from fleetcraft.core.resources import Request
from fleetcraft.spool.uniqueness import task_content

_DIGEST_BYTES = 6
_FIRST_SIZE = 1 << 10


class Ordinals:
    """How often each digest came before, in about 20 bytes per digest: a million unnamed tasks fit."""

    __slots__ = ("_count", "_more", "_table")

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * _FIRST_SIZE))
        self._count = 0
        self._more: dict[int, int] = {}

    def take(self, digest: int) -> int:
        """The number of earlier calls with this digest."""
        key = digest + 1  # zero marks a free place
        if self._put(self._table, key):
            self._count += 1
            if 2 * self._count > len(self._table):
                self._grow()
            return 0
        number = self._more.get(digest, 0) + 1
        self._more[digest] = number
        return number

    @staticmethod
    def _put(table: array[int], key: int) -> bool:
        mask = len(table) - 1
        place = key & mask
        while True:
            found = table[place]
            if found == key:
                return False
            if not found:
                table[place] = key
                return True
            place = (place + 1) & mask

    def _grow(self) -> None:
        larger = array("Q", bytes(16 * len(self._table)))
        for key in self._table:
            if key:
                self._put(larger, key)
        self._table = larger


class Namer:
    """Gives names within one enqueue."""

    __slots__ = ("_header", "_ordinals")

    def __init__(self, header: Mapping[str, Any]) -> None:
        self._header = header
        self._ordinals = Ordinals()

    def content(self, line: Mapping[str, Any], request: Request) -> bytes:
        """What the digest covers."""
        return task_content({**self._header, **line}, request)

    def name(self, content: bytes) -> str:
        """The next name for a task of that content."""
        digest = hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
        return f"t{digest.hex()}-{self._ordinals.take(int.from_bytes(digest, 'big'))}"
