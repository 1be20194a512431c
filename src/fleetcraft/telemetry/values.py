"""Cells of text that tools print, as numbers in our units, or the reason why there is none; never a guess.

Every text has an answer: what is neither a number nor a known token is `parse`, and the caller keeps the row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleetcraft.telemetry.api import Reason
from fleetcraft.telemetry.nvml_errors import is_blank
from fleetcraft.telemetry.nvml_power import plausible

MIB = 1 << 20
# Above this no decoder was right; between it and 100 a sum over processes or two ticks was.
_DECODE_LIMIT_PCT = 255.0
# Whatever is this large is one of the sentinels near the end of 64 bits, however it was rounded on the way.
_SENTINELS_FROM = 9.2e18
CLAMPED, THOUSANDS, DECIMAL_COMMA = "clamped", "thousands_separator", "decimal_comma"

_TOKENS = {
    "n/a": Reason.UNSUPPORTED,
    "[n/a]": Reason.UNSUPPORTED,
    "not supported": Reason.UNSUPPORTED,
    "[not supported]": Reason.UNSUPPORTED,
    "-": Reason.UNSUPPORTED,
    "insufficient permissions": Reason.NO_PERMISSION,
    "[insufficient permissions]": Reason.NO_PERMISSION,
    "no permission": Reason.NO_PERMISSION,
    "[requested functionality has been deprecated]": Reason.OLD_DRIVER,
    "function not found": Reason.OLD_DRIVER,
    "[function not found]": Reason.OLD_DRIVER,
    "gpu is lost": Reason.LOST,
    "[gpu is lost]": Reason.LOST,
    "[gpu requires reset]": Reason.RESET_REQUIRED,
    "gpu requires reset": Reason.RESET_REQUIRED,
    "[reset required]": Reason.RESET_REQUIRED,
    "[unknown error]": Reason.ERROR,
    "unknown error": Reason.ERROR,
    "err!": Reason.ERROR,
    "[not found]": Reason.NOT_FOUND,
    "not found": Reason.NOT_FOUND,
    "": Reason.NOT_FOUND,
    "none": Reason.NOT_FOUND,
    "null": Reason.NOT_FOUND,
    "nan": Reason.NAN,
    "-nan": Reason.NAN,
    "inf": Reason.NAN,
    "-inf": Reason.NAN,
    "infinity": Reason.NAN,
}
# A unit behind the number, and what one of it is in the unit of the column's family.
_UNITS = {
    "%": 1.0,
    "w": 1.0,
    "mw": 1e-3,
    "kw": 1e3,
    "b": 1.0,
    "kib": 1024.0,
    "mib": 1048576.0,
    "gib": 1073741824.0,
    "mhz": 1.0,
    "c": 1.0,
    "mj": 1.0,
    "j": 1e3,
}
_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
_COMMA = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+,\d+|[+-]?\d+,\d+", re.ASCII)
_WITH_UNIT = re.compile(r"(.*[\d.])\s*([A-Za-z%]+)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A number, or a reason; `raw` is what stood there where it was changed on the way."""

    value: float | None = None
    reason: Reason | None = None
    flag: str = ""
    raw: float | None = None


def reason_of_text(text: str) -> Reason | None:
    """What a token says; None for what is no token that we know."""
    word = text.strip().lower()
    if word.startswith("[unknown error"):
        return Reason.ERROR
    return _TOKENS.get(word)


def number(text: str, delimiter: str = ",") -> Cell:
    """A number as it stands there, with sentinels told apart. A decimal comma counts only where it divides no cells."""
    text = text.strip().strip('"').strip()
    flag = ""
    if not _PLAIN.fullmatch(text):
        reason = reason_of_text(text)
        if reason is not None:
            return Cell(reason=reason)
        if delimiter == "," and _GROUPED.fullmatch(text):
            text, flag = text.replace(",", ""), THOUSANDS
        elif delimiter != "," and _COMMA.fullmatch(text):
            text, flag = text.replace(".", "").replace(",", "."), DECIMAL_COMMA
        else:
            return Cell(reason=Reason.PARSE)
    # As a whole number first: a sentinel near the end of 64 bits is another number once it is rounded.
    whole = int(text) if len(text) < 32 and text.lstrip("+-").isdigit() else None
    if whole is not None and is_blank(whole):
        return Cell(reason=Reason.BLANK)
    value = float(text)
    if abs(value) == float("inf"):
        return Cell(reason=Reason.NAN)
    if abs(value) >= _SENTINELS_FROM or is_blank(value):
        return Cell(reason=Reason.BLANK)
    return Cell(value=value, flag=flag)


def measured(text: str, *, scale: float = 1.0, delimiter: str = ",") -> Cell:
    """A number in our unit: `scale` is what one of the column is, and a unit behind the number goes first."""
    match = _WITH_UNIT.fullmatch(text.strip().strip('"').strip())
    if match is not None and match.group(2).lower() in _UNITS:
        scale = _UNITS[match.group(2).lower()]
        text = match.group(1)
    cell = number(text, delimiter)
    if cell.value is None or scale == 1.0:
        return cell
    return Cell(value=cell.value * scale, flag=cell.flag)


def checked(name: str, cell: Cell, limit_w: float | None = None) -> Cell:
    """The same after asking whether a field of that name can have that value."""
    value = cell.value
    if value is None:
        return cell
    if name in ("power_w", "module_power_w"):
        if not plausible(value, limit_w):
            return Cell(reason=Reason.IMPLAUSIBLE, raw=value)
    elif value < 0:
        return Cell(reason=Reason.NAN, raw=value)
    elif name.endswith("_pct") and value > 100.0:
        if value > _DECODE_LIMIT_PCT:
            return Cell(reason=Reason.IMPLAUSIBLE, raw=value)
        return Cell(value=100.0, flag=CLAMPED, raw=value)
    elif name == "memory_total_bytes" and value == 0:
        return Cell(reason=Reason.IMPLAUSIBLE, raw=value)
    return cell


def field_of(name: str, text: str, *, scale: float = 1.0, delimiter: str = ",", limit_w: float | None = None) -> Cell:
    """One cell of a field, read and checked."""
    if name == "performance_state" and text.strip()[:1] in ("P", "p"):
        text = text.strip()[1:]
    return checked(name, measured(text, scale=scale, delimiter=delimiter), limit_w)
