"""Draws the study's figures as SVG, one file each; run as `python -m toyvideo.plot --summary FILE --out DIR`.

Colors come from one palette of exact values, so that the report can exchange them for those of its light or dark page.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toyvideo.files import write_aside
from toyvideo.metrics import METRICS, Metric
from toyvideo.report_media import FIGURES

TEXT = "#24292f"
GRID = "#d0d7de"
ACCENT = "#0b62c4"
TRUTH = "#9a5b00"
ARM_COLORS = ("#8fbaf0", "#3f8ae0", "#0b4f9e")

_SIZE_INCHES = (3.7, 2.5)


def plot_all(summary: dict[str, Any], folder: Path) -> list[Path]:
    """Write every figure and return the files."""
    metrics = {metric.key: metric for metric in METRICS}
    written = []
    for key in FIGURES:
        figure, axes = _new_figure()
        if key in metrics:
            _draw_metric(axes, metrics[key], summary["arms"])
        else:
            _draw_losses(axes, summary["arms"])
        written.append(_save(figure, folder / f"{key}.svg"))
    return written


def _new_figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(colors=TEXT, labelsize=8, length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _draw_metric(axes: Axes, metric: Metric, arms: list[dict[str, Any]]) -> None:
    """One dot for each arm, and a dashed line where held-out true clips lie."""
    trained = [arm for arm in arms if arm["iterations"] is not None]
    truth = [arm for arm in arms if arm["iterations"] is None]
    factor = 100.0 if metric.is_share else 1.0
    values = [(place, arm["metrics"][metric.key]["value"]) for place, arm in enumerate(trained)]
    seen = [(place, value * factor) for place, value in values if value is not None]
    axes.plot([x for x, _ in seen], [y for _, y in seen], color=ACCENT, linewidth=1.2, marker="o", markersize=6)
    for index, (x, y) in enumerate(seen):
        # The label keeps to the side of its dot where the line is not.
        is_rising = index + 1 < len(seen) and seen[index + 1][1] > y
        _label(axes, metric.format(y / factor), (x, y), to_the_left=is_rising)
    for place, value in values:
        if value is None:
            axes.text(place, 0, "n/a", ha="center", va="bottom", fontsize=8, color=TEXT)
    for arm in truth:
        level = arm["metrics"][metric.key]["value"]
        if level is not None:
            axes.axhline(level * factor, color=TRUTH, linewidth=1.2, linestyle=(0, (4, 3)))
            axes.text(-0.42, level * factor, arm["arm"], fontsize=8, color=TRUTH, va="bottom", ha="left")
    axes.set_xticks(range(len(trained)), [f"{arm['arm']}\n{arm['iterations']} iterations" for arm in trained])
    axes.set_xlim(-0.45, len(trained) - 0.55)
    axes.margins(y=0.22)
    axes.set_ylim(bottom=0.0)
    if metric.is_share:
        axes.set_ylim(0.0, 118.0)
        axes.set_yticks([0, 25, 50, 75, 100], ["0 %", "25 %", "50 %", "75 %", "100 %"])


def _draw_losses(axes: Axes, arms: list[dict[str, Any]]) -> None:
    trained = [arm for arm in arms if arm["loss"]]
    for place, arm in enumerate(trained):
        count = len(arm["loss"])
        x = [arm["iterations"] * (index + 0.5) / count for index in range(count)]
        color = ARM_COLORS[place % len(ARM_COLORS)]
        axes.plot(x, arm["loss"], color=color, linewidth=1.6)
        axes.plot(x[-1:], arm["loss"][-1:], color=color, marker="o", markersize=5)
        _label(axes, arm["arm"], (x[-1], arm["loss"][-1]), to_the_left=False)
    axes.set_xlabel("training iterations", fontsize=8, color=TEXT)
    axes.margins(x=0.12, y=0.15)
    axes.set_ylim(bottom=0.0)


def _label(axes: Axes, text: str, point: tuple[float, float], *, to_the_left: bool) -> None:
    offset, side = ((-4, 5), "right") if to_the_left else ((4, 5), "left")
    axes.annotate(text, point, offset, textcoords="offset points", ha=side, fontsize=8, color=TEXT)


def _save(figure: Figure, path: Path) -> Path:
    """Write the figure with text kept as text and without anything that differs from run to run."""
    # The salt keeps the ids of two figures apart when both stand in one page.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name, "font.family": "sans-serif"}):

        def fill(part: Path) -> None:
            figure.savefig(part, format="svg", transparent=True, metadata={"Date": None})
            text = part.read_text(encoding="utf-8")
            part.write_text(re.sub(r'<g id="[^"]*"', "<g", text), encoding="utf-8")

        write_aside(path, fill)
    return path


def main(argv: list[str] | None = None) -> int:
    """Draw all figures."""
    parser = argparse.ArgumentParser(prog="toyvideo.plot", description="Draw the figures of the toy study.")
    parser.add_argument("--summary", type=Path, required=True, help="summary.json")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    arguments = parser.parse_args(argv)
    summary = json.loads(arguments.summary.read_text(encoding="utf-8"))
    written = plot_all(summary, arguments.out)
    print(f"{len(written)} figures written to {arguments.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
