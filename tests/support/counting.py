"""Tasks that count their own executions, independently of what any journal says."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

_SOURCE = Path(__file__).with_name("counter.c")
_SHELL = 'echo "$FLEETCRAFT_TASK_ID $FLEETCRAFT_ATTEMPT $FLEETCRAFT_LIFE" >> "$0"'


class Execution(NamedTuple):
    """One line that a task wrote about itself."""

    task: str
    attempt: int
    life: str


def counter_command(folder: Path) -> list[str]:
    """The argv of a counting task, but for the file: a tiny program where there is a compiler, else a shell."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return ["/bin/sh", "-c", _SHELL]
    program = folder / "counter"
    for more in (["-static"], []):  # a static one starts three times as fast, where the library for it is there
        done = subprocess.run([compiler, "-O1", *more, "-o", program, _SOURCE], capture_output=True, check=False)
        if done.returncode == 0:
            return [str(program)]
    return ["/bin/sh", "-c", _SHELL]


def executions(path: Path) -> list[Execution]:
    """What the counting commands wrote, in order."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        task, attempt, life = line.split(" ")
        found.append(Execution(task, int(attempt), life))
    return found


def count_call(path: str, name: str) -> str:
    """The counting task as a call in a resident."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{name}\n".encode())
    finally:
        os.close(descriptor)
    return name
