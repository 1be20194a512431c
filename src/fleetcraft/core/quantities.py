"""Durations and sizes as people write them: `90`, `20m`, `1-12:00:00`, `20G`."""

from __future__ import annotations

import math
import re

from fleetcraft.core.errors import UsageError

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
# Digits are those of ASCII and few enough for every sum to stay finite and every whole size exact.
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"
_PLAIN = re.compile(_NUMBER)
_PART = re.compile(rf"({_NUMBER})(ms|[smhdw])")
_SLURM = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9}):([0-9]{1,2})(?::([0-9]{1,2}))?")
_SIZE = re.compile(rf"({_NUMBER})\s*([KMGTP]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def parse_duration_s(text: str | float, what: str = "duration") -> float:
    """Seconds from `90`, `1.5h`, `1h30m`, `12:30:00`, `1-12:00:00` (days-hours:minutes:seconds) or a number.

    A pair such as `20:00` is minutes and seconds, as in Slurm; with days it is hours and minutes.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        # A whole number may be too large for a float.
        value = float(text) if abs(text) < 10**18 else math.inf
        if not math.isfinite(value) or value < 0:
            raise UsageError(f"{what} {text!r} is not a time of zero or more seconds.")
        return value
    raw = str(text).strip()
    if _PLAIN.fullmatch(raw):
        return float(raw)
    clock = _SLURM.fullmatch(raw)
    if clock:
        days, first, second, third = clock.groups()
        if days is not None:
            return int(days) * 86400.0 + int(first) * 3600.0 + int(second) * 60.0 + int(third or 0)
        if third is None:
            return int(first) * 60.0 + int(second)
        return int(first) * 3600.0 + int(second) * 60.0 + int(third)
    parts = _PART.findall(raw)
    if parts and "".join(number + unit for number, unit in parts) == raw:
        return float(sum(float(number) * _UNITS_S[unit] for number, unit in parts))
    raise UsageError(f"{what} {text!r} is not a time.", hint="Write 90, 90s, 20m, 1h30m, 12:00:00 or 1-12:00:00.")


def parse_size_bytes(text: str | int, what: str = "size") -> int:
    """Bytes from `20G`, `512MiB` or a number; units are powers of 1024."""
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise UsageError(f"{what} {text!r} is negative.")
        return text
    match = _SIZE.fullmatch(str(text).strip())
    if not match:
        raise UsageError(f"{what} {text!r} is not a size.", hint="Write 512M, 20G or a number of bytes.")
    number, unit = match.groups()
    factor: int = 1024 ** _POWERS[unit.upper()]
    return int(number) * factor if number.isdigit() else int(float(number) * factor)


def format_duration(seconds: float) -> str:
    """A short reading such as `3.2s`, `4m10s`, `2h05m`, `3d04h`."""
    if seconds < 60:
        return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.1f}s"
    if seconds < 3600:
        return f"{int(seconds // 60)}m{int(seconds % 60):02d}s"
    if seconds < 86400:
        return f"{int(seconds // 3600)}h{int(seconds % 3600 // 60):02d}m"
    return f"{int(seconds // 86400)}d{int(seconds % 86400 // 3600):02d}h"


def format_bytes(size_bytes: float) -> str:
    """A short reading such as `1.5 GiB`."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
