"""The sensor seam: which GPUs there are, and what one of them holds now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU (or MIG instance) by its UUID; the index is only a label."""

    uuid: str
    index: int
    name: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """What a device holds now; None with a reason where the driver does not say."""

    used_bytes: int | None
    pids: tuple[int, ...] | None
    reason: str = ""


class Sensor(Protocol):
    """One source of GPU facts. No method raises: what cannot be read is None or empty, with a reason."""

    name: str
    reason: str

    def devices(self) -> list[Device]:
        """The devices that this process may use."""
        ...

    def occupancy(self, uuid: str) -> Occupancy:
        """Memory in use and the processes that hold it."""
        ...
