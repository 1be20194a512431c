"""Runs `fleetcraft ...` with every metadata operation of its file layer made slower: a stand-in for a shared disk.

Usage: slow_worker.py DELAY_US worker run --spool DIR ...

Only the file layer is slowed, so reads and writes on open descriptors, and the tasks themselves, run at full speed.
The row beside it in the table slows the system calls instead, and so finds what goes around the layer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from fleetcraft.cli.main import main
from fleetcraft.store.files import Files

METADATA_OPERATIONS = (
    "names",
    "folders",
    "rename",
    "link",
    "unlink",
    "create",
    "exists",
    "identity",
    "modified_ns",
    "size",
    "make_folder",
    "remove_folder",
    "read",
    "read_small",
    "open_read",
    "open_new",
    "sync_folder",
)


def slow_down(files: type[Files], delay_s: float) -> None:
    """Slow the class itself, so that every room that uses it is slowed, however it came by its instance."""
    for name in METADATA_OPERATIONS:
        setattr(files, name, _after(delay_s, getattr(files, name)))


def _after(delay_s: float, operation: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(operation)
    def slowed(*args: object, **options: object) -> Any:
        time.sleep(delay_s)
        return operation(*args, **options)

    return slowed


if __name__ == "__main__":
    slow_down(Files, int(sys.argv[1]) / 1e6)
    del sys.argv[1]
    sys.exit(main())
