"""Draws figures as SVG: the same text every time, every name escaped, nothing loaded from anywhere."""

from __future__ import annotations

import time
from html import escape

from fleetcraft.report.figures import STYLES, WORDS, Bars, Figure, Lines, Timeline, ticks

_STYLE = (
    "<style>text{font:11px system-ui,'DejaVu Sans',sans-serif;fill:#59636e}.name{fill:#1f2328}"
    ".grid{stroke:#d1d9e0;stroke-width:1}.line{fill:none;stroke:#0b62c4;stroke-width:1.6}"
    ".area{fill:#0b62c4;opacity:.13}.hatch{stroke:#fff;stroke-width:2.2}"
    "@media(prefers-color-scheme:dark){text{fill:#9198a1}.name{fill:#e6edf3}.grid{stroke:#3d444d}"
    ".line{stroke:#58a6ff}.area{fill:#58a6ff}.hatch{stroke:#0d1117}}</style>"
)


def draw(figure: Figure, *, standalone: bool = False) -> str:
    """One `<svg>`; standalone with its own style, else styled by the page around it."""
    if isinstance(figure, Lines):
        size, body = _lines(figure)
    elif isinstance(figure, Bars):
        size, body = _bars(figure)
    else:
        size, body = _timeline(figure)
    width, height = size
    names = f' xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"' if standalone else ""
    style = _STYLE if standalone else ""
    label = escape(f"{figure.title}: the numbers are in the tables and in the JSON file")
    return (
        f'<svg{names} class="{escape(figure.name)}" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        f"{style}{_patterns(figure)}{body}</svg>"
    )


def _kinds(figure: Figure) -> list[str]:
    if isinstance(figure, Bars):
        used = {kind for kind, _ in figure.parts}
    elif isinstance(figure, Timeline):
        used = {cell[2] for _, cells in figure.rows for cell in cells}
    else:
        return []
    return [kind for kind in STYLES if kind in used]


def _patterns(figure: Figure) -> str:
    made = "".join(
        f'<pattern id="{figure.name}-{kind}" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="6" height="6" fill="{STYLES[kind][0]}"/>'
        '<line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern>'
        for kind in _kinds(figure)
        if STYLES[kind][1]
    )
    return f"<defs>{made}</defs>" if made else ""


def _fill(figure: Figure, kind: str) -> str:
    color, hatched = STYLES[kind]
    return f"url(#{figure.name}-{kind})" if hatched else color


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def amount(value: float) -> str:
    """A number for people, with as many places as tell something."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.3f}" if value < 10 else f"{value:,.2f}"


def _text(x: float, y: float, words: str, *, anchor: str = "start", name: bool = False) -> str:
    kind = ' class="name"' if name else ""
    return f'<text{kind} x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}">{escape(words)}</text>'


def _lines(figure: Lines) -> tuple[tuple[int, int], str]:
    left, top, width, height = 46, 10, 560, 120
    span_ms = max(1, figure.until_ms - figure.since_ms)

    def across(at_ms: float) -> float:
        return left + (at_ms - figure.since_ms) / span_ms * width

    parts = []
    for share in (0.0, 0.5, 1.0):
        y = top + height * (1 - share)
        parts.append(f'<line class="grid" x1="{left}" y1="{_number(y)}" x2="{left + width}" y2="{_number(y)}"/>')
        parts.append(_text(left - 6, y + 4, f"{figure.top * share:g}", anchor="end"))
    parts += _axis(figure.since_ms, figure.until_ms, left, width, top + height)
    for run in figure.runs:
        # A step for each bin: a mean holds over the whole of it.
        places = [
            (min(max(across(at), left), left + width), top + height * (1 - value / figure.top))
            for start, value in run
            for at in (start, start + figure.length_ms)
        ]
        trail = " ".join(f"{_number(x)},{_number(y)}" for x, y in places)
        floor = _number(top + height)
        area = f"{_number(places[0][0])},{floor} {trail} {_number(places[-1][0])},{floor}"
        parts.append(f'<polygon class="area" points="{area}"/><polyline class="line" points="{trail}"/>')
    return (left + width + 14, top + height + 24), "".join(parts)


def _axis(since_ms: int, until_ms: int, left: int, width: int, bottom: float) -> list[str]:
    span_ms = max(1, until_ms - since_ms)
    most = 6 if width < 600 else 10
    return [
        _text(min(max(left + (at - since_ms) / span_ms * width, left + 14), left + width - 14), bottom + 16, label,
              anchor="middle")
        for at, label in ticks(since_ms, until_ms, most)
    ]  # fmt: skip


def _bars(figure: Bars) -> tuple[tuple[int, int], str]:
    left, step, width = 170, 24, 330
    whole = sum(value for _, value in figure.parts) or 1.0
    most = max((value for _, value in figure.parts), default=1.0) or 1.0
    parts = []
    for place, (kind, value) in enumerate(figure.parts):
        y = place * step + 4
        size = max(1.5, value / most * width)
        title = f"<title>{escape(WORDS[kind])}: {amount(value)} {escape(figure.unit)}</title>"
        parts.append(_text(left - 8, y + 13, WORDS[kind], anchor="end", name=True))
        parts.append(
            f'<rect x="{left}" y="{y}" width="{_number(size)}" height="17" rx="2" fill="{_fill(figure, kind)}">'
            f"{title}</rect>"
        )
        parts.append(_text(left + size + 8, y + 13, f"{amount(value)} {figure.short}, {100 * value / whole:.1f} %"))
    return (left + width + 130, len(figure.parts) * step + 8), "".join(parts)


def _timeline(figure: Timeline) -> tuple[tuple[int, int], str]:
    width, step = 820, 16
    left = min(220, 16 + max(len(label) for label, _ in figure.rows) * 7)
    span_ms = max(1, figure.until_ms - figure.since_ms)
    bottom = len(figure.rows) * step + 2
    parts = [
        f'<line class="grid" x1="{x}" y1="0" x2="{x}" y2="{bottom}"/>'
        for at, _ in ticks(figure.since_ms, figure.until_ms, 10)
        for x in (_number(left + (at - figure.since_ms) / span_ms * width),)
    ]
    for place, (label, cells) in enumerate(figure.rows):
        y = place * step
        parts.append(_text(left - 8, y + 12, label if len(label) <= 29 else label[:28] + "…", anchor="end", name=True))
        for start, end, kind in cells:
            begin, stop = max(start, figure.since_ms), min(end, figure.until_ms)
            x = left + (begin - figure.since_ms) / span_ms * width
            wide = max(0.6, (stop - begin) / span_ms * width)
            title = f"<title>{escape(label)}: {escape(WORDS[kind])}, from {_moment(begin)} to {_moment(stop)}</title>"
            parts.append(
                f'<rect x="{_number(x)}" y="{y + 2}" width="{wide:.1f}" height="12" fill="{_fill(figure, kind)}">'
                f"{title}</rect>"
            )
    parts += _axis(figure.since_ms, figure.until_ms, left, width, bottom)
    return (left + width + 14, bottom + 24), "".join(parts)


def _moment(at_ms: int) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.gmtime(at_ms / 1000))
