"""On which line of a TOML text a key stands, so that an error can point at it.

The standard library's parser gives no places. This finds headers and keys by their form; a key inside an inline
table or an odd spelling is not found, and then the line of the table that holds it is given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\\]*"|'[^']*')"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")
_MULTILINE = re.compile(r"\"\"\"|'''")

Path = tuple[str, ...]


def key_lines(text: str) -> dict[Path, int]:
    """The line, counted from 1, of every table and key that shows its name."""
    found: dict[Path, int] = {}
    table: Path = ()
    quote = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if quote:
            quote = "" if quote in line else quote
            continue
        header = _HEADER.fullmatch(line)
        if header:
            table = _parts(header[1])
            for depth in range(1, len(table) + 1):
                found.setdefault(table[:depth], number)
            continue
        key = _KEY.match(line)
        if key:
            found.setdefault(table + _parts(key[1]), number)
        marks: list[str] = _MULTILINE.findall(line)
        if len(marks) % 2:
            quote = marks[-1]
    return found


def line_of(lines: dict[Path, int], path: Sequence[str | int]) -> int | None:
    """The line of a key, else of the nearest table around it; None for the file as a whole."""
    names = tuple(str(part) for part in path)
    for length in range(len(names), 0, -1):
        if names[:length] in lines:
            return lines[names[:length]]
    return None


def spelled(path: Sequence[str | int]) -> str:
    """`partitions.gpu.max_time`, `login.hosts[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in re.findall(_PART, dotted))
