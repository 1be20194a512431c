"""What one device does now: every field is a number or a reason, and a failed field never costs another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetcraft.core.clock import Clock
from fleetcraft.telemetry.api import DeviceState, GpuProcess, Reading, Reason
from fleetcraft.telemetry.fields import NAMES
from fleetcraft.telemetry.gpm import METRICS
from fleetcraft.telemetry.nvml_device import Known, memory_info
from fleetcraft.telemetry.nvml_errors import STALE, STATES, code_of, is_blank, reason_of
from fleetcraft.telemetry.nvml_power import read_power
from fleetcraft.telemetry.nvml_processes import processes_of

# Errors and links change rarely and cost a call each; at one sample a second they are asked every tenth time.
_SLOW_S = 9.5
_ALL = frozenset(NAMES)
_GPU_SAMPLES = 1
_LOOK_COVERS_S = 1.5
_VOLATILE = 0
# What is told once for a whole GPU, and not for each instance that is cut from it.
_OF_THE_GPU = (
    "power_w", "power_averaged", "power_scope", "module_power_w", "energy_mj", "temperature_c", "sm_clock_mhz",
    "memory_clock_mhz", "throttle_mask", "performance_state", "ecc_corrected", "ecc_uncorrected", "remapped_rows",
    "xid", "xid_events", "pcie_generation", "pcie_width", "nvlinks_up",
)  # fmt: skip
_PLAIN: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("energy_mj", "nvmlDeviceGetTotalEnergyConsumption", ()),
    ("sm_clock_mhz", "nvmlDeviceGetClockInfo", (1,)),
    ("memory_clock_mhz", "nvmlDeviceGetClockInfo", (2,)),
)


# What stands at the fields that were not asked for, by the state of the device.
_REST = {
    DeviceState.LOST: Reason.LOST,
    DeviceState.RESET_REQUIRED: Reason.RESET_REQUIRED,
    DeviceState.BROKEN: Reason.ERROR,
}


class Probe:
    """Collects one reading. After an answer that speaks for the whole device, nothing more is asked."""

    def __init__(self, nvml: Any, known: Known) -> None:
        self.nvml = nvml
        self.known = known
        self.values: dict[str, float] = {}
        self.reasons: dict[str, Reason] = {}
        self.notes: list[str] = []
        self.processes: tuple[GpuProcess, ...] | None = None
        self.state = DeviceState.OK
        self.is_stale = False

    def take(self, name: str, call: str, *args: Any) -> None:
        """One field by one call of the driver."""
        if self.state is not DeviceState.OK:
            return
        try:
            value = getattr(self.nvml, call)(self.known.handle, *args)
            if is_blank(value):
                self.reasons[name] = Reason.BLANK
            else:
                self.values[name] = value
        except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
            self.fail(name, error)

    def take_first(self, name: str, *calls: tuple[str, tuple[Any, ...]]) -> None:
        """The same by the first call that this driver and this binding know."""
        for call, args in calls:
            self.reasons.pop(name, None)
            self.take(name, call, *args)
            if self.reasons.get(name) is not Reason.OLD_DRIVER:
                return

    def put(self, name: str, value: float | Reason) -> None:
        """A number, unless it stands for the lack of one."""
        if isinstance(value, Reason):
            self.absent(name, value)
        elif is_blank(value):
            self.reasons[name] = Reason.BLANK
        else:
            self.values[name] = value

    def absent(self, name: str, reason: Reason) -> None:
        """No number, and why."""
        self.reasons[name] = reason
        self.state = STATES.get(reason, self.state)

    def fail(self, name: str, error: Exception) -> Reason:
        """An error of the driver."""
        self.is_stale = self.is_stale or code_of(error) in STALE
        reason = reason_of(error)
        self.absent(name, reason)
        return reason

    def reading(self) -> Reading:
        """All that was found; whatever has neither number nor reason by now is absent for the device's own one."""
        rest = _REST.get(self.state, Reason.UNSUPPORTED)
        for name in _ALL - self.values.keys() - self.reasons.keys():
            self.reasons[name] = rest
        return Reading(
            uuid=self.known.device.uuid,
            state=self.state,
            values=self.values,
            reasons=self.reasons,
            processes=self.processes,
            notes=tuple(self.notes),
        )


