"""Slurm's durations and points in time, as they are printed and as they are asked for.

None stands for everything that is no number: unlimited, not set, unknown. It is never zero by guess.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime

_DIGITS = r"[0-9]{1,9}"
_CLOCK = re.compile(
    rf"(?:(?P<days>{_DIGITS})-)?(?P<a>{_DIGITS})(?::(?P<b>{_DIGITS}))?(?::(?P<c>{_DIGITS}))?(?P<part>\.[0-9]{{1,9}})?"
)
_ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2}))?(?:\.[0-9]+)?"
    r"(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_EPOCH = re.compile(r"[0-9]{6,12}")
# `SLURM_TIME_FORMAT=relative` prints a time of day, a weekday or a month without the rest.
_RELATIVE = re.compile(
    r"(?:[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?"
    r"|(?:today|tomorr|tomorrow|ystday|yesterday|mon|tue|wed|thu|fri|sat|sun)\b.*"
    r"|[0-9]{1,2} (?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*(?: .*)?)",
    re.IGNORECASE,
)
_NO_TIME = frozenset({"", "unknown", "n/a", "none", "(null)", "notset", "not_set", "invalid", "0"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """A point in time, or why there is none. Both empty: Slurm says that there is none."""

    epoch: float | None = None
    error: str = ""  # relative_format, zone_unknown or unreadable


def duration_s(text: str) -> float | None:
    """Seconds as a command reports them: `2-03:04:05`, `01:30:00`, `1:00` (minutes and seconds), `35:45.828`.

    A number alone would be minutes in one column and seconds in another; here it is seconds.
    """
    match = _CLOCK.fullmatch(text.strip())
    if not match:
        return None
    days, first, second, third = match["days"], int(match["a"]), match["b"], match["c"]
    part = float(match["part"] or 0)
    if days is not None:
        whole = int(days) * 86400 + first * 3600 + int(second or 0) * 60 + int(third or 0)
    elif third is not None:
        whole = first * 3600 + int(second) * 60 + int(third)
    elif second is not None:
        whole = first * 60 + int(second)
    else:
        whole = first
    return whole + part if part else whole


def requested_s(text: str) -> int | None:
    """What `--time` makes of it: a number is minutes, and seconds round up to the minute. None: unlimited or nonsense.

    Slurm takes 0, -1 and UNLIMITED for no limit.
    """
    text = text.strip()
    match = _CLOCK.fullmatch(text)
    if not match or match["part"]:
        return None
    only_minutes = match["days"] is None and match["b"] is None
    seconds = int(match["a"]) * 60 if only_minutes else int(duration_s(text) or 0)
    return whole_minutes(seconds) * 60 or None


def whole_minutes(seconds: float) -> int:
    """Slurm keeps limits in minutes and rounds up."""
    return math.ceil(seconds / 60)


def read_stamp(text: str, utc_offset_s: float | None = None) -> Stamp:
    """A point in time as a command printed it.

    With SLURM_TIME_FORMAT=%s it is a number. A date without a zone is of the zone of the host that printed it:
    without `utc_offset_s` it cannot be told.
    """
    text = text.strip()
    if _EPOCH.fullmatch(text):
        return Stamp(epoch=float(text))
    if text.lower() in _NO_TIME:
        return Stamp()
    match = _ISO.fullmatch(text)
    if match:
        return _from_iso(match, utc_offset_s)
    return Stamp(error="relative_format" if _RELATIVE.fullmatch(text) else "unreadable")


def _from_iso(match: re.Match[str], utc_offset_s: float | None) -> Stamp:
    *fields, zone = match.groups()
    if zone is None:
        offset = utc_offset_s
    elif zone == "Z":
        offset = 0.0
    else:
        offset = (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60) * (-1 if zone[0] == "-" else 1)
    if offset is None:
        return Stamp(error="zone_unknown")
    year, month, day, hour, minute, second = (int(field or 0) for field in fields)
    try:
        local = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return Stamp(error="unreadable")
    return Stamp(epoch=local.timestamp() - offset)


def epoch_utc(text: str, utc_offset_s: float | None = None) -> float | None:
    """The time as a number, None when there is none or it cannot be told."""
    # The hot path: every row of a listing brings three of them.
    if len(text) == 10 and text.isascii() and text.isdigit():
        return float(text)
    return read_stamp(text, utc_offset_s).epoch
