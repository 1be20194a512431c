"""Publishes counting tasks, in pieces of so many; run again after a crash, it adds only what is missing.

python -m tests.support.publisher_program SPOOL PREFIX COUNT PIECE KIND FILE [ARGV...]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from fleetcraft.actions.enqueue import EnqueueOptions, enqueue_tasks
from fleetcraft.spool.spool import Spool

ROOT = str(Path(__file__).parents[2])


def tasks(prefix: str, count: int, kind: str, path: str, argv: list[str]) -> Iterator[dict[str, Any]]:
    """The descriptions: commands, or calls."""
    for number in range(count):
        name = f"{prefix}-{number}"
        if kind == "call":
            yield {"name": name, "call": "tests.support.counting:count_call", "args": {"path": path, "name": name}}
        else:
            yield {"name": name, "command": [*argv, path]}


def main(arguments: list[str]) -> int:
    root, prefix, count, piece, kind, path, *argv = arguments
    options = EnqueueOptions(
        defaults={"cwd": ROOT, **({"python": sys.executable} if kind == "call" else {})},
        base_env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ROOT},
    )
    spool = Spool.open(root, create=True)
    rest = tasks(prefix, int(count), kind, path, argv)
    while some := list(islice(rest, int(piece))):
        enqueue_tasks(spool, some, options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
