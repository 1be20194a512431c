"""What AMD's tools and library say of their GPUs, as numbers in our units or reasons; pure, for both sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.telemetry.api import Reason
from fleetcraft.telemetry.values import MIB, checked, field_of, measured, reason_of_text

# The first that is a number counts: one generation tells only the average, the next only the current power.
_POWERS = (("current_socket_power", "current"), ("average_socket_power", "average"), ("socket_power", ""))


@dataclass(slots=True, kw_only=True)
class Card:
    """One AMD device, which may be one of two dies of a module (`oam`)."""

    index: int
    uuid: str = ""
    bus_id: str = ""
    name: str = ""
    oam: str = ""
    values: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, Reason] = field(default_factory=dict)

    def put(self, name: str, told: Any, scale: float = 1.0) -> None:
        """A number, a text, or `{"value": .., "unit": ..}` as the tools write it."""
        value = read(name, told, scale)
        if isinstance(value, Reason):
            self.reasons[name] = value
        else:
            self.values[name] = value


def read(name: str, told: Any, scale: float = 1.0) -> float | Reason:
    """One value of a field; texts such as N/A stand in numeric fields, and are reasons."""
    unit = ""
    if isinstance(told, Mapping):
        told, unit = told.get("value"), str(told.get("unit") or "")
    if told is None:
        return Reason.NOT_FOUND
    if isinstance(told, bool) or not isinstance(told, (int, float, str)):
        return Reason.PARSE
    # These tools write MB and mean MiB.
    text = str(told) if isinstance(told, str) and reason_of_text(told) else f"{told} {_UNITS.get(unit, unit)}".strip()
    cell = field_of(name, text, scale=scale)
    return cell.value if cell.value is not None else cell.reason or Reason.PARSE


_UNITS = {"MB": "MiB", "GB": "GiB", "KB": "KiB", "MHz": "MHz"}


def power_of(told: Mapping[str, Any]) -> tuple[float | Reason, str]:
    """The power of a socket, and whether it is `current` or an `average`; a reason where no field is a number."""
    seen: list[Reason] = []
    for key, meaning in _POWERS:
        if key in told:
            value = read("power_w", told[key])
            if not isinstance(value, Reason):
                return value, meaning
            seen.append(value)
    return (seen[0] if seen else Reason.NOT_FOUND), ""


def energy_mj(accumulator: Any, resolution_uj: Any) -> float | Reason:
    """The counter in millijoules: it counts in steps whose size it tells. One at 0 is not connected."""
    steps, size = measured(str(accumulator)), measured(str(resolution_uj))
    if steps.value is None or size.value is None:
        return steps.reason or size.reason or Reason.PARSE
    if steps.value <= 0 or size.value <= 0:
        return Reason.UNSUPPORTED
    cell = checked("energy_mj", measured(repr(steps.value * size.value / 1000)))
    return cell.value if cell.value is not None else cell.reason or Reason.PARSE


class EnergyWatch:
    """Finds a counter that stands still while the device draws power: that is no counter."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}
        self._dead: set[str] = set()

    def check(self, uuid: str, energy: float | Reason, power_w: float | None, mono_s: float) -> float | Reason:
        """The same value, or `unsupported`."""
        if isinstance(energy, Reason):
            return energy
        before = self._last.get(uuid)
        if before is None or energy != before[0]:
            self._last[uuid] = (energy, mono_s)
            self._dead.discard(uuid)
        elif power_w and mono_s - before[1] >= 1.0:
            self._dead.add(uuid)
        return Reason.UNSUPPORTED if uuid in self._dead else energy


def share_power(cards: Sequence[Card]) -> None:
    """Two dies of a module have one power, told on one of them; on the others it is told elsewhere, and not 0."""
    modules: dict[str, list[Card]] = {}
    for card in cards:
        if card.oam:
            modules.setdefault(card.oam, []).append(card)
    for dies in modules.values():
        if len(dies) < 2:
            continue
        teller = max(dies, key=lambda card: card.values.get("power_w", -1.0))
        if teller.values.get("power_w", 0.0) <= 0:
            continue
        for card in dies:
            if card is not teller and card.values.get("power_w", 0.0) == 0:
                for name in ("power_w", "power_averaged", "power_scope"):
                    card.values.pop(name, None)
                    card.reasons[name] = Reason.SHARED


