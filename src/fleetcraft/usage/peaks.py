"""Dense peaks of devices, by the name that the driver gives them; an unknown name has no peak, never a default.

The table is `peaks.toml`, where each figure has its source. A file of the same form may add devices or replace them.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fleetcraft.core.errors import UsageError

PRECISIONS = ("bf16", "fp16", "tf32", "fp8", "fp16_accumulate_fp16")
_KEYS = {"names", "label", "check", "source", "seen", "note", "per_module", *PRECISIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What one device can do at most. TFLOPS are dense; a precision that is not in `tflops` has no figure."""

    label: str
    names: tuple[str, ...]
    tflops: Mapping[str, float]
    source: str
    seen: str
    note: str = ""
    multiprocessors: int | None = None
    flops_per_clock: int | None = None  # per multiprocessor, for `bf16`, else for `fp16`
    boost_mhz: int | None = None
    per_module: int = 1  # devices on one module, where the maker prints the module's figure

    def at_clock(self, precision: str, sm_clock_mhz: float) -> float | None:
        """The dense peak in TFLOPS at this clock; None where the boost clock behind the figure is not known."""
        peak = self.tflops.get(precision)
        if peak is None or self.boost_mhz is None:
            return None
        return peak * sm_clock_mhz / self.boost_mhz


def _same(name: str) -> str:
    return " ".join(name.split()).casefold()


def load(text: str, where: str) -> tuple[Peak, ...]:
    """The devices of a table. Raises UsageError for one that says less than a peak must."""
    try:
        rows = tomllib.loads(text).get("device", [])
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where} is no TOML: {error}.", hint="The form is that of the shipped table.") from error
    return tuple(_peak(row, where) for row in rows)


def _peak(row: dict[str, Any], where: str) -> Peak:
    label = str(row.get("label") or row.get("names"))
    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise UsageError(f"{where}, device {label}: unknown key {unknown[0]!r}.", hint=f"Known: {sorted(_KEYS)}.")
    if not row.get("names") or not row.get("source"):
        raise UsageError(f"{where}, device {label}: `names` and `source` must be given.")
    tflops = {key: float(row[key]) for key in PRECISIONS if key in row}
    if not tflops or min(tflops.values()) <= 0:
        raise UsageError(f"{where}, device {label}: no precision has a figure above 0.")
    check = row.get("check") or (None, None, None)
    return Peak(
        label=label,
        names=tuple(row["names"]),
        tflops=tflops,
        source=row["source"],
        seen=row.get("seen", "no"),
        note=row.get("note", ""),
        multiprocessors=check[0],
        flops_per_clock=check[1],
        boost_mhz=check[2],
        per_module=row.get("per_module", 1),
    )


@functools.cache
def shipped() -> tuple[Peak, ...]:
    """The table that comes with Fleetcraft."""
    where = resources.files("fleetcraft.usage") / "peaks.toml"
    return load(where.read_text(encoding="utf-8"), "the shipped table of peaks")


def table(path: str | None = None) -> tuple[Peak, ...]:
    """The shipped table, with the devices of a file before it."""
    if path is None:
        return shipped()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the table of peaks {path} cannot be read: {error.strerror}.") from error
    return (*load(text, path), *shipped())


def find(name: str, peaks: tuple[Peak, ...] | None = None) -> Peak | None:
    """The device of exactly this name, letter case and spaces aside; None for any other."""
    wanted = _same(name)
    for peak in peaks if peaks is not None else shipped():
        if any(_same(each) == wanted for each in peak.names):
            return peak
    return None
