"""A small file system of its own for a test: full after a few megabytes, or after a few files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a tmpfs with those options; skips the test, with the reason, where that is not allowed."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_bytes(path: Path) -> None:
    """Write until nothing more fits; again, when something was freed since."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        for size in (1 << 20, 1 << 16, 1 << 12, 1):
            try:
                while os.write(descriptor, b"\0" * size) == size:
                    pass
            except OSError:
                continue
    finally:
        os.close(descriptor)


def fill_inodes(folder: Path) -> int:
    """Make empty files until no more can be made; returns how many."""
    folder.mkdir(exist_ok=True)
    count = 0
    try:
        while True:
            (folder / f"filler{count}").touch()
            count += 1
    except OSError:
        return count