def measure(
    nvml: Any, known: Known, clock: Clock, *, trusts_processes: bool, extra: Mapping[str, float | Reason]
) -> tuple[Reading, bool]:
    """One reading, and whether the library must be opened anew; `extra` are fields that come from elsewhere."""
    probe = Probe(nvml, known)
    _memory(probe)
    _processes(probe, trusted=trusts_processes)
    figures: Mapping[str, float | Reason] = {}
    if probe.state is DeviceState.OK:
        figures = known.gpm.take(clock.mono()) if known.gpm is not None else dict.fromkeys(METRICS, Reason.UNSUPPORTED)
    for name in METRICS if figures else ():
        probe.put(name, figures[name])
    if known.device.parent:
        _instance_load(probe, figures.get("graphics", Reason.MIG))
    else:
        _load(probe, clock)
        _board(probe)
        if not probe.values and probe.state is DeviceState.OK:
            probe.state = DeviceState.BROKEN  # it is there, and every question fails
        _slow(probe, clock.mono())
    for name, value in extra.items():
        probe.put(name, value)
    return probe.reading(), probe.is_stale


def _memory(probe: Probe) -> None:
    known = probe.known
    try:
        info, apart = memory_info(probe.nvml, known.handle)
    except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
        reason = probe.fail("memory_used_bytes", error)
        if known.is_unified and reason is Reason.UNSUPPORTED:
            reason = Reason.UNIFIED
            probe.notes.append("unified_memory")
        for name in ("memory_used_bytes", "memory_total_bytes", "memory_reserved_bytes"):
            probe.reasons[name] = reason
        return
    probe.put("memory_used_bytes", int(info.used))
    # Zero is no size: whatever that is, it is not taken for the memory of the host.
    probe.put("memory_total_bytes", int(info.total) or Reason.IMPLAUSIBLE)
    probe.put("memory_reserved_bytes", int(info.reserved) if apart else Reason.OLD_DRIVER)
    if not apart:
        probe.notes.append("memory_used_with_reserved")


def _processes(probe: Probe, *, trusted: bool) -> None:
    names = ("own_pids", "own_memory_bytes", "foreign_pids", "foreign_memory_bytes")
    if not trusted:
        probe.notes.append("process_list_untrusted")
        probe.reasons.update(dict.fromkeys(names, Reason.UNTRUSTED))
        return
    if probe.state is not DeviceState.OK:
        return
    try:
        probe.processes = processes_of(probe.nvml.nvmlDeviceGetComputeRunningProcesses(probe.known.handle))
    except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
        probe.reasons.update(dict.fromkeys(names, probe.fail(names[0], error)))
        return
    for name, value in probe.known.owners.split(probe.processes).items():
        probe.put(name, value)


def _instance_load(probe: Probe, graphics: float | Reason) -> None:
    if isinstance(graphics, Reason):
        # Zero would say that it is idle; without the counters nobody knows.
        probe.reasons["util_pct"] = Reason.MIG
    else:
        probe.values["util_pct"] = graphics
        probe.notes.append("util_from_gpm")
    probe.reasons.update(dict.fromkeys(_OF_THE_GPU, Reason.SHARED))


def _load(probe: Probe, clock: Clock) -> None:
    """The mean of the driver's own samples since the last reading: a single look covers a second of the interval."""
    known = probe.known
    if known.is_mig:
        probe.reasons["util_pct"] = Reason.MIG
        return
    if probe.state is not DeviceState.OK:
        return
    now_mono = clock.mono()
    # Over a short interval a single look covers all of it, for half the price.
    is_long = known.load_mono is not None and now_mono - known.load_mono > _LOOK_COVERS_S
    known.load_mono = now_mono
    mean = _sampled(probe.nvml, known) if is_long else None
    if mean is not None:
        probe.values["util_pct"] = mean
        return
    known.seen_us = int(clock.utc() * 1e6)
    try:
        value = float(probe.nvml.nvmlDeviceGetUtilizationRates(known.handle).gpu)
    except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
        probe.fail("util_pct", error)
        return
    probe.put("util_pct", value if 0 <= value <= 100 else Reason.NAN)


