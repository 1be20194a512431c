"""What `nvidia-smi` says, read as text: rows of GPUs, rows of processes, and the sentences in which it refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleetcraft.telemetry.api import DeviceState, GpuProcess, HostState, Reason
from fleetcraft.telemetry.values import MIB, field_of, number, reason_of_text

# Which question gives which field, and what one of its unit is in ours.
FIELDS: tuple[tuple[str, str, float], ...] = (
    ("utilization.gpu", "util_pct", 1.0),
    ("memory.used", "memory_used_bytes", MIB),
    ("memory.total", "memory_total_bytes", MIB),
    ("memory.reserved", "memory_reserved_bytes", MIB),
    ("power.draw.instant", "power_w", 1.0),
    ("module.power.draw.instant", "module_power_w", 1.0),
    ("temperature.gpu", "temperature_c", 1.0),
    ("clocks.sm", "sm_clock_mhz", 1.0),
    ("clocks.mem", "memory_clock_mhz", 1.0),
    ("pstate", "performance_state", 1.0),
    ("clocks_event_reasons.active", "throttle_mask", 1.0),
    ("ecc.errors.corrected.volatile.total", "ecc_corrected", 1.0),
    ("ecc.errors.uncorrected.volatile.total", "ecc_uncorrected", 1.0),
    ("pcie.link.gen.current", "pcie_generation", 1.0),
    ("pcie.link.width.current", "pcie_width", 1.0),
)
_FIRST = ("uuid", "index", "pci.bus_id")
# Free text comes last: a name may hold a comma, and then only the end of the line moves.
_LAST = ("enforced.power.limit", "clocks.max.sm", "mig.mode.current", "driver_version", "name")
QUESTIONS = (*_FIRST, *(question for question, _name, _scale in FIELDS), *_LAST)
# What older drivers call the same; a question with neither name is left out.
OLDER = {"power.draw.instant": "power.draw", "clocks_event_reasons.active": "clocks_throttle_reasons.active"}
_NEEDED = frozenset({"uuid", "index"})
_INVALID = re.compile(r'Field "([^"]+)" is not a valid field')
_HANDLE = re.compile(r"device handle for (?:gpu|GPU)\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])")
_INSTANCE = re.compile(r"^\s+MIG\s+(\S.*?)\s+Device\s+(\d+):\s+\(UUID:\s+(MIG-[^)\s]+)\)", re.MULTILINE)
_LISTED = re.compile(r"^GPU (\d+): .*\(UUID: (GPU-[^)\s]+)\)", re.MULTILINE)


@dataclass(slots=True, kw_only=True)
class Row:
    """One GPU of one answer."""

    uuid: str
    index: int
    bus_id: str
    name: str
    driver: str
    is_mig: bool
    power_limit_w: float | None = None
    max_sm_clock_mhz: int | None = None
    state: DeviceState = DeviceState.OK
    values: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, Reason] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why a host gives no answer."""

    state: HostState
    reason: Reason
    text: str


def invalid_field(text: str) -> str | None:
    """The question that this version does not know, where that is why it refused."""
    match = _INVALID.search(text)
    return match.group(1) if match else None


def without(questions: Sequence[str], refused: str) -> tuple[str, ...]:
    """The questions with the older name of one, or without it. Raises ValueError for one that must be answered."""
    if refused in _NEEDED or refused not in questions:
        raise ValueError(f"nvidia-smi does not know {refused!r}")
    older = OLDER.get(refused)
    return tuple(
        older or question if question == refused else question for question in questions if question != refused or older
    )


def lost_bus_ids(text: str) -> list[str]:
    """The GPUs that it cannot speak to any more."""
    return [bus_id_of(found) for found in _HANDLE.findall(text)]


def bus_id_of(text: str) -> str:
    """A bus id in one form: the domain has four digits in some places and eight in others."""
    domain, colon, rest = text.strip().lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}" if colon else text.strip().lower()


def trouble_of(text: str, *, has_driver: bool) -> Trouble | None:
    """What a refusal means for the host; None where the text is none."""
    if "Driver/library version mismatch" in text:
        return Trouble(
            state=HostState.BROKEN, reason=Reason.DRIVER_MISMATCH,
            text=f"{Reason.DRIVER_MISMATCH}: the driver and its library are of different versions; "
            "work that runs may be fine, and a restart of the node ends this",
        )  # fmt: skip
    if "No devices were found" in text or "No devices found" in text:
        return Trouble(state=HostState.NO_GPU, reason=Reason.NOT_FOUND, text="nvidia-smi finds no GPU")
    if "Insufficient Permissions" in text and "Failed to initialize" in text:
        text = f"{Reason.NO_PERMISSION}: this user may not open the NVIDIA driver"
        return Trouble(state=HostState.BROKEN, reason=Reason.NO_PERMISSION, text=text)
    silent = (
        "couldn't communicate with the NVIDIA driver",
        "Driver Not Loaded",
        "Driver is not loaded",
        "shared library not found",
    )
    if any(words in text for words in silent):
        state = HostState.BROKEN if has_driver else HostState.NO_GPU
        words = "the driver is there and does not answer" if has_driver else "no NVIDIA driver is loaded on this host"
        return Trouble(state=state, reason=Reason.NO_DRIVER, text=f"{Reason.NO_DRIVER}: {words}")
    if "Failed to initialize NVML" in text or "NVIDIA-SMI has failed" in text:
        line = next(line for line in text.split("\n") if "NVML" in line or "NVIDIA-SMI" in line)
        return Trouble(state=HostState.BROKEN, reason=Reason.ERROR, text=f"nvidia-smi fails: {line.strip()[:200]}")
    return None


