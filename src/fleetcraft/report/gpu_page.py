"""The GPU report as one HTML file that needs nothing else: texts are escaped, and its policy forbids to load any."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from fleetcraft.report.figures import STYLES, WORDS, Bars, Lines, Timeline, figures_of, in_hours
from fleetcraft.report.svg import draw

FOLDER = os.path.join(os.path.dirname(__file__), "templates")
GIB = 1 << 30
HOUR_MS = 3_600_000
TASKS_SHOWN = 200
UNKNOWN = "unknown"
_PROBLEMS = {
    "doubled": "two loggers wrote at once; their samples share the time",
    "no_data": "no sample was written",
}


def render(document: Mapping[str, Any]) -> str:
    """The whole page."""
    import jinja2

    engine = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    engine.filters.update(hours=hours, seconds=seconds, gib=gib, percent=percent, fixed=fixed, utc=utc, energy=energy)
    hourly = in_hours(document)
    engine.filters["amount"] = hours if hourly else seconds
    figures = figures_of(document)
    drawn = [(figure, engine.filters["safe"](draw(figure))) for figure in figures]
    used = {cell[2] for one in document["timelines"] for cell in one["cells"]}
    return engine.get_template("gpu.html.j2").render(
        document=document, total=document["total"], coverage=document["coverage"], words=WORDS,
        style=engine.filters["safe"](_read("gpu.css")),
        timeline=next((svg for figure, svg in drawn if isinstance(figure, Timeline)), None),
        legend=[(WORDS[kind], *STYLES[kind]) for kind in STYLES if kind in used],
        bars=[(figure, svg) for figure, svg in drawn if isinstance(figure, Bars)],
        lines=[(figure, svg) for figure, svg in drawn if isinstance(figure, Lines)],
        silent=[row["name"] for row in document["rows"] if not row["samples"]],
        doubled=[one for one in document["problems"] if one["kind"] == "doubled"],
        others=[one for one in document["problems"] if one["kind"] not in ("doubled", "no_data")],
        known=_PROBLEMS, most=TASKS_SHOWN, length=_length(document["length_ms"]), word="hours" if hourly else "seconds",
        sign="h" if hourly else "s",
    )  # fmt: skip


def fixed_text() -> str:
    """All words that every report has, whatever it is of."""
    return "\n".join([_read("gpu.html.j2"), _read("gpu.css"), *WORDS, *WORDS.values(), "host task file name kind"])


def _read(name: str) -> str:
    with open(os.path.join(FOLDER, name), encoding="utf-8") as source:
        return source.read()


def hours(amount_ms: float | None) -> str:
    """Milliseconds as hours."""
    return UNKNOWN if amount_ms is None else f"{amount_ms / HOUR_MS:,.3f}"


def seconds(amount_ms: float | None) -> str:
    """Milliseconds as seconds."""
    return UNKNOWN if amount_ms is None else f"{amount_ms / 1000:,.1f}"


def gib(value: float | None) -> str:
    """Bytes as GiB."""
    return UNKNOWN if value is None else f"{value / GIB:,.2f}"


def percent(share: float | None) -> str:
    """A share as percent."""
    return UNKNOWN if share is None else f"{100 * share:.2f} %"


def fixed(value: float | None, places: int = 2) -> str:
    """A number with so many places."""
    return UNKNOWN if value is None else f"{value:,.{places}f}"


def energy(kwh: float | None) -> str:
    """Energy for people."""
    if kwh is None:
        return UNKNOWN
    return f"{kwh:,.2f} kWh" if kwh >= 0.1 else f"{kwh * 1000:,.2f} Wh"


def _length(amount_ms: int) -> str:
    sizes = ((86_400_000, "day"), (HOUR_MS, "hour"), (60_000, "minute"), (1000, "second"))
    size_ms, word = next((one for one in sizes if amount_ms >= one[0]), sizes[-1])
    return f"{amount_ms / size_ms:g} {word}{'s' * (amount_ms != size_ms)}"


def utc(moment_ms: int) -> str:
    """A moment for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(moment_ms / 1000))
