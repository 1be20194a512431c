"""Turns what a sensor says at each tick into lines of a segment; measures on through every trouble and never raises.

A full disk pauses the writing and the pause is written down afterwards. A driver that hangs is a finding with a
beginning, not a hole. A clock that steps back begins a new segment.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleetcraft.core.clock import Clock
from fleetcraft.store.files import FULL, Files, publish_file
from fleetcraft.telemetry.api import Device, DeviceState, HostState, Reading, Reason, Sensor, Sweep
from fleetcraft.telemetry.fields import NAMES
from fleetcraft.telemetry.rollup import CAP
from fleetcraft.telemetry.rollup_write import RollupWriter
from fleetcraft.telemetry.sampler_lock import make_host_folder, read_state
from fleetcraft.telemetry.segment import Header, Slot, encode_row, slots_of, statement
from fleetcraft.telemetry.segment_write import SegmentWriter

MOST_BYTES = 8 << 20
MOST_AGE_S = 86_400.0
STATE_EVERY_S = 60.0
CLOCK_STEP_MS = 1000
MOST_PATIENCE_S = 300.0
_MOST_PROCESSES = 64
STORAGE_FULL, UNREACHABLE = "storage_full", "storage_error"

_OF_HOST = {
    HostState.HUNG: (DeviceState.HUNG, Reason.HUNG),
    HostState.BROKEN: (DeviceState.BROKEN, Reason.ERROR),
    HostState.NO_GPU: (DeviceState.BROKEN, Reason.NO_DRIVER),
    HostState.OK: (DeviceState.LOST, Reason.NOT_FOUND),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Under which names is measured; all of them may be empty."""

    host: str
    job: str = ""
    step: str = ""
    fleet: str = ""
    spool: str = ""
    life: str = ""
    version: str = ""


@dataclass(slots=True)
class _Seen:
    """What was last said of a device, so that only changes are."""

    state: DeviceState = DeviceState.OK
    since_ms: int = 0
    notes: tuple[str, ...] = ()
    processes: tuple[tuple[int, int | None], ...] | None = None


@dataclass(slots=True)
class _Moment:
    """One tick."""

    utc_ms: int
    mono_ms: int
    asked_utc_ms: int
    boot_ms: int


