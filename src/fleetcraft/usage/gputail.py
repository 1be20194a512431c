"""One GPU as its telemetry shows it lately. Its host's stamps are only ever compared among themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleetcraft.usage.api import Context, Gpu, Window
from fleetcraft.usage.series import Series
from fleetcraft.usage.windows import add_up, merge


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The last sample of a GPU."""

    utc_ms: int
    state: str
    values: Mapping[str, float]
    reasons: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class GpuTail:
    """One GPU with what it showed within the horizon. `series` have the hold rule applied."""

    gpu: Gpu
    context: Context
    latest: Latest | None
    series: list[Series] = field(default_factory=list)
    baseline_bytes: float = 0.0
    parent: str = ""
    power_limit_w: float | None = None
    age_s: float = 0.0  # since the last write of its file
    ended: bool = False  # its sampler said that it stopped
    end_text: str = ""
    began_ms: int | None = None  # of the sampler's first segment within the horizon, by the host's clock

    @property
    def interval_s(self) -> float:
        """How often its sampler measures."""
        return self.context.interval_s

    def now_ms(self) -> int | None:
        """What the host's clock shows now, reckoned from its last stamp and the age of that."""
        return None if self.latest is None else self.latest.utc_ms + round(self.age_s * 1000)

    def span(self, length_s: float) -> tuple[int, int] | None:
        """The last so many seconds, or since its sampler began; None without a sample."""
        until_ms = self.now_ms()
        if until_ms is None:
            return None
        since_ms = until_ms - round(length_s * 1000)
        if self.began_ms is not None:
            since_ms = max(since_ms, self.began_ms)
        # A sample is held for an interval, so the last of it may still lie ahead.
        return min(since_ms, until_ms - round(self.interval_s * 1000)), until_ms

    def window(self, length_s: float) -> Window | None:
        """What was seen in that time, added up."""
        span = self.span(length_s)
        if span is None:
            return None
        since_ms, until_ms = span
        window = Window(gpu=self.gpu, start_ms=since_ms, length_ms=until_ms - since_ms)
        for series in self.series:
            part = series.clip(since_ms, until_ms)
            if part.utc_ms:
                merge(window, add_up(part, since_ms, until_ms - since_ms))
        return window

    def active_ms(self, length_s: float, active_pct: float) -> tuple[int, int]:
        """Time with activity, and time of which that is known. Where there is no utilization, SM activity counts."""
        active = known = 0
        span = self.span(length_s)
        if span is None:
            return 0, 0
        for series in self.series:
            part = series.clip(*span)
            for value, hold in zip(_activity(part), part.held_ms, strict=True):
                if value is not None:
                    known += hold
                    active += hold if value >= active_pct else 0
        return active, known

    def idle_s(self, active_pct: float) -> float | None:
        """How long it was not active, at least: since the last activity, or since the first sample read."""
        return self._calm_s(active_pct, None)

    def free_s(self, active_pct: float, reserved_bytes: float) -> float | None:
        """How long it was neither active nor held. None where nothing is known; an unknown use of memory is a use."""
        return self._calm_s(active_pct, reserved_bytes + self.baseline_bytes)

    def _calm_s(self, active_pct: float, held_bytes: float | None) -> float | None:
        until_ms = self.now_ms()
        if until_ms is None:
            return None
        first: int | None = None
        last_used: int | None = None
        for series in self.series:
            held = _held(series, held_bytes)
            for stamp, hold, value, is_held in zip(series.utc_ms, series.held_ms, _activity(series), held, strict=True):
                if value is None and held_bytes is None:
                    continue
                first = stamp if first is None else min(first, stamp)
                if is_held or value is None or value >= active_pct:
                    last_used = max(last_used or 0, stamp + hold)
        since = last_used if last_used is not None else first
        return None if since is None else max(0.0, (until_ms - since) / 1000)


def _activity(series: Series) -> Sequence[float | None]:
    """Utilization where it is told, else SM activity, sample by sample; of a device in trouble nothing is known."""
    util, active = series.columns.get("util_pct"), series.columns.get("sm_active_pct")
    count = len(series.utc_ms)
    values: list[float | None] = list(util) if util is not None else [None] * count
    if active is not None:
        values = [other if value is None else value for value, other in zip(values, active, strict=True)]
    if series.states is not None:
        values = [value if state == "ok" else None for value, state in zip(values, series.states, strict=True)]
    return values


def _held(series: Series, held_bytes: float | None) -> Sequence[bool]:
    """For each sample whether somebody may hold the device."""
    count = len(series.utc_ms)
    if held_bytes is None:
        return [False] * count
    used, pids = series.columns.get("memory_used_bytes"), series.columns.get("own_pids")
    by_memory = [True] * count if used is None else [value is None or value >= held_bytes for value in used]
    by_pids = [False] * count if pids is None else [bool(value) for value in pids]
    return [one or other for one, other in zip(by_memory, by_pids, strict=True)]