def rows_of(out: str, questions: Sequence[str]) -> tuple[list[Row], list[str]]:
    """The rows of an answer, and the lines that are none."""
    rows, bad = [], []
    for line in out.replace("\r", "").split("\n"):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",", len(questions) - 1)]
        told = dict(zip(questions, cells, strict=False))
        if len(cells) != len(questions) or not told["uuid"].startswith("GPU-") or not told["index"].isdigit():
            bad.append(line)
            continue
        rows.append(_row(told))
    return rows, bad


def _row(told: Mapping[str, str]) -> Row:
    limit, clock = (_number(told, question) for question in ("enforced.power.limit", "clocks.max.sm"))
    row = Row(
        uuid=told["uuid"], index=int(told["index"]), bus_id=bus_id_of(told.get("pci.bus_id", "")),
        name=told.get("name", ""), driver=told.get("driver_version", ""),
        is_mig=told.get("mig.mode.current") == "Enabled", power_limit_w=limit,
        max_sm_clock_mhz=None if clock is None else int(clock),
    )  # fmt: skip
    for question, name, scale in FIELDS:
        asked = question if question in told else OLDER.get(question, "")
        if asked in told:
            _take(row, name, told[asked], scale)
            if name == "power_w" and name in row.values and asked == question:
                row.values["power_averaged"] = 0
        else:
            row.reasons[name] = Reason.OLD_DRIVER
    if "power_w" in row.values:
        row.values["power_scope"] = 0
    states = {Reason.LOST: DeviceState.LOST, Reason.RESET_REQUIRED: DeviceState.RESET_REQUIRED}
    row.state = next((states[reason] for reason in row.reasons.values() if reason in states), DeviceState.OK)
    if row.state is DeviceState.OK and not row.values:
        row.state = DeviceState.BROKEN
    return row


def _take(row: Row, name: str, text: str, scale: float) -> None:
    if name == "throttle_mask" and text.lower().startswith("0x"):
        try:
            row.values[name] = int(text, 16)
        except ValueError:
            row.reasons[name] = Reason.PARSE
        return
    cell = field_of(name, text, scale=scale, limit_w=row.power_limit_w)
    if cell.value is not None:
        row.values[name] = cell.value
    else:
        row.reasons[name] = cell.reason or Reason.PARSE
    if cell.flag:
        row.notes.append(f"{cell.flag}:{name}")
    # Zero would say that it is idle: a GPU that is cut into instances has no load of its own.
    if name == "util_pct" and row.is_mig:
        row.values.pop(name, None)
        row.reasons[name] = Reason.MIG


def _number(told: Mapping[str, str], question: str) -> float | None:
    return number(told[question]).value if question in told else None


def processes_of(out: str) -> dict[str, list[GpuProcess]]:
    """Processes by the UUID of their GPU, from `gpu_uuid,pid,used_memory` in MiB."""
    found: dict[str, list[GpuProcess]] = {}
    for line in out.replace("\r", "").split("\n"):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 3 or not cells[1].isdigit() or reason_of_text(cells[0]) is not None:
            continue
        memory = field_of("own_memory_bytes", cells[2], scale=MIB).value
        found.setdefault(cells[0], []).append(
            GpuProcess(pid=int(cells[1]), memory_bytes=None if memory is None else int(memory))
        )
    return found


def listed_of(out: str) -> list[str]:
    """The UUIDs in the list of `nvidia-smi -L`; a GPU that is lost has a sentence there instead of one."""
    return [match.group(2) for match in _LISTED.finditer(out)]


def instances_of(out: str) -> list[tuple[str, int, str, str]]:
    """MIG instances in the list of `nvidia-smi -L`: parent, index, profile, UUID."""
    found = []
    parents = [(match.start(), match.group(2)) for match in _LISTED.finditer(out)]
    for match in _INSTANCE.finditer(out):
        parent = next((uuid for start, uuid in reversed(parents) if start < match.start()), "")
        found.append((parent, int(match.group(2)), match.group(1), match.group(3)))
    return found