def _sampled(nvml: Any, known: Known) -> float | None:
    try:
        _kind, samples = nvml.nvmlDeviceGetSamples(known.handle, _GPU_SAMPLES, known.seen_us)
    except Exception:  # noqa: BLE001  then the single look must do
        return None
    total = count = 0
    for sample in samples:
        value, at_us = sample.sampleValue.uiVal, sample.timeStamp
        if at_us > known.seen_us and value <= 100:
            total += value
            count += 1
    if not count:
        return None
    known.seen_us = max(sample.timeStamp for sample in samples)
    return total / count


def _board(probe: Probe) -> None:
    if probe.state is DeviceState.OK:
        for name, value in read_power(probe.nvml, probe.known.handle, probe.known.device.power_limit_w).items():
            probe.put(name, value)
    for name, call, args in _PLAIN:
        probe.take(name, call, *args)
    probe.take_first("temperature_c", ("nvmlDeviceGetTemperatureV", (0,)), ("nvmlDeviceGetTemperature", (0,)))
    probe.take_first(
        "throttle_mask",
        ("nvmlDeviceGetCurrentClocksEventReasons", ()),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", ()),
    )
    probe.take("performance_state", "nvmlDeviceGetPerformanceState")
    if probe.values.get("performance_state") == 32:  # the driver's word for unknown
        del probe.values["performance_state"]
        probe.reasons["performance_state"] = Reason.BLANK


def _slow(probe: Probe, now_mono: float) -> None:
    known = probe.known
    if known.slow_mono is not None and now_mono - known.slow_mono < _SLOW_S and probe.state is DeviceState.OK:
        values, reasons, notes = known.slow
        probe.values.update(values)
        probe.reasons.update(reasons)
        probe.notes.extend(notes)
        return
    slow = Probe(probe.nvml, known)
    slow.state = probe.state
    slow.take("ecc_corrected", "nvmlDeviceGetTotalEccErrors", 0, _VOLATILE)
    slow.take("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", 1, _VOLATILE)
    slow.take("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration")
    slow.take("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth")
    _rows(slow)
    _links_up(slow)
    if slow.state is DeviceState.OK:
        known.slow, known.slow_mono = (slow.values, slow.reasons, slow.notes), now_mono
    probe.state = slow.state
    probe.is_stale = probe.is_stale or slow.is_stale
    probe.values.update(slow.values)
    probe.reasons.update(slow.reasons)
    probe.notes.extend(slow.notes)


def _rows(probe: Probe) -> None:
    if probe.state is not DeviceState.OK:
        return
    try:
        corrected, uncorrected, pending, failed = probe.nvml.nvmlDeviceGetRemappedRows(probe.known.handle)
    except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
        if probe.fail("remapped_rows", error) is Reason.UNSUPPORTED:
            _pages(probe)
        return
    probe.put("remapped_rows", corrected + uncorrected)
    if pending:
        probe.notes.append("row_remap_pending")
    if failed:
        probe.notes.append("row_remap_failure")


def _pages(probe: Probe) -> None:
    """Before Ampere a GPU does not replace rows: it puts whole pages out of use after errors in them."""
    nvml, handle = probe.nvml, probe.known.handle
    try:
        retired = sum(len(nvml.nvmlDeviceGetRetiredPages(handle, cause)) for cause in (0, 1))
        pending = nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)
    except Exception:  # noqa: BLE001  a GPU without error correction has neither, and nothing is said of it
        return
    if retired:
        probe.notes.append(f"retired_pages:{retired}")
    if pending:
        probe.notes.append("page_retirement_pending")


def _links_up(probe: Probe) -> None:
    up = 0
    for link in range(probe.known.links):
        if probe.state is not DeviceState.OK:
            return
        try:
            up += bool(probe.nvml.nvmlDeviceGetNvLinkState(probe.known.handle, link))
        except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
            if probe.fail("nvlinks_up", error) is not Reason.UNSUPPORTED:
                return
            del probe.reasons["nvlinks_up"]  # that link is not there; others may be
    probe.put("nvlinks_up", up if probe.known.links else Reason.UNSUPPORTED)
