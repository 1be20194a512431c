"""Where answers go: text for people, one JSON document for programs, notes and errors beside them.

What a person sees never carries a control character of a name; what a program reads is ASCII and exact.
"""

from __future__ import annotations

import codecs
import io
import json as codec
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

ERROR_SCHEMA = "fleetcraft.error/1"

_BIDI = "\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
# A name may hold anything. Shown as it is, it could break a line, or steer the terminal.
_ESCAPES = {
    code: chr(code).encode("unicode_escape").decode("ascii")
    for code in (*range(0x20), *range(0x7F, 0xA0), *map(ord, _BIDI))
}
_SGR = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


def printable(text: str) -> str:
    """One line that shows any text: control characters are written as escapes."""
    return text.translate(_ESCAPES)


def _to_bytes(error: UnicodeError) -> tuple[str | bytes, int]:
    """Give undecodable bytes back as they came; every other lone surrogate becomes an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    parts = []
    for character in error.object[error.start : error.end]:
        code = ord(character)
        parts.append(bytes([code - 0xDC00]) if 0xDC80 <= code <= 0xDCFF else b"\\u%04x" % code)
    return b"".join(parts), error.end


codecs.register_error("fleetcraft", _to_bytes)


class Output:
    """The writer that is passed to every command."""

    def __init__(self, stdout: TextIO, stderr: TextIO, *, json: bool = False, color: bool | None = None) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.json = json
        self.color = _wants_color(stdout) if color is None else color

    @classmethod
    def for_streams(cls, *, json: bool = False) -> Output:
        """The process's own streams, made able to write any name."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8", errors="fleetcraft")
        return cls(sys.stdout, sys.stderr, json=json)

    @property
    def is_terminal(self) -> bool:
        """True when a person watches the answer."""
        return self.stdout.isatty()

    def line(self, text: str = "") -> None:
        """One line of the answer for a person."""
        self.stdout.write(f"{text}\n")

    def lines(self, texts: Iterable[str]) -> None:
        """Several lines."""
        for text in texts:
            self.line(text)

    def document(self, schema: str, body: Mapping[str, Any]) -> None:
        """The answer for a program: one object on one line."""
        self.stdout.write(codec.dumps({"schema": schema, **body}, separators=(",", ":"), allow_nan=False) + "\n")

    def stream(self, schema: str, key: str, items: Iterable[Mapping[str, Any]]) -> int:
        """One object whose last key is a list, written as it comes, so that a million items need no memory."""
        self.stdout.write(f'{{"schema":"{schema}","{key}":[')
        count = 0
        for item in items:
            self.stdout.write((",\n" if count else "\n") + codec.dumps(item, separators=(",", ":"), allow_nan=False))
            count += 1
        self.stdout.write("\n]}\n")
        return count

    def note(self, text: str) -> None:
        """A remark beside the answer."""
        self.stderr.write(f"fleetcraft: {printable(text)}\n")
        self.stderr.flush()

    def error(self, code: str, message: str, hint: str, exit_code: int) -> None:
        """One sentence on stderr; with --json the same as an object on stdout."""
        if self.json:
            body = {"code": code, "message": message, "hint": hint or None, "exit": exit_code}
            self.document(ERROR_SCHEMA, {"error": body})
        else:
            self.stderr.write(f"fleetcraft: {printable(message)}{f' {printable(hint)}' if hint else ''}\n")

    def paint(self, text: str, *styles: str) -> str:
        """Colored text where the terminal shows colors."""
        if not self.color or not styles or not text:
            return text
        return f"\x1b[{';'.join(_SGR[style] for style in styles)}m{text}\x1b[0m"

    def flush(self) -> None:
        """Hand everything on; raises BrokenPipeError when nobody reads any more."""
        self.stdout.flush()


def _wants_color(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


def count(number: int, word: str, plural: str = "") -> str:
    """`1 task`, `2 tasks`, `1,000 tasks`."""
    return f"{number:,} {word if number == 1 else plural or word + 's'}"


def batched_lines(texts: Iterable[str], size: int = 512) -> Iterator[str]:
    """Join lines into larger writes, for long lists."""
    pending: list[str] = []
    for text in texts:
        pending.append(text)
        if len(pending) >= size:
            yield "\n".join(pending)
            pending.clear()
    if pending:
        yield "\n".join(pending)
