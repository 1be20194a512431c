"""The numbers that tell the classes of a GPU apart, and those of alerts: all named, all changeable, always shown.

A verdict without its thresholds cannot be checked, so every answer carries them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any

from fleetcraft.core.errors import UsageError
from fleetcraft.usage.holding import ACTIVE_PCT, LOW_SM_PCT, RESERVED_BYTES, WINDOW_MS

_SHARES = ("min_coverage", "release_coverage", "disk_full")
_POSITIVE = ("window_s", "active_pct", "silent_intervals")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Seconds, percent, MiB, degrees and shares, as the names say."""

    window_s: float = WINDOW_MS / 1000
    active_pct: float = ACTIVE_PCT  # a sample at or above counts as active
    reserved_mib: float = RESERVED_BYTES / (1 << 20)  # above the baseline: somebody holds memory
    low_sm_pct: float = LOW_SM_PCT  # working below this is labelled low
    min_coverage: float = 0.5  # below it there is no verdict
    silent_s: float = 90.0
    silent_intervals: float = 3.0
    grace_s: float = 600.0  # a younger job that was never active starts
    fresh_s: float = 120.0  # a heartbeat of an application up to this age is fresh
    nudge_free_s: float = 900.0
    nudge_reserved_s: float = 3600.0
    idle_with_work_s: float = 120.0  # an idle GPU while work waits that it could run
    throttle_s: float = 120.0
    hot_c: float = 90.0
    disk_full: float = 0.92
    clear_s: float = 60.0  # how long a condition must be gone before its alert ends
    release_s: float = 3600.0
    release_coverage: float = 0.9
    release_gap_s: float = 300.0  # between the warnings, and after the last of them

    def silent_after_s(self, interval_s: float) -> float:
        """From which age on a sampler of this interval counts as silent."""
        return max(self.silent_intervals * interval_s, self.silent_s)

    @property
    def reserved_bytes(self) -> float:
        """The same threshold in bytes."""
        return self.reserved_mib * (1 << 20)

    def as_json(self) -> dict[str, float]:
        """By name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def replaced(self, words: Iterable[str]) -> Thresholds:
        """With some of them set, as `name=value`. Raises UsageError."""
        changes: dict[str, Any] = {}
        for word in words:
            name, equals, text = word.partition("=")
            name = name.strip().replace("-", "_")
            if name not in DEFAULTS:
                raise UsageError(f"There is no threshold {name!r}.", hint=f"There are: {', '.join(DEFAULTS)}.")
            changes[name] = _number(name, text if equals else "")
        return replace(self, **changes)


def _number(name: str, text: str) -> float:
    hint = f"Write --threshold {name}={DEFAULTS[name]:g}."
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"Threshold {name} needs a number, not {text!r}.", hint=hint) from None
    if not isfinite(value) or value < 0 or (name in _POSITIVE and value == 0) or (name in _SHARES and value > 1):
        allowed = "between 0 and 1" if name in _SHARES else "finite and not negative"
        raise UsageError(f"Threshold {name} cannot be {text}: it must be {allowed}.", hint=hint)
    return value


DEFAULTS = Thresholds().as_json()
