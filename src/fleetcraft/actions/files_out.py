"""Files that are made for other programs, whole or not at all."""

from __future__ import annotations

import os

from fleetcraft.core.errors import UsageError
from fleetcraft.store.files import Files, explain, publish_file


def replace_file(path: str, data: bytes, *, mode: int = 0o644, files: Files | None = None) -> None:
    """Put a file where it is picked up, readable by others. Raises UsageError, StorageFull, OutOfReach."""
    target = os.path.abspath(path)
    if not os.path.isdir(os.path.dirname(target)):
        raise UsageError(f"There is no folder {os.path.dirname(target)}.", hint="Make it first, or name another file.")
    try:
        publish_file(files or Files(), target, data, durable=False)
        os.chmod(target, mode)
    except OSError as error:
        raise explain(error, f"Cannot write {path}") from error
