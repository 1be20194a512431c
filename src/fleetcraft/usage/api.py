"""The values that reading, reckoning and drawing share: a GPU, a stretch of time on it, and a window of stretches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Gpu:
    """A device on a host. Where a log names no device, the UUID is empty and there is one per host and ordinal."""

    host: str
    uuid: str
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Under which job, fleet and worker samples were taken; empty means that the log does not say."""

    job: str = ""
    fleet: str = ""
    spool: str = ""
    life: str = ""
    boot: str = ""
    interval_s: float = 10.0
    device_name: str = ""
    simulated: bool = False
    multiprocessors: int | None = None
    max_sm_clock_mhz: int | None = None


@dataclass(slots=True, kw_only=True)
class Stretch:
    """A sample held until the next one of its GPU, at most 1.5 intervals; times are UTC milliseconds.

    Slots are plain and mutable because there are millions of them; treat it as a value. None is absent, never 0.
    """

    gpu: Gpu
    start_ms: int
    end_ms: int
    util_pct: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_w: float | None = None
    energy_mj: float | None = None  # the counter at the start
    sm_clock_mhz: float | None = None
    sm_active_pct: float | None = None
    tensor_pct: float | None = None
    own_pids: float | None = None
    own_memory_bytes: float | None = None
    state: str = "ok"  # DeviceState of the sample


@dataclass(slots=True, kw_only=True)
class Window:
    """Five minutes (or another length) of one GPU, added up: what roll-ups hold, and what summaries and plots read.

    Each sum is over milliseconds in which that value was known; `x_ms` is that time. A mean is sum / time.
    """

    gpu: Gpu
    start_ms: int
    length_ms: int = 300_000
    observed_ms: int = 0  # covered by a sample of a device that answered
    samples: int = 0
    util_sum: float = 0.0  # percent x ms
    util_ms: int = 0
    active_ms: int = 0  # utilization at or above the threshold
    memory_sum: float = 0.0  # bytes x ms
    memory_ms: int = 0
    memory_fraction_sum: float = 0.0  # of the total x ms
    memory_max_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_sum: float = 0.0  # watts x ms: millijoules, held
    power_ms: int = 0
    counter_mj: float | None = None  # what the energy counter grew by
    counter_ms: int = 0
    counter_resets: int = 0
    sm_active_sum: float = 0.0
    sm_active_ms: int = 0
    tensor_sum: float = 0.0
    tensor_ms: int = 0
    clock_sum: float = 0.0  # MHz x ms
    clock_ms: int = 0
    own_ms: int = 0  # with a process of ours on the device
    own_memory_max_bytes: float | None = None
    first_ms: int = 0
    last_ms: int = 0  # when the last stretch ends
    bad_ms: int = 0  # lost, hung or broken
    reserved_ms: int = 0  # not active, with memory at or above 500 MiB over the baseline
    free_ms: int = 0  # not active, with less memory than that; inactive time of unknown memory is in neither
    extra_samples: int = 0  # within half an interval of the one before: a second logger wrote them
    extra_ms: int = 0  # what those would weigh at one interval each
    expected_ms: int = 0  # what the asked span holds for this GPU; 0 where nobody asked
