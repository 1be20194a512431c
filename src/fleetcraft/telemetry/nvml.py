"""NVIDIA GPUs through the driver's own library: which there are, by UUID, and what each of them does.

NVML can hang for minutes on a sick GPU. Every call runs in the thread of its device, or in that of the host, with
a deadline; what is late is reported as `hung`, and everything else goes on without it. A GPU that was seen once is
never left out: it comes as lost or hung until it is back.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.telemetry.api import Device, DeviceState, HostState, Occupancy, Reading, Reason, Sweep
from fleetcraft.telemetry.deadline import Answer
from fleetcraft.telemetry.fields import NAMES
from fleetcraft.telemetry.nvml_device import Known, memory_info
from fleetcraft.telemetry.nvml_errors import reason_of
from fleetcraft.telemetry.nvml_host import DRIVER_SIGNS, LATE, PATIENCE_S, PENDING, BindingError, NvmlHost
from fleetcraft.telemetry.nvml_inventory import Group
from fleetcraft.telemetry.nvml_measure import measure
from fleetcraft.telemetry.nvml_processes import is_own, lists_wrongly, processes_of
from fleetcraft.telemetry.visibility import usable_devices

_DEADLINE_S = 10.0


def load_binding() -> Any:
    """NVIDIA's own `pynvml`. Raises BindingError where it is not installed, or something else has its name."""
    try:
        import pynvml
    except ImportError:
        raise BindingError("the package nvidia-ml-py is not installed") from None
    if not hasattr(pynvml, "_nvmlGetFunctionPointer"):
        where = getattr(pynvml, "__file__", None) or "the path"
        raise BindingError(
            f"the package `pynvml` in {where} is not NVIDIA's binding: uninstall it and install nvidia-ml-py"
        )
    return pynvml


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    readings: tuple[Reading, ...]
    is_stale: bool


