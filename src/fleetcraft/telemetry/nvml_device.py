"""One GPU, or one MIG instance, as the driver shows it: what it is, asked once, and what it does, asked every time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fleetcraft.telemetry.api import Device, Reason
from fleetcraft.telemetry.gpm import GpmWatch
from fleetcraft.telemetry.nvml_errors import reason_of
from fleetcraft.telemetry.nvml_processes import Owners

# Cores of one multiprocessor by compute capability; NVML tells the cores of the whole GPU only.
_CORES = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64} | dict.fromkeys(
    ((8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)), 128
)
# Chips that share the host's memory: only for these does "not supported" mean that there is none of their own.
_UNIFIED_NAMES = frozenset({"GB10", "Orin", "Thor", "Xavier", "Tegra"})
_LINK_COUNT = 91
_MOST_LINKS = 36
_MIG_ENABLED = 1
_CLOCK_SM = 1
_MEMORY_V2 = 0x02000028


@dataclass(slots=True, kw_only=True)
class Known:
    """A device that was seen at least once; without a handle it cannot be asked now."""

    device: Device
    handle: Any
    owners: Owners
    missing: Reason | None = None
    instance: int | None = None  # the GPU instance of a MIG device
    parts: tuple[int, int] | None = None  # the same with its compute instance
    gpm: GpmWatch | None = None
    is_mig: bool = False  # it is cut into instances
    is_unified: bool = False
    links: int = 0
    described: bool = False
    seen_us: int = 0  # the last utilization sample that was used
    load_mono: float | None = None
    slow_mono: float | None = None
    slow: tuple[dict[str, float], dict[str, Reason], list[str]] = field(default_factory=lambda: ({}, {}, []))


def text(value: object) -> str:
    """A string of the binding, which gave bytes once."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def ask(nvml: Any, name: str, *args: Any) -> Any:
    """What the driver says, or None: for facts that a device can be without."""
    try:
        return getattr(nvml, name)(*args)
    except Exception:  # noqa: BLE001  an absent fact is all that matters here
        return None


def memory_info(nvml: Any, handle: Any) -> tuple[Any, bool]:
    """Total, used and reserved, and whether what the driver reserves is told apart from what is used."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=_MEMORY_V2), True
    except Exception as error:
        if reason_of(error) is not Reason.OLD_DRIVER and not isinstance(error, TypeError):
            raise
        return nvml.nvmlDeviceGetMemoryInfo(handle), False


def is_unified(name: str, refusal: Reason | None) -> bool:
    """Whether it uses the host's memory: both the answer and the name must say so, since answers fail for a while."""
    return refusal is Reason.UNSUPPORTED and not _UNIFIED_NAMES.isdisjoint(name.replace("-", " ").split())


def describe(nvml: Any, known: Known) -> None:
    """Ask what does not change, in the device's own thread."""
    handle, before = known.handle, known.device
    memory, refusal = before.memory_bytes, None
    try:
        memory = int(memory_info(nvml, handle)[0].total) or None
    except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
        refusal = reason_of(error)
    name = ask(nvml, "nvmlDeviceGetName", handle)
    device = replace(before, name=before.name if name is None else text(name), memory_bytes=memory)
    known.is_unified = is_unified(device.name, refusal)
    if known.instance is None:
        device = _board(nvml, handle, device)
        known.links = _links(nvml, handle)
    known.device = device
    known.described = True


def _board(nvml: Any, handle: Any, device: Device) -> Device:
    pci = ask(nvml, "nvmlDeviceGetPciInfo", handle)
    limit = ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    clock = ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, _CLOCK_SM)
    cores = ask(nvml, "nvmlDeviceGetNumGpuCores", handle)
    capability = ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    per_unit = _CORES.get(tuple(capability)) if capability else None
    return replace(
        device,
        bus_id=device.bus_id if pci is None else text(pci.busId),
        power_limit_w=limit / 1000 if limit else None,
        max_sm_clock_mhz=clock or None,
        multiprocessors=cores // per_unit if cores and per_unit else None,
    )


def _links(nvml: Any, handle: Any) -> int:
    """How many NVLinks it has; asked once, because each link costs a call."""
    try:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [_LINK_COUNT])
        if value.nvmlReturn == 0:
            return min(int(value.value.uiVal), _MOST_LINKS)
    except Exception:  # noqa: BLE001, S110  older drivers are asked link by link
        pass
    count = 0
    while count < _MOST_LINKS and ask(nvml, "nvmlDeviceGetNvLinkState", handle, count) is not None:
        count += 1
    return count


def instances_of(nvml: Any, gpu: Known, make: Any) -> list[Known]:
    """The MIG instances of a GPU, each a device of its own; also notes on the GPU whether it is cut."""
    mode = ask(nvml, "nvmlDeviceGetMigMode", gpu.handle)
    gpu.is_mig = bool(mode) and mode[0] == _MIG_ENABLED
    if not gpu.is_mig:
        return []
    found = []
    for place in range(ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", gpu.handle) or 0):
        handle = ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", gpu.handle, place)
        uuid = None if handle is None else ask(nvml, "nvmlDeviceGetUUID", handle)
        if uuid is None:
            continue
        attributes = ask(nvml, "nvmlDeviceGetAttributes", handle)
        known: Known = make(
            handle,
            Device(
                uuid=text(uuid),
                index=gpu.device.index,
                name=f"{gpu.device.name} MIG",
                memory_bytes=None,
                parent=gpu.device.uuid,
                bus_id=gpu.device.bus_id,
                multiprocessors=None if attributes is None else int(attributes.multiprocessorCount) or None,
                max_sm_clock_mhz=gpu.device.max_sm_clock_mhz,
            ),
        )
        known.instance = ask(nvml, "nvmlDeviceGetGpuInstanceId", handle)
        compute = ask(nvml, "nvmlDeviceGetComputeInstanceId", handle)
        if known.instance is not None and compute is not None:
            known.parts = (known.instance, compute)
        if known.instance is not None:
            known.gpm = GpmWatch(nvml, gpu.handle, known.instance)
        describe(nvml, known)
        found.append(known)
    return found
