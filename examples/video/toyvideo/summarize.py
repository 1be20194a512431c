"""Folds the arms' scores into CSV, JSON and a contact sheet; run as `python -m toyvideo.summarize`."""

from __future__ import annotations

import argparse
import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from toyvideo import TOY_LABEL
from toyvideo.clips import FRAMES, PROMPTS, SIZE_PX, ByteArray
from toyvideo.files import write_aside, write_json, write_text
from toyvideo.metrics import METRICS, summarize_arm
from toyvideo.model import load_checkpoint
from toyvideo.provenance import collect_provenance
from toyvideo.video import VideoError, read_clip

SCHEMA = "toyvideo-summary/1"
SHEET_FRAMES = (0, 5, 10, 15)
SHEET_ZOOM = 2
_PAPER = 255


def build_summary(scores: list[dict[str, Any]], checkpoints: list[Path]) -> dict[str, Any]:
    """Join scores and training records, in the order of `scores`."""
    records = {record.arm: record for record in (load_checkpoint(path).record for path in checkpoints)}
    arms = []
    for score in scores:
        record = records.get(score["arm"])
        arms.append(
            {
                "arm": score["arm"],
                "iterations": record.iterations if record else None,
                "loss": record.loss if record else [],
                "metrics": summarize_arm(score),
                "clips": score["clips"],
            }
        )
    return {
        "schema": SCHEMA,
        "what": TOY_LABEL,
        "prompts": [prompt.text for prompt in PROMPTS],
        "arms": arms,
        "provenance": collect_provenance(),
    }


def summary_csv(summary: dict[str, Any]) -> str:
    """Return one line for each arm and metric; an empty value has its reason beside it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["arm", "iterations", "metric", "value", "clips_measured", "clips", "reason"])
    for arm in summary["arms"]:
        for metric in METRICS:
            figure = arm["metrics"][metric.key]
            row = [arm["arm"], arm["iterations"], metric.key, figure["value"], figure["measured"], figure["of"]]
            writer.writerow(["" if cell is None else cell for cell in [*row, figure["reason"]]])
    return text.getvalue()


def contact_strip(path: Path) -> ByteArray | None:
    """Return some frames of a clip side by side, or None when it is not there or not readable."""
    if not path.exists():
        return None
    try:
        frames = read_clip(path).frames
    except VideoError:
        return None
    chosen = [frames[min(index, len(frames) - 1)] for index in SHEET_FRAMES]
    framed = [np.pad(frame, ((1, 1), (1, 1), (0, 0)), constant_values=_PAPER) for frame in chosen]
    strip = np.concatenate(framed, axis=1)
    return np.asarray(strip.repeat(SHEET_ZOOM, axis=0).repeat(SHEET_ZOOM, axis=1))


def write_contact_sheet(path: Path, clips: Path, arms: list[str]) -> None:
    """Write a PNG with one row for each prompt and one strip of frames for each arm."""
    # Imported here because the fold above needs no plotting library.
    from matplotlib.figure import Figure

    height, width = (SIZE_PX + 2) * SHEET_ZOOM, (SIZE_PX + 2) * SHEET_ZOOM * len(SHEET_FRAMES)
    label_px, head_px, gap_px = 190, 46, 16
    total_w, total_h = label_px + len(arms) * (width + gap_px), head_px + len(PROMPTS) * (height + 4) + 8
    canvas = np.full((total_h, total_w, 3), _PAPER, dtype=np.uint8)
    missing: list[tuple[int, int]] = []
    for row, prompt in enumerate(PROMPTS):
        for column, arm in enumerate(arms):
            top, left = head_px + row * (height + 4), label_px + column * (width + gap_px)
            strip = contact_strip(clips / arm / f"{prompt.slug}-0.mp4")
            if strip is None:
                missing.append((left + width // 2, top + height // 2))
            else:
                canvas[top : top + height, left : left + width] = strip
    figure = Figure(figsize=(total_w / 100, total_h / 100), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(canvas, interpolation="nearest", aspect="auto")
    axes.set_axis_off()
    for row, prompt in enumerate(PROMPTS):
        axes.text(8, head_px + row * (height + 4) + height / 2, prompt.text, va="center", fontsize=8.5)
    for column, arm in enumerate(arms):
        axes.text(label_px + column * (width + gap_px) + 2, 24, arm, va="center", fontsize=11, weight="bold")
    numbers = ", ".join(str(index + 1) for index in SHEET_FRAMES)
    axes.text(8, 24, f"frames {numbers} of {FRAMES}", va="center", fontsize=8, color="#555555")
    for x, y in missing:
        axes.text(x, y, "no readable clip", ha="center", va="center", fontsize=8, color="#b00020")

    def fill(part: Path) -> None:
        figure.savefig(part, format="png", metadata={"Description": TOY_LABEL})

    write_aside(path, fill)


def main(argv: list[str] | None = None) -> int:
    """Write summary.json, summary.csv and contact-sheet.png."""
    parser = argparse.ArgumentParser(prog="toyvideo.summarize", description="Summarize the toy study by arm.")
    parser.add_argument("--scores", type=Path, nargs="+", required=True, help="score files, in the order to show")
    parser.add_argument("--checkpoints", type=Path, nargs="*", default=[], help="checkpoints of the arms")
    parser.add_argument("--clips", type=Path, required=True, help="the folder with one folder of clips for each arm")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    arguments = parser.parse_args(argv)
    scores = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.scores]
    summary = build_summary(scores, arguments.checkpoints)
    arms = [arm["arm"] for arm in summary["arms"]]
    write_contact_sheet(arguments.out / "contact-sheet.png", arguments.clips, arms)
    write_text(arguments.out / "summary.csv", summary_csv(summary))
    write_json(arguments.out / "summary.json", summary)
    print(f"summary of {len(arms)} arms written to {arguments.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
