"""Stamps of logs that are not ours as UTC milliseconds; a local time without a zone is placed by the order of the file.

Where clocks are set back an hour comes twice. A stamp that may be either goes to the first that does not lie before
the row ahead of it, and is counted as ambiguous where the file does not decide it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import tzinfo

_DAY_MS = 86_400_000
_HALF_DAY_MS = _DAY_MS // 2
# What two loggers or a clock being corrected may step back without meaning the hour that comes again.
_JITTER_MS = 300_000
_STAMP = re.compile(
    r"(\d{4})[/-]?(\d{2})[/-]?(\d{2})[T ](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?\s*(Z|UTC|[+-]\d{2}:?\d{2})?",
    re.ASCII,
)
_CLOCK = re.compile(r"(\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?", re.ASCII)
_EPOCH = re.compile(r"\d{9,11}(?:\.\d{1,9})?|\d{12,14}", re.ASCII)
_LENGTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def days_of(year: int, month: int, day: int) -> int:
    """Days since 1970. Raises ValueError where there is no such day."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if (
        not (1 <= month <= 12 and year >= 1970)
        or not 1 <= day <= _LENGTHS[month - 1]
        or (month, day, leap) == (2, 29, False)
    ):
        raise ValueError("there is no such day")
    shifted = year - (month <= 2)
    era_year = shifted % 400
    era_day = (
        (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1 + era_year * 365 + era_year // 4 - era_year // 100
    )
    return shifted // 400 * 146_097 + era_day - 719_468


class Minutes(dict[str, int]):
    """`2026/07/19 21:59:` as UTC milliseconds of its begin, each worked out once."""

    def __missing__(self, key: str) -> int:
        if len(key) != 17 or not (key + "00").isascii():
            raise ValueError(f"{key!r} is no minute")
        mark, other, gap, hour, end = key[4], key[7], key[10], key[13], key[16]
        digits = key[:4] + key[5:7] + key[8:10] + key[11:13] + key[14:16]
        if mark not in "/-" or mark != other or gap not in " T" or hour + end != "::" or not digits.isdigit():
            raise ValueError(f"{key!r} is no minute")
        hours, minutes = int(digits[8:10]), int(digits[10:12])
        if hours > 23 or minutes > 59:
            raise ValueError(f"{key!r} is no minute")
        day = days_of(int(digits[:4]), int(digits[4:6]), int(digits[6:8]))
        value = day * _DAY_MS + hours * 3_600_000 + minutes * 60_000
        self[key] = value
        return value


class Clock:
    """Places one stamp after the other; `ambiguous` and `missing` count what the zone or the file leave open."""

    def __init__(self, zone: tzinfo | None, day: str = "") -> None:
        self._zone = zone
        self._day_ms = day_ms(day) if day else None
        self._time_ms: int | None = None
        self._before_ms: int | None = None
        self.ambiguous = 0
        self.missing = 0  # in the hour that a zone leaves out
        self.told_zone = 0
        self.told_none = 0

    @property
    def has_zone(self) -> bool:
        """True where stamps without a zone are placed by one."""
        return self._zone is not None

    @property
    def has_day(self) -> bool:
        """True where times of day can be placed."""
        return self._day_ms is not None

    def stamp(self, text: str) -> int | None:
        """A whole stamp; None for what is none."""
        text = text.strip().strip('"').strip()
        match = _STAMP.fullmatch(text)
        if match is not None:
            return self._of_parts(match)
        if _EPOCH.fullmatch(text):
            self.told_zone += 1
            return int(text) if len(text.partition(".")[0]) >= 12 else round(float(text) * 1000)
        return None

    def _of_parts(self, match: re.Match[str]) -> int | None:
        year, month, day, hours, minutes, seconds = (int(part) for part in match.groups()[:6])
        if hours > 23 or minutes > 59 or seconds > 60:
            return None
        try:
            days = days_of(year, month, day)
        except ValueError:
            return None
        local = days * _DAY_MS + hours * 3_600_000 + minutes * 60_000 + seconds * 1000 + _millis(match.group(7))
        offset = match.group(8)
        if offset is None:
            return self.place(local)
        self.told_zone += 1
        if offset in ("Z", "UTC"):
            return local
        digits = offset[1:].replace(":", "")
        shift = (int(digits[:2]) * 60 + int(digits[2:])) * 60_000
        return local - shift if offset[0] == "+" else local + shift

    def split(self, date: str, time: str) -> int | None:
        """A stamp from a date and a time of day; without a date the days are counted from the hint."""
        if date:
            return self.stamp(f"{date.strip()} {time.strip()}")
        match = _CLOCK.fullmatch(time.strip())
        if match is None or self._day_ms is None:
            return None
        hours, minutes, seconds = (int(part) for part in match.groups()[:3])
        if hours > 23 or minutes > 59 or seconds > 60:
            return None
        now = hours * 3_600_000 + minutes * 60_000 + seconds * 1000 + _millis(match.group(4))
        if self._time_ms is not None and self._time_ms - now > _HALF_DAY_MS:
            self._day_ms += _DAY_MS  # midnight; a step back by less is a clock that was set
        self._time_ms = now
        return self.place(self._day_ms + now)

    def place(self, local_ms: int) -> int:
        """A local time in UTC, by the zone and the row ahead."""
        self.told_none += 1
        if self._zone is None:
            return local_ms
        first, second = (offset_ms(self._zone, local_ms, fold) for fold in (0, 1))
        early, late = local_ms - max(first, second), local_ms - min(first, second)
        if first == second:
            chosen = early
        elif first < second:  # clocks went forward: nobody's clock showed this
            self.missing += 1
            chosen = local_ms - first
        else:
            before = self._before_ms
            back = before is not None and early < before - _JITTER_MS
            if not back and (before is None or early - before > _JITTER_MS):
                self.ambiguous += 1  # nothing close ahead of it says which of both
            chosen = late if back else early
        self._before_ms = chosen
        return chosen


def offset_ms(zone: tzinfo, local_ms: int, fold: int) -> int:
    """What a zone's clocks are ahead of UTC at that local time."""
    from datetime import UTC, datetime

    local = datetime.fromtimestamp(local_ms // 1000, UTC).replace(tzinfo=zone, fold=fold)
    ahead = local.utcoffset()
    return 0 if ahead is None else int(ahead.total_seconds() * 1000)


def day_ms(text: str) -> int:
    """`2026-07-19` as milliseconds. Raises ValueError."""
    match = re.fullmatch(r"(\d{4})[/-]?(\d{2})[/-]?(\d{2})", text.strip(), re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is no date")
    return days_of(*(int(part) for part in match.groups())) * _DAY_MS


def _millis(fraction: str | None) -> int:
    return int((fraction or "0")[:3].ljust(3, "0"))


def local_to_utc(stamps_ms: list[int], clock: Clock, zone: tzinfo) -> list[int]:
    """The same for a whole column: an hour at whose ends the zone says the same is moved as one."""
    hours: dict[int, int | None] = {}
    for hour in {stamp // 3_600_000 for stamp in stamps_ms}:
        begin = hour * 3_600_000
        said = {offset_ms(zone, at, fold) for at in (begin, begin + 1_800_000, begin + 3_599_000) for fold in (0, 1)}
        hours[hour] = said.pop() if len(said) == 1 else None
    if None not in hours.values():
        clock.told_none += len(stamps_ms)
        return [stamp - (hours[stamp // 3_600_000] or 0) for stamp in stamps_ms]
    return [clock.place(stamp) for stamp in stamps_ms]
