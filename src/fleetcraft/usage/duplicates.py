"""GPUs that two loggers wrote down at once: found by samples that come too soon, and named.

The hold rule gives such samples next to no weight, so no sum counts them twice; counting rows would.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress
from typing import TYPE_CHECKING

from fleetcraft.usage.api import Window
from fleetcraft.usage.holding import held
from fleetcraft.usage.series import Series

if TYPE_CHECKING:
    from fleetcraft.usage.reading import HostReading, Problem

HOUR_MS = 3_600_000
# A sampler that was started anew may leave a sample too many; a second logger leaves them all along.
_FEW = 0.05
_LONG_MS = 600_000


def doubled(reading: HostReading, windows: Iterable[Window]) -> list[Problem]:
    """A problem for each host of which a part was logged twice."""
    from fleetcraft.usage.reading import Problem

    some = [window for window in windows if window.extra_samples]
    extra = sum(window.extra_samples for window in some)
    samples = sum(window.samples for window in some)
    extra_ms = sum(window.extra_ms for window in some)
    if not extra or (extra < _FEW * samples and extra_ms < _LONG_MS):
        return []
    hours = extra_ms / HOUR_MS
    text = (
        f"two loggers wrote at once: {extra:,} of {samples:,} samples are extra; the two share the time here, "
        f"and counting rows would add {hours:.3f} GPU-hours"
    )
    numbers = {"extra_samples": extra, "samples": samples, "doubled_gpu_hours": hours}
    return [Problem(kind="doubled", host=reading.host, text=text, numbers=numbers)]


def first_of_ticks(series: Series) -> Series:
    """The same series without a second logger's samples, held anew."""
    half_ms = series.interval_ms // 2
    keep: list[bool] = []
    tick_ms: int | None = None
    for stamp in series.utc_ms:
        keep.append(tick_ms is None or stamp - tick_ms >= half_ms)
        if keep[-1]:
            tick_ms = stamp
    one = series.take(0, 0)
    one.utc_ms = list(compress(series.utc_ms, keep))
    one.columns = {name: list(compress(column, keep)) for name, column in series.columns.items()}
    one.states = None if series.states is None else list(compress(series.states, keep))
    one.held_ms = held(one.utc_ms, one.interval_ms)
    return one
