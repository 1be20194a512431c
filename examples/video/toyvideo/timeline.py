"""Draws when each slot ran what, as one SVG; long pauses between two lives of the study are cut out and named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import TypedDict

PAUSE_FLOOR_S = 8.0
_CUT_S_SHARE = 0.04
_LEFT, _WIDTH, _LANE, _BAR, _TOP = 190, 960, 30, 20, 8


class TimelineEntry(TypedDict):
    """One attempt: which task ran where and when, and how it ended; nobody saw a lost one end."""

    task: str
    slot: str
    worker: str
    start_utc: str
    end_utc: str | None
    outcome: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A span of time in which something ran, and where it lies in the picture."""

    begin_s: float
    end_s: float
    left: float
    right: float

    def place(self, at_s: float) -> float:
        """Return the x of a moment inside this stretch."""
        span = self.end_s - self.begin_s
        return self.left + (at_s - self.begin_s) / span * (self.right - self.left)


def seconds_of(stamp: str) -> float:
    """Return a UTC stamp as seconds since 1970."""
    return datetime.fromisoformat(stamp).timestamp()


def find_stretches(spans: Sequence[tuple[float, float]]) -> list[Stretch]:
    """Join spans that overlap or are close, and share the picture's width among them."""
    joined: list[tuple[float, float]] = []
    for begin_s, end_s in sorted(spans):
        if joined and begin_s - joined[-1][1] < PAUSE_FLOOR_S:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end_s))
        else:
            joined.append((begin_s, max(end_s, begin_s + 0.001)))
    cut = _WIDTH * _CUT_S_SHARE if len(joined) <= 12 else _WIDTH * 0.5 / len(joined)
    scale = (_WIDTH - cut * (len(joined) - 1)) / sum(end - begin for begin, end in joined) if joined else 1.0
    stretches, left = [], float(_LEFT)
    for begin_s, end_s in joined:
        right = left + (end_s - begin_s) * scale
        stretches.append(Stretch(begin_s=begin_s, end_s=end_s, left=left, right=right))
        left = right + cut
    return stretches


def timeline_svg(entries: Sequence[TimelineEntry]) -> str:
    """Return the picture, or a sentence when there is nothing to show."""
    if not entries:
        return "<p>No attempt has been recorded yet.</p>"
    spans = [(seconds_of(entry["start_utc"]), seconds_of(entry["end_utc"] or entry["start_utc"])) for entry in entries]
    stretches = find_stretches(spans)
    lanes = sorted({(entry["worker"], entry["slot"]) for entry in entries}, key=lambda lane: _lane_order(lane, entries))
    height = _TOP + len(lanes) * _LANE + 34
    parts = [
        (
            f'<svg class="timeline" viewBox="0 0 {_LEFT + _WIDTH + 10} {height}" role="img"'
            f' aria-label="Timeline of {len(entries)} attempts on {len(lanes)} slots">'
        )
    ]
    parts += _axis(stretches, _TOP + len(lanes) * _LANE)
    # Lanes come in the order in which their workers began, so this numbers the workers in that order.
    workers = list(dict.fromkeys(worker for worker, _ in lanes))
    for row, (worker, slot) in enumerate(lanes):
        name = slot if len(workers) == 1 else f"worker {workers.index(worker) + 1}, {slot}"
        shown = name if len(name) <= 26 else name[:25] + "…"
        y = _TOP + row * _LANE
        hint = f"<title>{escape(f'{worker} {slot}')}</title>"
        parts.append(f'<text class="lane" x="{_LEFT - 10}" y="{y + 15}">{hint}{escape(shown)}</text>')
        for entry, (begin_s, end_s) in zip(entries, spans, strict=True):
            if (entry["worker"], entry["slot"]) == (worker, slot):
                parts.append(_bar(entry, begin_s, end_s, stretches, y))
    parts.append("</svg>")
    return "".join(parts)


def _lane_order(lane: tuple[str, str], entries: Sequence[TimelineEntry]) -> tuple[float, str]:
    worker, slot = lane
    first_s = min(seconds_of(entry["start_utc"]) for entry in entries if entry["worker"] == worker)
    return first_s, slot


def _bar(entry: TimelineEntry, begin_s: float, end_s: float, stretches: Sequence[Stretch], y: int) -> str:
    stretch = next(s for s in stretches if s.begin_s <= begin_s <= s.end_s)
    left = stretch.place(begin_s)
    width = max(stretch.place(min(end_s, stretch.end_s)) - left, 1.5)
    took = f"{end_s - begin_s:.2f} s" if entry["end_utc"] else "its end is not known"
    hint = f"{entry['task']}: {entry['outcome']}, {took}"
    bad = "" if entry["outcome"] == "succeeded" else " bad"
    kind = "".join(letter for letter in entry["kind"] if letter.isalnum())
    return (
        f'<rect class="bar kind-{kind}{bad}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="1.5">'
        f"<title>{escape(hint)}</title></rect>"
    )


def _axis(stretches: Sequence[Stretch], bottom: int) -> list[str]:
    parts = []
    elapsed_s = 0.0
    total_s = sum(stretch.end_s - stretch.begin_s for stretch in stretches)
    step_s = _tick_step(total_s)
    for index, stretch in enumerate(stretches):
        tick_s = -(-elapsed_s // step_s) * step_s
        while tick_s <= elapsed_s + stretch.end_s - stretch.begin_s:
            x = stretch.place(stretch.begin_s + tick_s - elapsed_s)
            parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{bottom}"/>')
            parts.append(f'<text class="at" x="{x:.1f}" y="{bottom + 16}">{tick_s:g} s</text>')
            tick_s += step_s
        elapsed_s += stretch.end_s - stretch.begin_s
        if index + 1 < len(stretches):
            following = stretches[index + 1]
            pause = _pause_words(following.begin_s - stretch.end_s)
            x = stretch.right
            size = f'width="{following.left - x:.1f}" height="{bottom - _TOP + 4}"'
            parts.append(f'<rect class="pause" x="{x:.1f}" y="{_TOP - 4}" {size}/>')
            middle = (x + following.left) / 2
            parts.append(f'<text class="at" x="{middle:.1f}" y="{bottom + 30}">paused {escape(pause)}</text>')
    return parts


def _tick_step(total_s: float) -> float:
    for step_s in (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0):
        if total_s / step_s <= 14:
            return step_s
    return max(total_s / 10, 1.0)


def _pause_words(span_s: float) -> str:
    if span_s < 120:
        return f"{span_s:.0f} s"
    return f"{span_s / 60:.0f} min" if span_s < 7200 else f"{span_s / 3600:.1f} h"
