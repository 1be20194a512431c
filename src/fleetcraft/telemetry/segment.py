"""The lines of a segment: head, samples, statements. One text form for writing and for reading.

A cell is empty where a value is absent, and never 0. See docs/reference/formats/telemetry-segment.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from fleetcraft.telemetry.api import Device, Reading, Reason
from fleetcraft.telemetry.fields import FIELDS, NAMES

MAGIC = "#fleetcraft.telemetry.segment/1"
FAMILY = "#fleetcraft.telemetry.segment/"
LEAD = ("seq", "utc_ms", "mono_ms", "interval_ms", "gpu", "state")
COLUMNS = (*LEAD, *NAMES, "reasons")
COLUMN_LINE = ",".join(COLUMNS)
ENDING = ".csv"

_REASONS = tuple(Reason)
_REASON_PLACE = {reason: place for place, reason in enumerate(_REASONS)}
_BIT = {name: 1 << place for place, name in enumerate(NAMES)}
_DECIMALS = tuple((one.name, one.decimals) for one in FIELDS)
_DEVICE_KEYS = tuple(name for name in Device.__slots__ if name != "uuid")
# Names of hosts and jobs become parts of paths.
_HARMLESS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A device and its number in this file; a number is never given to another device."""

    n: int
    device: Device
    baseline_bytes: int | None = None  # in use at the start while no process held it; None: not known

    def as_json(self) -> dict[str, Any]:
        """One entry of `devices`."""
        told: dict[str, Any] = {"n": self.n, "uuid": self.device.uuid}
        told.update({name: getattr(self.device, name) for name in _DEVICE_KEYS})
        if self.baseline_bytes is not None:
            told["baseline_bytes"] = self.baseline_bytes
        return told

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Slot:
        """Raises ValueError for what names no device; unknown keys are passed over."""
        n, uuid = told.get("n"), told.get("uuid")
        if not isinstance(n, int) or not isinstance(uuid, str):
            raise ValueError("a device without a number or a UUID")  # noqa: TRY004  content, no call
        known = {name: told[name] for name in _DEVICE_KEYS if name in told}
        device = Device(**{"index": n, "name": "", "memory_bytes": None, **known, "uuid": uuid})
        baseline = told.get("baseline_bytes")
        return cls(n=n, device=device, baseline_bytes=baseline if isinstance(baseline, int) else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line: who measured what, where, and for whom."""

    host: str
    boot_id: str = ""
    job: str = ""
    step: str = ""
    fleet: str = ""
    spool: str = ""
    life: str = ""
    interval_s: float = 10.0
    sensor: str = ""
    driver: str = ""
    version: str = ""
    started_utc_ms: int = 0
    started_mono_ms: int = 0
    simulated: bool = False
    slots: tuple[Slot, ...] = ()
    baseline: tuple[str, ...] = ()  # the UUIDs that were here before: one that is missing now fell off the bus
    extra: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """The first line, without its newline."""
        told = {**self.extra, **{name: getattr(self, name) for name in _HEAD_KEYS}}
        told["devices"] = [slot.as_json() for slot in self.slots]
        told["baseline"] = list(self.baseline)
        return f"{MAGIC} {_dumps(told)}"

    @classmethod
    def parse(cls, line: str) -> Header:
        """Read the first line. Raises ValueError where it is none of ours."""
        if not line.startswith(FAMILY):
            raise ValueError("its first line is not that of a telemetry segment")
        told = json.loads(line.partition(" ")[2])
        if not isinstance(told, dict) or not isinstance(told.get("host"), str):
            raise ValueError("its first line names no host")  # noqa: TRY004  content, no call
        devices = told.pop("devices", None)
        baseline = told.pop("baseline", None)
        known = {name: told.pop(name) for name in _HEAD_KEYS if name in told}
        for name, value in known.items():
            if not isinstance(value, _HEAD_TYPES[name]):
                raise ValueError(f"{name} of its first line is {value!r}")  # noqa: TRY004  content, no call
        if not 0 < known.get("interval_s", 1) < float("inf"):
            raise ValueError(f"interval_s of its first line is {known['interval_s']!r}")
        return cls(
            **known,
            slots=slots_of(devices),
            baseline=tuple(one for one in baseline if isinstance(one, str)) if isinstance(baseline, list) else (),
            extra=told,
        )


_HEAD_KEYS = tuple(name for name in Header.__slots__ if name not in ("slots", "baseline", "extra"))
_HEAD_TYPES: dict[str, Any] = dict.fromkeys(_HEAD_KEYS, str) | {
    "interval_s": (int, float),
    "started_utc_ms": int,
    "started_mono_ms": int,
    "simulated": bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A line between samples: what happened to the measuring itself."""

    kind: str
    utc_ms: int
    body: Mapping[str, Any]
    offset: int = 0  # where its line begins


def slots_of(devices: Any) -> tuple[Slot, ...]:
    """The devices of a head or of a `devices` statement; what is no device is left out."""
    slots = []
    for told in devices if isinstance(devices, list) else []:
        try:
            slots.append(Slot.from_json(told))
        except (ValueError, TypeError, AttributeError):
            continue
    return tuple(slots)


def _dumps(value: Any) -> str:
    # ASCII only: a host may have any locale, and a line must never hold a line separator.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def statement(kind: str, utc_ms: int, **body: Any) -> str:
    """One statement line, without its newline."""
    return "#" + _dumps({"t": kind, "utc_ms": utc_ms, **body})


def parse_statement(line: str, offset: int = 0) -> Statement:
    """Raises ValueError where the line is no statement."""
    body = json.loads(line[1:])
    if not isinstance(body, dict) or not isinstance(body.get("t"), str) or not isinstance(body.get("utc_ms"), int):
        raise ValueError("a statement without a kind or a time")  # noqa: TRY004  content, no call
    return Statement(kind=body.pop("t"), utc_ms=body.pop("utc_ms"), body=body, offset=offset)


def number_text(value: float, decimals: int) -> str:
    """The shortest text of a number with at most so many decimals; empty for what is no number."""
    if not isfinite(value):
        return ""
    if decimals == 0 or value == int(value):
        return str(round(value))
    return f"{value:.{decimals}f}".rstrip("0").rstrip(".")


def encode_row(seq: int, utc_ms: int, mono_ms: int, interval_ms: int | None, n: int, reading: Reading) -> str:
    """One device at one tick, without its newline."""
    values = reading.values
    cells = [
        number_text(values[name], decimals) if name in values and name not in reading.reasons else ""
        for name, decimals in _DECIMALS
    ]
    lead = f"{seq},{utc_ms},{mono_ms},{'' if interval_ms is None else interval_ms},{n},{reading.state.value}"
    return f"{lead},{','.join(cells)},{encode_reasons(reading.reasons) if reading.reasons else ''}"


def encode_reasons(reasons: Mapping[str, Reason]) -> str:
    """`place:mask` for each reason: its place in the list of reasons, and the fields that it holds for, in hex."""
    masks: dict[int, int] = {}
    for name, reason in reasons.items():
        bit = _BIT.get(name)
        if bit is not None:
            place = _REASON_PLACE[reason]
            masks[place] = masks.get(place, 0) | bit
    return ";".join(f"{place}:{mask:x}" for place, mask in sorted(masks.items()))


def decode_reasons(cell: str) -> dict[str, Reason]:
    """Why which field is absent. Reasons and fields of a later version are passed over."""
    found: dict[str, Reason] = {}
    for part in cell.split(";") if cell else ():
        place, _, mask = part.partition(":")
        try:
            reason, bits = int(place), int(mask, 16)
        except ValueError:
            continue
        if 0 <= reason < len(_REASONS) and bits > 0:
            found.update({name: _REASONS[reason] for name, bit in _BIT.items() if bits & bit})
    return found


def harmless(word: str, otherwise: str = "none") -> str:
    """A word as part of a file name: other characters become underscores, and it never begins with a dot."""
    text = "".join(letter if letter in _HARMLESS else "_" for letter in word)[:64].lstrip(".")
    return text or otherwise


def segment_stem(started_utc_ms: int, boot_id: str, job: str) -> str:
    """The name of a segment without its ending."""
    boot = harmless(boot_id.replace("-", "")[:8], "noboot")
    return f"{started_utc_ms:013d}-{boot}-{harmless(job)}"