def put_power(card: Card, told: Mapping[str, Any]) -> None:
    """Power and what kind of power it is."""
    power, meaning = power_of(told)
    if isinstance(power, Reason):
        card.reasons["power_w"] = power
        return
    card.values["power_w"] = power
    card.values["power_scope"] = 0
    if meaning:
        card.values["power_averaged"] = int(meaning == "average")


def cards_of_amd_smi(metric: Any, listed: Any = None, static: Any = None) -> list[Card]:
    """`amd-smi metric --json`, with what `list` and `static` add. Raises ValueError for any other shape."""
    found: list[Card] = []
    more = {one.get("gpu"): one for one in _gpus(listed)} if listed is not None else {}
    fixed = {one.get("gpu"): one for one in _gpus(static)} if static is not None else {}
    for told in _gpus(metric):
        index = told.get("gpu")
        if not isinstance(index, int):
            raise ValueError("amd-smi names a GPU without a number")  # noqa: TRY004  content, no call
        asic = _part(fixed.get(index, {}), "asic")
        card = Card(
            index=index, uuid=_text(more.get(index, {}).get("uuid")), bus_id=_text(more.get(index, {}).get("bdf")),
            name=_text(asic.get("market_name")), oam=_text(asic.get("oam_id")),
        )  # fmt: skip
        memory, usage, heat = _part(told, "mem_usage"), _part(told, "usage"), _part(told, "temperature")
        card.put("util_pct", usage.get("gfx_activity"))
        card.put("memory_used_bytes", memory.get("used_vram"), MIB)
        card.put("memory_total_bytes", memory.get("total_vram"), MIB)
        card.put("temperature_c", heat.get("hotspot", heat.get("edge")))
        card.put("energy_mj", _part(told, "energy").get("total_energy_consumption"), 1000.0)
        ecc = _part(told, "ecc")
        card.put("ecc_corrected", ecc.get("total_correctable_count"))
        card.put("ecc_uncorrected", ecc.get("total_uncorrectable_count"))
        clocks = _part(told, "clock")
        card.put("sm_clock_mhz", _part(clocks, "gfx_0").get("clk"))
        card.put("memory_clock_mhz", _part(clocks, "mem_0").get("clk"))
        put_power(card, _part(told, "power"))
        found.append(card)
    share_power(found)
    return found


_ROCM = (
    ("GPU use (%)", "util_pct"),
    ("VRAM Total Used Memory (B)", "memory_used_bytes"),
    ("VRAM Total Memory (B)", "memory_total_bytes"),
    ("Temperature (Sensor junction) (C)", "temperature_c"),
)
_ROCM_POWER = {
    "Current Socket Graphics Package Power (W)": "current_socket_power",
    "Average Graphics Package Power (W)": "average_socket_power",
}


def cards_of_rocm_smi(told: Any) -> list[Card]:
    """`rocm-smi --json`. Raises ValueError for any other shape."""
    if not isinstance(told, Mapping):
        raise ValueError("rocm-smi did not name its cards")  # noqa: TRY004  content, no call
    found = []
    for key, one in told.items():
        number = key.removeprefix("card")
        if not key.startswith("card") or not number.isdigit() or not isinstance(one, Mapping):
            continue
        card = Card(
            index=int(number), uuid=_text(one.get("Unique ID")), bus_id=_text(one.get("PCI Bus")),
            name=_text(one.get("Card Series", one.get("Card series"))),
        )  # fmt: skip
        for words, name in _ROCM:
            card.put(name, one.get(words))
        put_power(card, {_ROCM_POWER[words]: one[words] for words in _ROCM_POWER if words in one})
        found.append(card)
    if not found:
        raise ValueError("rocm-smi named no card")
    return sorted(found, key=lambda card: card.index)


def _gpus(told: Any) -> list[Mapping[str, Any]]:
    if isinstance(told, Mapping):
        told = told.get("gpu_data")
    if not isinstance(told, list) or not all(isinstance(one, Mapping) for one in told):
        raise ValueError("amd-smi did not write a list of GPUs")
    return told


def _part(told: Any, name: str) -> Mapping[str, Any]:
    part = told.get(name) if isinstance(told, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _text(told: Any) -> str:
    text = "" if told is None else str(told).strip()
    return "" if text in ("N/A", "None") else text
