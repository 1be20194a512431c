"""Every path in a spool, once. The formats behind them have a page each in docs/reference/formats."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

FORMAT_NAME = "fleetcraft-spool"
FORMAT_VERSION = 1

_BATCH = re.compile(r"([1-9][0-9]{0,17})\.jsonl")
_REQUEST = re.compile(r"([1-9][0-9]{0,17})\.json")
_RETRY = re.compile(r"b([1-9][0-9]{0,17})\.([1-9][0-9]{0,17})\.json")


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below one spool."""

    root: str

    @property
    def marker(self) -> str:
        """Format name and version."""
        return os.path.join(self.root, "spool.json")

    @property
    def batches(self) -> str:
        """Ledgers."""
        return os.path.join(self.root, "batches")

    @property
    def tokens(self) -> str:
        """Zero-length files whose name is the content."""
        return os.path.join(self.root, "tokens")

    @property
    def workers(self) -> str:
        """One folder per life."""
        return os.path.join(self.root, "workers")

    @property
    def requests(self) -> str:
        """What people asked: numbered, immutable."""
        return os.path.join(self.root, "requests")

    @property
    def uses(self) -> str:
        """Permits for named resources, renamed like tokens."""
        return os.path.join(self.root, "uses")

    @property
    def segments(self) -> str:
        """Journals of dead lives, merged by compaction."""
        return os.path.join(self.root, "segments")

    @property
    def snapshots(self) -> str:
        """Scripts frozen by digest."""
        return os.path.join(self.root, "snapshots")

    def folders(self) -> list[str]:
        """Every folder that a spool has from its first day."""
        return [self.batches, self.tokens, self.workers, self.requests, self.uses, self.segments, self.snapshots]

    def token(self, name: str) -> str:
        """A token by its name."""
        return os.path.join(self.tokens, name)

    def ledger(self, batch: int) -> str:
        """A batch: header line, then one task per line."""
        return os.path.join(self.batches, f"{batch}.jsonl")

    def index(self, publication: str) -> str:
        """Offsets of the ledger's lines.

        Named by the publication: two publishers may race for one batch number, and neither may touch the
        other's index before the number is decided.
        """
        return os.path.join(self.batches, f"{publication}.idx")

    def names(self, publication: str) -> str:
        """Sorted name hashes with positions."""
        return os.path.join(self.batches, f"{publication}.names")

    def aside(self, publication: str) -> str:
        """A ledger before its commit."""
        return os.path.join(self.batches, f".{publication}.jsonl")

    def life(self, life: str) -> str:
        """The folder of one worker life."""
        return os.path.join(self.workers, life)


def batch_number(name: str) -> int | None:
    """The number of a ledger's file name, or None for any other name."""
    match = _BATCH.fullmatch(name)
    return int(match[1]) if match else None


def request_number(name: str) -> int | None:
    """The number of a request's file name, or None."""
    match = _REQUEST.fullmatch(name)
    return int(match[1]) if match else None


def retry_number(name: str) -> tuple[int, int] | None:
    """Batch and number of a retry request's file name, or None."""
    match = _RETRY.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None
