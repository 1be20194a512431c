"""How far apart samples may be."""

from __future__ import annotations

from fleetcraft.core.errors import UsageError

SHORTEST_S, LONGEST_S = 1.0, 60.0


def check_interval_s(interval_s: float, what: str = "--interval") -> float:
    """The interval itself. Raises UsageError where it is too short or too long."""
    if not SHORTEST_S <= interval_s <= LONGEST_S:
        raise UsageError(
            f"{what} {interval_s:g}s must be from {SHORTEST_S:g}s to {LONGEST_S:g}s.",
            hint="A sample counts for at most one and a half intervals, so a longer one would say little.",
        )
    return interval_s
