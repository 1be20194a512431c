"""Renames of tokens. Every one follows the same rule, because on a network file system a reply may be lost.

Success is success. On an error the target is looked up: found there, with my id in its name, it is mine.
Otherwise it is not mine now. A success is never inferred from the source being gone.
"""

from __future__ import annotations

from enum import Enum

from fleetcraft.store.files import FULL, GONE, UNKNOWN, Files


class Moved(Enum):
    """What is known after a rename."""

    YES = "yes"
    NO = "no"  # not mine now; a late reply shows up in the next listing
    UNKNOWN = "unknown"  # list again


def move(files: Files, source: str, target: str) -> Moved:
    """Rename by the rule above. Raises OSError only for errors that speak of the whole storage (full, denied)."""
    for _ in range(3):
        try:
            files.rename(source, target)
        except OSError as error:
            try:
                if files.exists(target):
                    return Moved.YES
            except OSError:
                return Moved.UNKNOWN
            if error.errno in UNKNOWN and error.errno not in GONE:
                continue
            if error.errno in GONE:
                return Moved.NO
            raise
        else:
            return Moved.YES
    return Moved.UNKNOWN


def draft(files: Files, path: str) -> None:
    """Create a draft by the same rule: its name carries an id of ours, so one that is there is ours. Raises OSError."""
    try:
        files.create(path)
    except OSError as error:
        if error.errno in FULL or not files.exists(path):
            raise
