"""Writes a file whole or not at all: aside, to disk, then renamed into place.

A task can be killed at any instruction and run again elsewhere, so no reader may ever meet half a file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path


def write_aside(path: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a `.part` file beside `path`, make it durable, and rename it to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The process id keeps two attempts of one task apart while the older one is not yet known to be dead.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        fill(part)
        _sync(part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""

    def fill(part: Path) -> None:
        part.write_text(text, encoding="utf-8")

    write_aside(path, fill)


def write_json(path: Path, value: object) -> None:
    """Write `value` as JSON; NaN and infinity are refused, because no JSON reader must accept them."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
