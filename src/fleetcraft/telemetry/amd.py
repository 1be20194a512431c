"""AMD GPUs through the `amdsmi` library of a ROCm installation, or else through `amd-smi` or `rocm-smi`.

Whatever is asked runs in one thread with a deadline, as these drivers can hang too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.telemetry.amd_text import (
    Card,
    EnergyWatch,
    cards_of_amd_smi,
    cards_of_rocm_smi,
    energy_mj,
    put_power,
    share_power,
)
from fleetcraft.telemetry.api import Device, DeviceState, HostState, Occupancy, Reading, Reason, Sweep
from fleetcraft.telemetry.deadline import Reader
from fleetcraft.telemetry.fields import NAMES
from fleetcraft.telemetry.values import MIB
from fleetcraft.telemetry.visibility import visible_amd
from fleetcraft.transports.api import Surroundings, Transport
from fleetcraft.transports.local import LocalTransport

DRIVER_SIGN = "/dev/kfd"
_SHARE = 0.8
_FRESH_S = 1.0
_SURROUNDINGS = Surroundings(add={"LC_ALL": "C"})


class _NoSource(Exception):
    """Neither the library nor a tool answered; the sentence says why."""


def load_binding() -> Any:
    """The `amdsmi` of the ROCm installation, or None. It must match the library there, so any error means none."""
    try:
        import amdsmi

        amdsmi.amdsmi_init()
    except Exception:  # noqa: BLE001  a binding of another version fails in many ways
        return None
    return amdsmi


def cards_of_binding(amdsmi: Any) -> list[Card]:
    """Every device of the library; a call that fails costs its own value only."""
    cards = []
    for index, handle in enumerate(amdsmi.amdsmi_get_processor_handles()):
        asic = _ask(amdsmi.amdsmi_get_gpu_asic_info, handle) or {}
        card = Card(
            index=index,
            uuid=str(_ask(amdsmi.amdsmi_get_gpu_device_uuid, handle) or ""),
            bus_id=str(_ask(amdsmi.amdsmi_get_gpu_device_bdf, handle) or ""),
            name=str(asic.get("market_name") or ""),
            oam="" if asic.get("oam_id") in (None, "N/A", 0xFFFFFFFF) else str(asic["oam_id"]),
        )
        card.put("util_pct", (_ask(amdsmi.amdsmi_get_gpu_activity, handle) or {}).get("gfx_activity"))
        vram = _ask(amdsmi.amdsmi_get_gpu_vram_usage, handle) or {}
        card.put("memory_used_bytes", vram.get("vram_used"), MIB)
        card.put("memory_total_bytes", vram.get("vram_total"), MIB)
        put_power(card, _ask(amdsmi.amdsmi_get_power_info, handle) or {})
        energy = _ask(amdsmi.amdsmi_get_energy_count, handle) or {}
        steps = energy.get("energy_accumulator", energy.get("power"))
        counted = energy_mj(steps, energy.get("counter_resolution"))
        if isinstance(counted, Reason):
            card.reasons["energy_mj"] = counted
        else:
            card.values["energy_mj"] = counted
        cards.append(card)
    share_power(cards)
    return cards


def _ask(call: Callable[[Any], Any], handle: Any) -> Any:
    try:
        return call(handle)
    except Exception:  # noqa: BLE001  whatever the binding raises, there is no value
        return None


class AmdSensor:
    """See `Sensor`. Processes are not told: nothing says for sure which of them is on which device."""

    name = "amd"

    def __init__(
        self,
        deadline_s: float = 10.0,
        *,
        clock: Clock | None = None,
        transport: Transport | None = None,
        binding: Callable[[], Any] = load_binding,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._deadline_s = deadline_s
        self._clock = clock or SystemClock()
        self._transport = transport or LocalTransport()
        self._binding = binding
        self._loaded: Any = None
        self._is_loaded = False
        self._env = os.environ if env is None else env
        self._reader = Reader("amd", self._clock)
        self._watch = EnergyWatch()
        self._cards: dict[str, Card] = {}
        self._known: dict[str, Device] = {}
        self._expected: dict[str, Device] = {}
        self._fixed: tuple[Any, Any] | None = None
        self._looked_mono: float | None = None
        self.driver = ""
        self.state = HostState.OK
        self.reason = ""

    def devices(self) -> list[Device]:
        """See `Sensor.devices`."""
        self._fresh(_FRESH_S)
        return visible_amd([device for uuid, device in self._known.items() if uuid in self._cards], self._env)

    def inventory(self) -> list[Device]:
        """See `Sensor.inventory`."""
        usable = {device.uuid for device in self.devices()}
        told = [one for uuid, one in self._known.items() if uuid in usable or uuid not in self._cards]
        return [*told, *(one for uuid, one in self._expected.items() if uuid not in self._known)]

    def expect(self, devices: Iterable[Device]) -> None:
        """See `Sensor.expect`."""
        self._expected.update((device.uuid, device) for device in devices if not device.parent)

    def occupancy(self, uuid: str) -> Occupancy:
        """See `Sensor.occupancy`."""
        self._fresh(_FRESH_S)
        card = self._cards.get(uuid)
        used = None if card is None else card.values.get("memory_used_bytes")
        if card is None or used is None:
            return Occupancy(used_bytes=None, pids=None, reason=self.reason or f"there is no device {uuid} that tells")
        return Occupancy(used_bytes=int(used), pids=None)

    def read(self) -> Sweep:
        """See `Sensor.read`."""
        self._fresh(0.0)
        told = self.inventory()
        if self.state is not HostState.OK:
            hung = self.state is HostState.HUNG
            state, reason = (DeviceState.HUNG, Reason.HUNG) if hung else (DeviceState.BROKEN, Reason.ERROR)
            readings = [Reading(uuid=one.uuid, state=state, reasons=dict.fromkeys(NAMES, reason)) for one in told]
            return Sweep(state=self.state, readings=tuple(readings), reason=self.reason, driver=self.driver)
        readings = [self._reading(device.uuid) for device in told]
        return Sweep(state=self.state, readings=tuple(readings), reason=self.reason, driver=self.driver)

    def _reading(self, uuid: str) -> Reading:
        card = self._cards.get(uuid)
        if card is None:
            reasons = dict.fromkeys(NAMES, Reason.LOST)
            return Reading(uuid=uuid, state=DeviceState.LOST, reasons=reasons, notes=("missing",))
        values, reasons = dict(card.values), dict(card.reasons)
        if "energy_mj" in values:
            energy = self._watch.check(uuid, values["energy_mj"], values.get("power_w"), self._clock.mono())
            if isinstance(energy, Reason):
                del values["energy_mj"]
                reasons["energy_mj"] = energy
        for name in NAMES:
            if name not in values:
                reasons.setdefault(name, Reason.UNSUPPORTED)
        state = DeviceState.OK if values else DeviceState.BROKEN
        return Reading(uuid=uuid, state=state, values=values, reasons=reasons)

    def _fresh(self, most_s: float) -> None:
        now = self._clock.mono()
        if self._looked_mono is not None and now - self._looked_mono < most_s:
            return
        self._looked_mono = now
        answer = self._reader.call(self._look, self._deadline_s)
        if answer.late:
            self.state, self.reason = HostState.HUNG, f"hung: no answer within {self._deadline_s:.0f} s"
        elif answer.error is not None:
            has_driver = os.path.exists(DRIVER_SIGN)
            self.state = HostState.BROKEN if has_driver or self._known else HostState.NO_GPU
            self.reason = str(answer.error)
        else:
            self._take(answer.value)

    def _take(self, cards: list[Card]) -> None:
        self.state, self.reason = HostState.OK, ""
        self._cards = {}
        for card in cards:
            # Without a UUID the bus id is the best name that stays the same.
            uuid = card.uuid or card.bus_id or f"AMD-{card.index}"
            self._cards[uuid] = card
            total = card.values.get("memory_total_bytes")
            self._known[uuid] = Device(
                uuid=uuid, index=card.index, name=card.name or "AMD GPU", bus_id=card.bus_id, vendor="amd",
                memory_bytes=None if total is None else int(total),
            )  # fmt: skip

    def _look(self) -> list[Card]:
        """In the reader's thread."""
        if not self._is_loaded:
            self._loaded, self._is_loaded = self._binding(), True
        if self._loaded is not None:
            return cards_of_binding(self._loaded)
        until = self._clock.mono() + self._deadline_s * _SHARE
        metric, why = self._json(until, "amd-smi", "metric", "--json")
        if metric is not None:
            if self._fixed is None:
                self._fixed = (
                    self._json(until, "amd-smi", "list", "--json")[0],
                    self._json(until, "amd-smi", "static", "--asic", "--json")[0],
                )
            return cards_of_amd_smi(metric, *self._fixed)
        words = (
            "--showuse",
            "--showpower",
            "--showmeminfo",
            "vram",
            "--showtemp",
            "--showuniqueid",
            "--showproductname",
        )
        told, _why = self._json(until, "rocm-smi", *words, "--showbus", "--json")
        if told is not None:
            return cards_of_rocm_smi(told)
        raise _NoSource(f"there is no amdsmi library here, and amd-smi: {why}")

    def _json(self, until: float, *argv: str) -> tuple[Any, str]:
        """What a tool wrote, or None and why."""
        left_s = max(0.05, until - self._clock.mono())
        answer = self._transport.run(argv, timeout_s=left_s, surroundings=_SURROUNDINGS)
        if answer.code != 0:
            return None, answer.problem or f"it ended with {answer.code}: {answer.err.strip()[:200]}"
        try:
            return json.loads(answer.out), ""
        except ValueError:
            return None, "it did not write JSON"
