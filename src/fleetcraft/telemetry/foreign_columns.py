"""What the columns of logs that are not ours are called, which field each is, and in which unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIB = float(1 << 20)
# What a column is beside a field: it says when, or which device, or it is kept out.
STAMP, DATE, TIME, UUID, INDEX, NAME, OTHER = "stamp", "date", "time", "uuid", "index", "name", "other"


@dataclass(frozen=True, slots=True)
class Column:
    """`kind` is a field's name or one of the words above."""

    kind: str
    scale: float = 1.0
    top: float = 0.0  # a value in the log's unit above this gets a closer look; 0: there is no such bound


_PCT = Column("util_pct", 1.0, 100.0)
_USED = Column("memory_used_bytes", MIB, 1e8)
_TOTAL = Column("memory_total_bytes", MIB, 1e8)
_POWER = Column("power_w", 1.0, 5000.0)
_OTHER = Column(OTHER)
_TEMPERATURE = Column("temperature_c", 1.0, 250.0)
_SM_CLOCK = Column("sm_clock_mhz", 1.0, 1e5)
_MEMORY_CLOCK = Column("memory_clock_mhz", 1.0, 1e5)

_CSV = {
    "timestamp": Column(STAMP), "utc_ms": Column(STAMP), "epoch": Column(STAMP), "ts": Column(STAMP),
    "datetime": Column(STAMP), "date": Column(DATE), "time": Column(TIME),
    "index": Column(INDEX), "gpu": Column(INDEX), "gpu_index": Column(INDEX), "gpu_id": Column(INDEX),
    "uuid": Column(UUID), "gpu_uuid": Column(UUID),
    "name": Column(NAME), "gpu_name": Column(NAME), "product_name": Column(NAME),
    "util_pct": _PCT, "util": _PCT, "utilization": _PCT, "utilization.gpu": _PCT, "gpu_util": _PCT,
    "memory_used_bytes": Column("memory_used_bytes"), "memory_total_bytes": Column("memory_total_bytes"),
    "mem_used_mib": _USED, "memory.used": _USED, "mem_used": _USED, "memory_used": _USED, "mem": _USED,
    "mem_total_mib": _TOTAL, "memory.total": _TOTAL, "mem_total": _TOTAL, "memory_total": _TOTAL,
    "memory.reserved": Column("memory_reserved_bytes", MIB, 1e8),
    "power_w": _POWER, "power.draw": _POWER, "power.draw.average": _POWER, "power.draw.instant": _POWER,
    "power": _POWER, "module.power.draw.average": Column("module_power_w"),
    "module.power.draw.instant": Column("module_power_w"),
    "energy_mj": Column("energy_mj"), "temperature.gpu": _TEMPERATURE, "temperature_c": _TEMPERATURE,
    "clocks.sm": _SM_CLOCK, "clocks.current.sm": _SM_CLOCK, "clocks.mem": _MEMORY_CLOCK,
    "clocks.current.memory": _MEMORY_CLOCK, "pstate": Column("performance_state"),
    "pcie.link.gen.current": Column("pcie_generation"), "pcie.link.gen.gpucurrent": Column("pcie_generation"),
    "pcie.link.width.current": Column("pcie_width"),
}  # fmt: skip
# dmon has short words of its own, and `mem` is there how busy the memory is, not how full.
_DMON = {
    "date": Column(DATE), "time": Column(TIME), "gpu": Column(INDEX), "pwr": _POWER, "gtemp": _TEMPERATURE,
    "temp": _TEMPERATURE, "sm": _PCT, "fb": _USED, "pclk": _SM_CLOCK, "mclk": _MEMORY_CLOCK,
}  # fmt: skip
# A log without a header is taken for one of this shape only, and only where its numbers can be that.
BARE = ("timestamp", "mem_used_mib", "mem_total_mib", "util_pct", "power_w")


def bare_name(name: str) -> str:
    """A column's name without its unit, as `memory.used [MiB]` has one."""
    return name.strip().strip('"').partition("[")[0].strip().lower().replace(" ", "_")


def columns_of(header: Sequence[str], *, is_dmon: bool = False) -> list[Column]:
    """What each cell of a header means; a name that nobody knows is kept out, and never taken for another one.

    Of two columns for one field the first counts.
    """
    known = _DMON if is_dmon else _CSV
    found: list[Column] = []
    for name in header:
        column = known.get(bare_name(name), _OTHER)
        found.append(_OTHER if any(column.kind == other.kind for other in found) else column)
    return found


def is_header(cells: Sequence[str]) -> bool:
    """True where the cells name columns: one of them is known, and none is a number."""
    if not any(bare_name(cell) in _CSV for cell in cells):
        return False
    return not any(cell.strip()[:1].isdigit() for cell in cells)
