"""The sensor seam: which GPUs there are, and what each of them does now; every value may be absent, with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Reason(StrEnum):
    """Why a value is absent. The order is that of the bits in a segment's mask: only ever add at the end."""

    UNSUPPORTED = "unsupported"  # not on this GPU
    NO_PERMISSION = "no_permission"
    OLD_DRIVER = "old_driver"  # the driver lacks the call
    NO_DRIVER = "no_driver"
    DRIVER_MISMATCH = "driver_library_mismatch"
    LOST = "lost"  # the GPU fell off the bus
    RESET_REQUIRED = "reset_required"
    HUNG = "hung"  # the call is still out after its deadline
    BLANK = "blank"  # a sentinel stands where a number should
    NOT_FOUND = "not_found"
    NAN = "nan"
    MIG = "mig"  # the parent of MIG instances has no such value
    PARSE = "parse"  # text that is no number and no known token
    RACY = "racy"  # a process vanished between list and read
    UNTRUSTED = "untrusted"  # this driver is known to tell it wrongly
    UNIFIED = "unified_memory"
    TOO_SOON = "interval_too_short"
    IMPLAUSIBLE = "implausible"
    SHARED = "reported_elsewhere"  # told once for several devices, on another one of them
    ERROR = "error"  # any other error of the driver, this time


class DeviceState(StrEnum):
    """What the sensor can say of a device as a whole."""

    OK = "ok"
    LOST = "lost"
    HUNG = "hung"
    RESET_REQUIRED = "reset_required"
    BROKEN = "broken"  # it is there, and every question fails


class HostState(StrEnum):
    """What the sensor can say of a host as a whole."""

    OK = "ok"
    NO_GPU = "no_gpu"
    BROKEN = "telemetry_broken"  # a driver is there and does not serve us; jobs may be fine
    HUNG = "hung"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU (or MIG instance) by its UUID; the index is only a label."""

    uuid: str
    index: int
    name: str
    memory_bytes: int | None
    parent: str = ""  # the UUID of the GPU that this MIG instance is cut from
    bus_id: str = ""
    vendor: str = "nvidia"
    power_limit_w: float | None = None
    multiprocessors: int | None = None
    max_sm_clock_mhz: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """What a device holds now; None with a reason where the driver does not say."""

    used_bytes: int | None
    pids: tuple[int, ...] | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds a device; its memory is its own, never the device's."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One device at one moment. `values` has the names of `fields.FIELDS`; a name in `reasons` is absent there."""

    uuid: str
    state: DeviceState = DeviceState.OK
    values: Mapping[str, float] = field(default_factory=dict)
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    processes: tuple[GpuProcess, ...] | None = None
    notes: tuple[str, ...] = ()  # clamped, untrusted, and the like; said once per change by the sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All devices of a host at one moment. A device known before is never left out: it comes as lost or hung."""

    state: HostState
    readings: tuple[Reading, ...] = ()
    reason: str = ""
    driver: str = ""


class Sensor(Protocol):
    """One source of GPU facts. No method raises: what cannot be read is None or empty, with a reason."""

    name: str
    reason: str

    def devices(self) -> list[Device]:
        """The devices that this process may use."""
        ...

    def inventory(self) -> list[Device]:
        """Every device that `read` speaks of: those of `devices`, and the GPUs that MIG instances are cut from."""
        ...

    def expect(self, devices: Iterable[Device]) -> None:
        """Name devices that were here before: one that is missing now comes as lost instead of being left out."""
        ...

    def occupancy(self, uuid: str) -> Occupancy:
        """Memory in use and the processes that hold it."""
        ...

    def read(self) -> Sweep:
        """Everything about every device, now; it never takes longer than the sensor's deadline."""
        ...
