"""Small readings that sentences and tables share."""

from __future__ import annotations

from fleetcraft.core.quantities import format_duration


def took(seconds: float) -> str:
    """How long an attempt took: `0.03ms`, `12ms`, `3.2s`, `4m10s`."""
    if seconds < 0.01:
        return f"{1000 * seconds:.2f}ms"
    return f"{1000 * seconds:.0f}ms" if seconds < 1 else format_duration(seconds)


def tasks_are(number: int) -> str:
    """`1 task is`, `1,000 tasks are`."""
    return f"{number:,} {'task is' if number == 1 else 'tasks are'}"
