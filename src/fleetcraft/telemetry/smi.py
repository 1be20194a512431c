"""NVIDIA GPUs through the `nvidia-smi` program, for where the driver's library cannot be used.

Each look costs a process. It is ended at its deadline; one that cannot be ended is left alone, is told as hung, and
no second one is started beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.telemetry.api import Device, DeviceState, GpuProcess, HostState, Occupancy, Reading, Reason, Sweep
from fleetcraft.telemetry.deadline import Reader
from fleetcraft.telemetry.fields import NAMES
from fleetcraft.telemetry.nvml_processes import Owners, is_own, lists_wrongly, sees_all_pids
from fleetcraft.telemetry.smi_text import (
    QUESTIONS,
    Row,
    Trouble,
    instances_of,
    invalid_field,
    listed_of,
    lost_bus_ids,
    processes_of,
    rows_of,
    trouble_of,
    without,
)
from fleetcraft.telemetry.visibility import usable_devices
from fleetcraft.transports.api import Answer, Surroundings, Transport
from fleetcraft.transports.local import LocalTransport

_FORMAT = "--format=csv,noheader,nounits"
_SURROUNDINGS = Surroundings(add={"LC_ALL": "C"})
# The rest of the deadline is for ending what did not answer.
_SHARE = 0.8
_FRESH_S = 1.0
_DRIVER_SIGN = "/proc/driver/nvidia"
_OF_PROCESSES = ("own_pids", "own_memory_bytes", "foreign_pids", "foreign_memory_bytes")


@dataclass(slots=True)
class _Look:
    """What one round of questions came to."""

    rows: list[Row] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # bus ids
    processes: dict[str, list[GpuProcess]] | None = None
    instances: list[tuple[str, int, str, str]] = field(default_factory=list)
    trouble: Trouble | None = None


class SmiSensor:
    """See `Sensor`. Energy, Xid and measured activity are not told by this program: they are `unsupported`."""

    name = "nvidia-smi"

    def __init__(
        self,
        deadline_s: float = 10.0,
        *,
        clock: Clock | None = None,
        transport: Transport | None = None,
        program: str = "nvidia-smi",
        own: Callable[[int], bool | None] = is_own,
        all_pids: bool | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._deadline_s = deadline_s
        self._clock = clock or SystemClock()
        self._transport = transport or LocalTransport()
        self._program = program
        self._own = own
        self._all_pids = sees_all_pids() if all_pids is None else all_pids
        self._env = os.environ if env is None else env
        self._reader = Reader("nvidia-smi", self._clock)
        self._questions = QUESTIONS
        self._known: dict[str, Device] = {}
        self._expected: dict[str, Device] = {}
        self._owners: dict[str, Owners] = {}
        self._seen: set[str] = set()
        self._looked_mono: float | None = None
        self._look = _Look()
        self.driver = ""
        self.state = HostState.OK
        self.reason = ""

    def devices(self) -> list[Device]:
        """See `Sensor.devices`."""
        self._fresh(_FRESH_S)
        return self._usable()

    def _usable(self) -> list[Device]:
        here = [device for uuid, device in self._known.items() if uuid in self._seen]
        cut = {device.parent for device in here}
        return usable_devices([device for device in here if device.uuid not in cut], self._env)

    def inventory(self) -> list[Device]:
        """See `Sensor.inventory`."""
        self._fresh(_FRESH_S)
        return self._told()

    def _told(self) -> list[Device]:
        usable = self._usable()
        mine = {device.uuid for device in usable} | {device.parent for device in usable}
        away = [device for uuid, device in self._known.items() if uuid not in self._seen]
        told = [device for device in self._known.values() if device.uuid in mine or device in away]
        return [*told, *(device for uuid, device in self._expected.items() if uuid not in self._known)]

    def expect(self, devices: Iterable[Device]) -> None:
        """See `Sensor.expect`."""
        self._expected.update((device.uuid, device) for device in devices if not device.parent)

    def occupancy(self, uuid: str) -> Occupancy:
        """See `Sensor.occupancy`."""
        self._fresh(_FRESH_S)
        row = next((row for row in self._look.rows if row.uuid == uuid), None)
        if self.state is HostState.HUNG or row is None:
            return Occupancy(used_bytes=None, pids=None, reason=self.reason or f"there is no device {uuid}")
        used = row.values.get("memory_used_bytes")
        listed = self._look.processes
        pids = None if listed is None or lists_wrongly(self.driver) else tuple(one.pid for one in listed.get(uuid, ()))
        reason = "" if used is not None else f"not reported by the driver ({row.reasons.get('memory_used_bytes')})"
        return Occupancy(used_bytes=None if used is None else int(used), pids=pids, reason=reason)

    def read(self) -> Sweep:
        """See `Sensor.read`."""
        self._fresh(0.0)
        rows = {row.uuid: row for row in self._look.rows}
        told = self._told()
        if self.state is not HostState.OK:
            hung = self.state is HostState.HUNG
            state, blame = (DeviceState.HUNG, Reason.HUNG) if hung else (DeviceState.BROKEN, self._blame())
            return self._sweep([_absent(device, state, blame) for device in told])
        return self._sweep([self._reading(device, rows.get(device.uuid)) for device in told])

    def _sweep(self, readings: Sequence[Reading]) -> Sweep:
        return Sweep(state=self.state, readings=tuple(readings), reason=self.reason, driver=self.driver)

    def _blame(self) -> Reason:
        return Reason.NO_DRIVER if self._look.trouble is None else self._look.trouble.reason

    def _reading(self, device: Device, row: Row | None) -> Reading:
        if device.parent:
            reasons = dict.fromkeys(NAMES, Reason.SHARED) | {"util_pct": Reason.MIG}
            return Reading(uuid=device.uuid, state=DeviceState.OK, reasons=reasons)
        if row is None:
            return _absent(device, DeviceState.LOST, Reason.LOST, ("missing",))
        if row.state is not DeviceState.OK:
            return _absent(device, row.state, next(iter(row.reasons.values()), Reason.ERROR))
        values, reasons = dict(row.values), dict(row.reasons)
        listed = self._look.processes
        processes = None if listed is None else tuple(listed.get(device.uuid, ()))
        for name, value in self._split(device.uuid, processes).items():
            if isinstance(value, Reason):
                reasons[name] = value
            else:
                values[name] = value
        for name in NAMES:
            if name not in values:
                reasons.setdefault(name, Reason.UNSUPPORTED)
        return Reading(
            uuid=device.uuid, values=values, reasons=reasons, processes=processes, notes=tuple(row.notes)
        )  # fmt: skip

    def _split(self, uuid: str, processes: Sequence[GpuProcess] | None) -> dict[str, float | Reason]:
        if processes is None:
            return dict.fromkeys(_OF_PROCESSES, Reason.ERROR)
        if lists_wrongly(self.driver):
            return dict.fromkeys(_OF_PROCESSES, Reason.UNTRUSTED)
        owners = self._owners.setdefault(uuid, Owners(self._own, all_pids=self._all_pids))
        return owners.split(processes)

    def _fresh(self, most_s: float) -> None:
        """Look again, unless the last look is that new."""
        now = self._clock.mono()
        if self._looked_mono is not None and now - self._looked_mono < most_s:
            return
        answer = self._reader.call(self._ask_all, self._deadline_s)
        self._looked_mono = now
        if answer.late:
            self._refuse(HostState.HUNG, f"hung: no answer within {self._deadline_s:.0f} s")
        elif answer.error is not None:
            self._look = _Look()
            self._refuse(HostState.BROKEN, f"nvidia-smi cannot be asked: {answer.error}")
        else:
            self._take(answer.value)

    def _refuse(self, state: HostState, reason: str) -> None:
        self.state, self.reason = state, reason

    def _take(self, look: _Look) -> None:
        self._look = look
        if look.trouble is not None:
            self._refuse(look.trouble.state, look.trouble.text)
            return
        for row in look.rows:
            self.driver = row.driver or self.driver
            total = row.values.get("memory_total_bytes")
            known = self._known.get(row.uuid)
            if known is not None and total is None:
                continue  # what it said when it was well stands
            self._known[row.uuid] = Device(
                uuid=row.uuid, index=row.index, name=row.name, memory_bytes=None if total is None else int(total),
                bus_id=row.bus_id, power_limit_w=row.power_limit_w, max_sm_clock_mhz=row.max_sm_clock_mhz,
            )  # fmt: skip
        for parent, index, profile, uuid in look.instances:
            self._known[uuid] = Device(uuid=uuid, index=index, name=f"MIG {profile}", memory_bytes=None, parent=parent)
        self._seen = {row.uuid for row in look.rows if row.state is not DeviceState.LOST}
        self._seen.update(uuid for _parent, _index, _profile, uuid in look.instances)
        self._refuse(
            HostState.OK if self._known else HostState.NO_GPU, "" if self._known else "nvidia-smi finds no GPU"
        )

    def _ask_all(self) -> _Look:
        """In the reader's thread."""
        until = self._clock.mono() + self._deadline_s * _SHARE
        look = self._ask_gpus(until, ())
        if look.trouble is not None:
            return look
        # It ends at the first GPU that it cannot speak to, so the others are asked for by name.
        here = {row.uuid for row in look.rows}
        left = [uuid for uuid in self._others(until, look) if uuid not in here] if look.lost else []
        if left:
            look.rows += self._ask_gpus(until, ("-i", ",".join(left))).rows
        if any(row.is_mig for row in look.rows):
            look.instances = instances_of(self._run(until, "-L").out)
        listed = self._run(until, "--query-compute-apps=gpu_uuid,pid,used_memory", _FORMAT)
        look.processes = processes_of(listed.out) if listed.code == 0 else None
        return look

    def _others(self, until: float, look: _Look) -> list[str]:
        """Every GPU that is listed, or was once, and is not lost."""
        lost = {uuid for uuid, device in self._known.items() if device.bus_id in look.lost or device.parent}
        listed = listed_of(self._run(until, "-L").out)
        return [uuid for uuid in dict.fromkeys([*self._known, *listed]) if uuid not in lost]

    def _ask_gpus(self, until: float, more: Sequence[str]) -> _Look:
        while True:
            answer = self._run(until, f"--query-gpu={','.join(self._questions)}", _FORMAT, *more)
            said = f"{answer.out}\n{answer.err}"
            refused = invalid_field(said)
            if refused is None:
                break
            self._questions = without(self._questions, refused)
        look = _Look(lost=lost_bus_ids(said))
        if answer.code is None:
            look.trouble = self._no_answer(answer)
            return look
        look.rows, bad = rows_of(answer.out, self._questions)
        if not look.rows and not look.lost:
            look.trouble = trouble_of(said, has_driver=os.path.exists(_DRIVER_SIGN)) or Trouble(
                state=HostState.BROKEN, reason=Reason.PARSE if bad else Reason.ERROR,
                text=f"nvidia-smi ended with {answer.code} and named no GPU: {(bad or [answer.err.strip()])[0][:200]}",
            )  # fmt: skip
        return look

    def _no_answer(self, answer: Answer) -> Trouble:
        if "timed out" in answer.problem:
            return Trouble(state=HostState.HUNG, reason=Reason.HUNG, text=f"hung: nvidia-smi {answer.problem}")
        if os.path.exists(_DRIVER_SIGN):
            return Trouble(state=HostState.BROKEN, reason=Reason.NO_DRIVER, text=f"nvidia-smi: {answer.problem}")
        text = f"{Reason.NO_DRIVER}: no NVIDIA driver is loaded on this host, and nvidia-smi: {answer.problem}"
        return Trouble(state=HostState.NO_GPU, reason=Reason.NO_DRIVER, text=text)

    def _run(self, until: float, *words: str) -> Answer:
        left_s = max(0.05, until - self._clock.mono())
        return self._transport.run((self._program, *words), timeout_s=left_s, surroundings=_SURROUNDINGS)


def _absent(device: Device, state: DeviceState, reason: Reason, notes: tuple[str, ...] = ()) -> Reading:
    return Reading(uuid=device.uuid, state=state, reasons=dict.fromkeys(NAMES, reason), notes=notes)
