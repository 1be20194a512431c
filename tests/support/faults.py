"""Named storage faults for a worker that runs in a process of its own; each is a function that makes `Files`."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable

from fleetcraft.store.files import Files
from fleetcraft.testing.files import FaultyFiles, LostReplyFiles, Operation


def _in_tokens(path: str) -> bool:
    return os.path.basename(os.path.dirname(path)) == "tokens"


def lost_replies(seed: str = "0") -> Files:
    """A third of the renames and unlinks in tokens/ happen, and are then reported as ENOENT: the retransmission."""
    dice = random.Random(int(seed))

    def lose(operation: Operation) -> bool:
        return operation.kind in ("rename", "unlink") and _in_tokens(operation.path) and dice.random() < 1 / 3

    return LostReplyFiles(Files(), lose, retransmitted=True)


def lost_replies_io(seed: str = "0") -> Files:
    """The same, reported as EIO, which says nothing about what happened."""
    dice = random.Random(int(seed))

    def lose(operation: Operation) -> bool:
        return operation.kind == "rename" and _in_tokens(operation.path) and dice.random() < 1 / 3

    return LostReplyFiles(Files(), lose, error=errno.EIO)


def broken_sync(after: str) -> Files:
    """The journal's syncs fail with EIO as soon as the file `after` exists."""

    def fault(operation: Operation) -> int | None:
        is_journal = operation.kind == "sync" and operation.path.endswith("journal.jsonl")
        return errno.EIO if is_journal and os.path.exists(after) else None

    return FaultyFiles(Files(), fault)


def flaky(seed: str = "0") -> Files:
    """One metadata operation in fifty fails with EIO before it happened."""
    dice = random.Random(int(seed))

    def fault(operation: Operation) -> int | None:
        in_play = operation.kind in ("rename", "exists") and _in_tokens(operation.path)
        return errno.EIO if in_play and dice.random() < 1 / 50 else None

    return FaultyFiles(Files(), fault)


FAULTS: dict[str, Callable[..., Files]] = {
    "lost_replies": lost_replies,
    "lost_replies_io": lost_replies_io,
    "broken_sync": broken_sync,
    "flaky": flaky,
}