class NvmlSensor(NvmlHost):
    """Reads through `pynvml` where it is installed; `reason` says why not otherwise."""

    name = "nvml"

    def __init__(
        self,
        deadline_s: float = _DEADLINE_S,
        *,
        clock: Clock | None = None,
        own: Callable[[int], bool | None] = is_own,
        signs: tuple[str, ...] = DRIVER_SIGNS,
    ) -> None:
        self._told: set[str] = set()  # every UUID that was ever spoken of
        super().__init__(deadline_s, clock=clock or SystemClock(), own=own, signs=signs, binding=load_binding)

    def _shown(self) -> list[Known]:
        """Those that this process may use, in the driver's order; a GPU in MIG mode is used by its instances only."""
        listed = [known for group in self._groups.values() if group.is_listed for known in group.all()]
        usable = {known.device.uuid: known for known in listed if not known.is_mig}
        parts = {known.device.uuid: known.parts for known in listed if known.parts is not None}
        chosen = usable_devices([known.device for known in usable.values()], os.environ, parts)
        return [usable[device.uuid] for device in chosen]

    def devices(self) -> list[Device]:
        """See `Sensor.devices`; `CUDA_VISIBLE_DEVICES` is respected, by index and by UUID."""
        return [known.device for known in self._shown() if known.handle is not None]

    def inventory(self) -> list[Device]:
        """See `Sensor.inventory`."""
        return [known.device for group in self._watched() for known in group.all() if self._is_told(known)]

    def _watched(self) -> list[Group]:
        """The GPUs of which anything is, or was, for this process to use, and those that were expected and are gone."""
        shown = [known.device for known in self._shown()]
        self._told.update(device.uuid for device in shown)
        self._told.update(device.parent for device in shown)
        return [
            group
            for uuid, group in self._groups.items()
            if not self._told.isdisjoint(group.uuids()) or (uuid in self._expected and group.gpu.handle is None)
        ]

    def _is_told(self, known: Known) -> bool:
        return not known.device.parent or known.device.uuid in self._told

    def occupancy(self, uuid: str) -> Occupancy:
        """See `Sensor.occupancy`."""
        if not self._serves:
            self._refresh()
        for group in self._groups.values():
            known = group.find(uuid)
            if known is None:
                continue
            if known.handle is None:
                return Occupancy(used_bytes=None, pids=None, reason=str(known.missing or Reason.LOST))
            answer = group.reader.call(functools.partial(self._occupancy, known), self._deadline_s)
            if answer.late:
                return Occupancy(used_bytes=None, pids=None, reason=self._hung())
            if answer.error is not None:
                return Occupancy(used_bytes=None, pids=None, reason=str(answer.error))
            found: Occupancy = answer.value
            return found
        return Occupancy(used_bytes=None, pids=None, reason=self.reason or f"there is no device {uuid}")

    def _occupancy(self, known: Known) -> Occupancy:
        nvml = self._nvml
        used: int | None = None
        pids: tuple[int, ...] | None = None
        reason = ""
        try:
            used = int(memory_info(nvml, known.handle)[0].used)
        except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
            reason = f"not reported by the driver ({reason_of(error)})"
        if not lists_wrongly(self.driver):
            try:
                pids = tuple(
                    process.pid for process in processes_of(nvml.nvmlDeviceGetComputeRunningProcesses(known.handle))
                )
            except Exception:  # noqa: BLE001, S110  None says it
                pass
        return Occupancy(used_bytes=used, pids=pids, reason=reason)

    def read(self) -> Sweep:
        """See `Sensor.read`."""
        until = self._clock.mono() + self._deadline_s
        self._refresh()
        if not self._serves:
            state = DeviceState.HUNG if self.state is HostState.HUNG else DeviceState.BROKEN
            gone = [_absent(known, state, self._blame) for group in self._watched() for known in group.all()]
            return Sweep(state=self.state, readings=tuple(gone), reason=self.reason, driver=self.driver)
        watched = self._watched()
        trusted = not lists_wrongly(self.driver)
        events = self._poll_events(until)
        answers: dict[str, Answer | None] = {}
        for group in watched:
            if group.gpu.handle is not None:
                # One after the other: threads that run at once take the interpreter from each other at every call.
                # A slow one is left behind, so that it costs the others nothing.
                question = functools.partial(self._measure, group, trusted=trusted, events=events)
                asked = self._ask(group, question, until)
                answers[group.gpu.device.uuid] = group.reader.look(PATIENCE_S) if asked else LATE
        readings: list[Reading] = []
        for group in watched:
            answer = answers.get(group.gpu.device.uuid, LATE)
            readings += self._readings(group, self._collect(group, until) if answer is None else answer)
        if events is PENDING:
            self._host.collect(max(0.0, until - self._clock.mono()))
        hung = bool(readings) and all(reading.state is DeviceState.HUNG for reading in readings)
        self.state = HostState.HUNG if hung else (HostState.OK if self._groups else HostState.NO_GPU)
        if self._groups:
            self.reason = self._hung() if hung else ""
        return Sweep(state=self.state, readings=tuple(readings), reason=self.reason, driver=self.driver)

    def _measure(self, group: Group, *, trusted: bool, events: Answer) -> _Measured:
        """In the device's thread."""
        if not group.gpu.described:
            group.describe()
        told = [known for known in group.all() if self._is_told(known)]
        found = [
            measure(
                self._nvml,
                known,
                self._clock,
                trusts_processes=trusted,
                extra={} if known.device.parent else self._xid_fields(known.device.uuid, events),
            )
            for known in told
        ]
        return _Measured(
            readings=tuple(reading for reading, _stale in found), is_stale=any(stale for _reading, stale in found)
        )

    def _readings(self, group: Group, answer: Answer) -> list[Reading]:
        told = [known for known in group.all() if self._is_told(known)]
        if group.gpu.handle is None:
            reason = group.gpu.missing or Reason.LOST
            state = DeviceState.RESET_REQUIRED if reason is Reason.RESET_REQUIRED else DeviceState.LOST
            if reason not in (Reason.LOST, Reason.RESET_REQUIRED):
                state = DeviceState.BROKEN
            return [_absent(known, state, reason, group.notes()) for known in told]
        if answer.late:
            since = group.reader.out_since_utc()
            notes = () if since is None else (f"hung_since:{since * 1000:.0f}",)
            return [_absent(known, DeviceState.HUNG, Reason.HUNG, notes) for known in told]
        if answer.error is not None:
            return [_absent(known, DeviceState.BROKEN, Reason.ERROR) for known in told]
        measured: _Measured = answer.value
        self._stale = self._stale or measured.is_stale
        outage = group.reader.take_outage()
        if outage is None:
            return list(measured.readings)
        note = f"resumed_after:{outage.until_utc - outage.since_utc:.0f}s"
        return [replace(reading, notes=(*reading.notes, note)) for reading in measured.readings]


def _absent(known: Known, state: DeviceState, reason: Reason, notes: tuple[str, ...] = ()) -> Reading:
    return Reading(uuid=known.device.uuid, state=state, reasons=dict.fromkeys(NAMES, reason), notes=notes)