@dataclass(slots=True)
class Sampler:
    """The state of one sampler between ticks."""

    folder: str  # of this host under the root
    labels: Labels
    interval_s: float
    sensor: Sensor
    clock: Clock
    files: Files
    state_name: str = "sampler.json"
    boot_id: Callable[[], str] = lambda: ""
    say: Callable[[str], None] = lambda _text: None
    most_bytes: int = MOST_BYTES
    most_age_s: float = MOST_AGE_S

    ticks: int = 0
    state: str = "starting"
    reason: str = ""
    sweep: Sweep | None = None
    writer: SegmentWriter | None = None
    slots: list[Slot] = field(default_factory=list)
    _rollup: RollupWriter | None = None
    _numbers: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _before: _Moment | None = None
    _host_state: HostState = HostState.OK
    _driver: str = ""
    _boot: str = ""
    _trouble_since_ms: int | None = None
    _trouble: str = ""
    _failures: int = 0
    _again_s: float = 0.0
    _state_due_s: float = 0.0
    _earlier: Mapping[str, Device] = field(default_factory=dict)
    _started_ms: int = 0
    _said: tuple[Any, ...] = ()

    def begin(self) -> None:
        """Look at the devices, and at what was here before. Nothing is written yet."""
        self._started_ms = round(self.clock.utc() * 1000)
        self._boot = self.boot_id()
        self._earlier = _told_before(self.folder, self.state_name, self.labels.job, self._boot)
        self.sensor.expect(self._earlier.values())
        self._add_devices(self.sensor.inventory())
        self._write_state(force=True)

    def _add_devices(self, devices: list[Device]) -> bool:
        new = [device for device in devices if device.uuid not in self._numbers]
        for device in new:
            self._numbers[device.uuid] = len(self.slots)
            self.slots.append(Slot(n=len(self.slots), device=device))
        return bool(new)

    def tick(self) -> None:
        """Read every device once and write it down, or remember why that was not possible."""
        asked_utc_ms = round(self.clock.utc() * 1000)
        self.sweep = sweep = self._read()
        clock = self.clock
        now = _Moment(round(clock.utc() * 1000), round(clock.mono() * 1000), asked_utc_ms, round(clock.boot() * 1000))
        lines: list[str] = []
        if any(reading.uuid not in self._numbers for reading in sweep.readings):
            # What the sensor did not list before, it lists now, or it was here before; else its UUID alone is known.
            listed = {**self._earlier, **{device.uuid: device for device in self.sensor.inventory()}}
            for reading in sweep.readings:
                unknown = Device(uuid=reading.uuid, index=len(self.slots), name="", memory_bytes=None)
                self._add_devices([listed.get(reading.uuid, unknown)])
            lines.append(self._devices_line(now.utc_ms))
        readings = self._complete(sweep)
        if self._must_begin_anew(now):
            self._end_segment("a clock was set back or the machine was started anew", now.utc_ms)
        if self.ticks == 0:
            self._note_baselines(readings)
        lines += self._changes(sweep, readings, now)
        self._write(lines, readings, now)
        self.ticks += 1
        self._before = now
        self._write_state()

    def _read(self) -> Sweep:
        try:
            return self.sensor.read()
        except Exception as error:  # noqa: BLE001  a sensor must not raise; if one does, measuring goes on
            return Sweep(state=HostState.BROKEN, reason=f"the sensor failed: {error!r}"[:300])

    def _complete(self, sweep: Sweep) -> list[Reading]:
        """One reading for each device known, in the order of their numbers."""
        found = {reading.uuid: reading for reading in sweep.readings}
        state, reason = _OF_HOST[sweep.state]
        reasons = dict.fromkeys(NAMES, reason)
        return [
            found.get(slot.device.uuid) or Reading(uuid=slot.device.uuid, state=state, reasons=reasons)
            for slot in self.slots
        ]

    def _note_baselines(self, readings: list[Reading]) -> None:
        """What a device holds while nobody uses it, where it is sure that nobody does."""
        for at, reading in enumerate(readings):
            used = reading.values.get("memory_used_bytes")
            nobody = reading.processes == () or (
                reading.values.get("own_pids") == 0 and reading.values.get("foreign_pids") == 0
            )
            if reading.state is DeviceState.OK and used is not None and nobody:
                self.slots[at] = replace(self.slots[at], baseline_bytes=int(used))

    def _must_begin_anew(self, now: _Moment) -> bool:
        before, boot = self._before, self._boot
        if before is None or now.mono_ms >= before.mono_ms:
            return False
        self._boot = self.boot_id() or boot
        self._before = None
        return True

    # What changed since the tick before

    def _changes(self, sweep: Sweep, readings: list[Reading], now: _Moment) -> list[str]:
        lines = self._clock_changes(now)
        at = now.utc_ms
        if sweep.state is not self._host_state:
            lines.append(statement("host", at, state=sweep.state.value, reason=sweep.reason))
            if sweep.state is HostState.HUNG:
                lines.append(statement("hung", at, uuid="", since_ms=now.asked_utc_ms, reason=sweep.reason))
            self._host_state = sweep.state
        if sweep.driver and sweep.driver != self._driver:
            if self._driver:
                lines.append(statement("driver", at, driver=sweep.driver))
            self._driver = sweep.driver
        for reading in readings:
            lines += self._device_changes(reading, now)
        return lines

    def _clock_changes(self, now: _Moment) -> list[str]:
        before, lines = self._before, []
        if before is None:
            return []
        passed_ms = now.mono_ms - before.mono_ms
        slept_ms = (now.boot_ms - before.boot_ms) - passed_ms
        step_ms = (now.utc_ms - before.utc_ms) - passed_ms - max(0, slept_ms)
        if abs(step_ms) > CLOCK_STEP_MS:
            lines.append(statement("clock", now.utc_ms, step_ms=step_ms))
        asleep = slept_ms > CLOCK_STEP_MS
        if (passed_ms > self.interval_s * 1000 * CAP or asleep) and self._trouble_since_ms is None:
            why = "the machine slept" if asleep else "late"
            lines.append(statement("gap", now.utc_ms, from_ms=before.utc_ms, to_ms=now.utc_ms, why=why))
        return lines

    def _device_changes(self, reading: Reading, now: _Moment) -> list[str]:
        at, uuid, lines = now.utc_ms, reading.uuid, []
        seen = self._seen.setdefault(uuid, _Seen())
        if reading.state is not seen.state:
            if reading.state is DeviceState.OK:
                lines.append(statement("resumed", at, uuid=uuid, from_ms=seen.since_ms, was=seen.state.value))
            elif reading.state is DeviceState.HUNG:
                lines.append(statement("hung", at, uuid=uuid, since_ms=now.asked_utc_ms))
            elif reading.state is DeviceState.LOST:
                lines.append(statement("lost", at, uuid=uuid))
            else:
                why = next(iter(reading.reasons.values()), None)
                lines.append(statement("state", at, uuid=uuid, state=reading.state.value, reason=why and why.value))
            seen.state, seen.since_ms = reading.state, now.asked_utc_ms
        # A note with an age in it changes at every tick, and its state says the same.
        notes = tuple(note for note in reading.notes if not note.startswith(("hung_for:", "resumed_after:")))
        if notes != seen.notes:
            lines.append(statement("note", at, uuid=uuid, notes=list(notes)))
            seen.notes = notes
        if reading.processes is not None:
            held = tuple((one.pid, one.memory_bytes) for one in reading.processes[:_MOST_PROCESSES])
            if tuple(pid for pid, _ in held) != tuple(pid for pid, _ in seen.processes or ()):
                lines.append(statement("processes", at, uuid=uuid, pids=[list(one) for one in held]))
                seen.processes = held
        return lines

    def _devices_line(self, utc_ms: int) -> str:
        return statement("devices", utc_ms, devices=[slot.as_json() for slot in self.slots])

    # Writing

    def _write(self, lines: list[str], readings: list[Reading], now: _Moment) -> None:
        if now.mono_ms / 1000 < self._again_s:
            return
        try:
            self._turn_over(now)
            writer = self.writer or self._open_segment(now)
            if self._trouble_since_ms is not None:
                lines = [
                    statement("gap", now.utc_ms, from_ms=self._trouble_since_ms, to_ms=now.utc_ms, why=self._trouble),
                    *lines,
                ]
            passed_ms = None if self._before is None else now.mono_ms - self._before.mono_ms
            rows = [
                encode_row(self.ticks, now.utc_ms, now.mono_ms, passed_ms, n, reading)
                for n, reading in enumerate(readings)
            ]
            begin = writer.append(lines + rows)
        except OSError as error:
            self._stand_still(error, now.utc_ms)
            return
        if self._trouble_since_ms is not None:
            self.say(f"writes again in {writer.path}")
            self._trouble_since_ms, self._failures = None, 0
        self.state, self.reason = self._host_state.value, self.sweep.reason if self.sweep else ""
        at = begin + sum(len(line) + 1 for line in lines)
        if self._rollup is not None:
            for n, (reading, row) in enumerate(zip(readings, rows, strict=True)):
                self._rollup.add(n, now.utc_ms, reading, at)
                at += len(row) + 1
            self._rollup.flush()

    def _turn_over(self, now: _Moment) -> None:
        writer = self.writer
        if writer is None:
            return
        age_s = now.mono_ms / 1000 - writer.header.started_mono_ms / 1000
        if writer.size >= self.most_bytes or age_s >= self.most_age_s:
            self._end_segment("rotated", now.utc_ms)
            return
        if self._trouble_since_ms is not None:
            return
        try:
            writer.reopen_when_due(now.mono_ms / 1000)
        except OSError as error:
            if error.errno in FULL and writer.is_open:
                raise
            # It was removed, or its storage went away: a new one says so by its existence.
            self._forget_segment()

    def _open_segment(self, now: _Moment) -> SegmentWriter:
        header = Header(
            host=self.labels.host, boot_id=self._boot, job=self.labels.job, step=self.labels.step,
            fleet=self.labels.fleet, spool=self.labels.spool, life=self.labels.life, interval_s=self.interval_s,
            sensor=self.sensor.name, driver=self._driver, version=self.labels.version, started_utc_ms=now.utc_ms,
            started_mono_ms=now.mono_ms, simulated=self.sensor.name.startswith("simulated"),
            slots=tuple(self.slots), baseline=tuple(self._earlier),
        )  # fmt: skip
        try:
            writer = SegmentWriter(self.files, self.folder, header, now.mono_ms / 1000)
        except FileNotFoundError:
            make_host_folder(self.files, *os.path.split(self.folder))
            writer = SegmentWriter(self.files, self.folder, header, now.mono_ms / 1000)
        self.writer = writer
        self._rollup = RollupWriter(self.files, writer.path, header)
        self._state_due_s = 0.0
        return writer

    def _stand_still(self, error: OSError, utc_ms: int) -> None:
        """Nothing can be written now: say so once, and try again at every tick."""
        name = errno.errorcode.get(error.errno or 0, str(error))
        full = error.errno in FULL
        state = STORAGE_FULL if full else UNREACHABLE
        if self._trouble_since_ms is None:
            self._trouble_since_ms = self._before.utc_ms if self._before else utc_ms
            self.say(f"cannot write in {self.folder} ({name}); it goes on as soon as that is possible")
        self.state, self.reason = state, name
        self._trouble = "the storage was full" if full else f"the storage failed ({name})"
        if not full:
            self._forget_segment()
            # Each try makes a file, and a storage that fails may not let it be removed.
            self._failures += 1
            wait_s = min(MOST_PATIENCE_S, self.interval_s * (2 ** min(self._failures - 1, 10)))
            self._again_s = self.clock.mono() + wait_s - self.interval_s / 2

    def _forget_segment(self) -> None:
        writer, self.writer, self._rollup = self.writer, None, None
        if writer is not None:
            try:
                writer.close()
            except OSError:
                return

    def _end_segment(self, why: str, utc_ms: int) -> None:
        writer, rollup = self.writer, self._rollup
        if writer is None:
            return
        try:
            writer.append([statement("end", utc_ms, why=why)])
            if rollup is not None:
                rollup.close(writer.size)
        except OSError:
            pass  # the samples are there; the roll-up is made from them when somebody wants it
        self._forget_segment()

    def end(self, why: str) -> None:
        """The last words."""
        self._end_segment(why, round(self.clock.utc() * 1000))
        self.state, self.reason = "ended", why
        self._write_state(force=True)

    def _write_state(self, *, force: bool = False) -> None:
        now_s = self.clock.mono()
        told = self.describe()
        key = (self.state, self.reason, told["segment"], len(self.slots), told["notes"])
        if not force and key == self._said and now_s < self._state_due_s:
            return
        self._said, self._state_due_s = key, now_s + STATE_EVERY_S
        path = os.path.join(self.folder, self.state_name)
        try:
            publish_file(self.files, path, json.dumps(told, separators=(",", ":")).encode(), durable=False)
        except OSError:
            return  # the segment's own time of change is the better sign of life

    def describe(self) -> Mapping[str, Any]:
        """The state file."""
        return {
            "pid": os.getpid(),
            "host": self.labels.host,
            "boot_id": self._boot,
            "job": self.labels.job,
            "life": self.labels.life,
            "interval_s": self.interval_s,
            "sensor": self.sensor.name,
            "state": self.state,
            "reason": self.reason,
            "segment": self.writer.name if self.writer else None,
            "ticks": self.ticks,
            "started_utc_ms": self._started_ms,
            "last_utc_ms": self._before.utc_ms if self._before else None,
            "devices": [slot.device.uuid for slot in self.slots],
            "slots": [slot.as_json() for slot in self.slots],
            "notes": {uuid: list(seen.notes) for uuid, seen in self._seen.items() if seen.notes},
        }


def _told_before(folder: str, name: str, job: str, boot: str) -> dict[str, Device]:
    """The devices that a sampler of the same job had before us, by UUID; outside of a job nobody is to be missed."""
    told = read_state(folder, name)
    if not job or told.get("job") != job or told.get("boot_id") != boot:
        return {}
    return {slot.device.uuid: slot.device for slot in slots_of(told.get("slots"))}
