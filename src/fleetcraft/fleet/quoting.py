"""Words for a shell script that mean exactly what they say, whatever bytes they hold."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

from fleetcraft.core.errors import UsageError

_NAMED = {0x07: "\\a", 0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r", 0x27: "\\'", 0x5C: "\\\\"}


def quote(word: str) -> str:
    """One shell word on one line. Raises UsageError for a zero byte, which no argument can hold.

    Text that is printable is quoted as usual. Line ends and bytes that are no UTF-8 become escapes, so that no
    scheduler takes the script for one with foreign line ends, and no encoder stumbles over it.
    """
    if "\0" in word:
        raise UsageError(f"{word!r} holds a zero byte; no program can be given that.")
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(_escape(byte) for byte in os.fsencode(word)) + "'"


def _escape(byte: int) -> str:
    named = _NAMED.get(byte)
    if named is not None:
        return named
    # Three octal digits: a hexadecimal escape could swallow the characters behind it.
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"


def quote_all(words: Iterable[str]) -> str:
    """A command line."""
    return " ".join(map(quote, words))


def comment(text: str) -> str:
    """Text for a comment: one line of printable characters."""
    return "".join(character if character.isprintable() else " " for character in text)
