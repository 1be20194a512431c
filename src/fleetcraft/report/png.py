"""Draws figures as PNG through matplotlib (the extra `plot`)."""

from __future__ import annotations

import io

from fleetcraft.core.errors import UsageError
from fleetcraft.report.figures import STYLES, WORDS, Bars, Figure, Lines, ticks


def draw(figure: Figure) -> bytes:
    """One PNG. Raises UsageError without matplotlib."""
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise UsageError(
            "PNG figures need matplotlib, which is not installed.",
            hint="Install it: `pip install 'fleetcraft[plot]'`, or take --format svg.",
        ) from error
    rows = len(figure.parts) if isinstance(figure, Bars) else 8 if isinstance(figure, Lines) else len(figure.rows)
    canvas = Canvas(figsize=(9.0, min(60.0, 1.0 + 0.25 * rows)), layout="constrained")
    axes = canvas.add_subplot()
    axes.set_title(figure.title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    if isinstance(figure, Lines):
        for run in figure.runs:
            stamps = [start for start, _ in run] + [run[-1][0] + figure.length_ms]
            axes.stairs([value for _, value in run], stamps, baseline=None, color="#0b62c4")
        axes.set_ylim(0, figure.top)
        axes.set_ylabel(figure.unit)
    elif isinstance(figure, Bars):
        for place, (kind, value) in enumerate(figure.parts):
            color, hatched = STYLES[kind]
            axes.barh(place, value, color=color, hatch="///" if hatched else None, edgecolor="white")
        axes.set_yticks(range(len(figure.parts)), [WORDS[kind] for kind, _ in figure.parts])
        axes.invert_yaxis()
        axes.set_xlabel(figure.unit)
    else:
        for place, (_, cells) in enumerate(figure.rows):
            for start, end, kind in cells:
                color, hatched = STYLES[kind]
                axes.barh(place, end - start, left=start, color=color, hatch="///" if hatched else None, linewidth=0)
        axes.set_yticks(range(len(figure.rows)), [label for label, _ in figure.rows], fontsize=7)
        axes.invert_yaxis()
    if not isinstance(figure, Bars):
        marks = ticks(figure.since_ms, figure.until_ms)
        axes.set_xticks([at for at, _ in marks], [label for _, label in marks], fontsize=8)
        axes.set_xlim(figure.since_ms, figure.until_ms)
    target = io.BytesIO()
    canvas.savefig(target, format="png", dpi=110, metadata={"Software": ""})
    return target.getvalue()
