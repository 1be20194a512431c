"""Small readings that sentences and tables share."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

from fleetcraft.core.quantities import format_duration

MINUTES, SECONDS = "%Y-%m-%d %H:%M %Z", "%Y-%m-%d %H:%M:%S %Z"


def local_time(at_utc: float | None, zone: str | None = None, form: str = MINUTES) -> str:
    """A time for a person, in the time zone of the site, always with the name of the zone; JSON never has these."""
    return "?" if at_utc is None else datetime.fromtimestamp(at_utc, _zone(zone)).strftime(form)


def _zone(name: str | None) -> tzinfo:
    if name is None:
        return UTC
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return UTC  # no zone data on this machine


def took(seconds: float) -> str:
    """How long an attempt took: `0.03ms`, `12ms`, `3.2s`, `4m10s`."""
    if seconds < 0.01:
        return f"{1000 * seconds:.2f}ms"
    return f"{1000 * seconds:.0f}ms" if seconds < 1 else format_duration(seconds)


def tasks_are(number: int) -> str:
    """`1 task is`, `1,000 tasks are`."""
    return f"{number:,} {'task is' if number == 1 else 'tasks are'}"
