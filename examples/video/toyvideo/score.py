"""Scores the clips of one arm; run as `python -m toyvideo.score --arm NAME --clips DIR --out FILE.json`.

The prompt comes from the clip file itself, everything else from its pixels. A clip that cannot be read counts too.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from toyvideo.clips import FloatArray, draw_clips, parse_prompt
from toyvideo.files import write_json
from toyvideo.frechet import Features, fit_features, frechet_distance
from toyvideo.measure import measure_clip
from toyvideo.provenance import collect_provenance
from toyvideo.video import VideoError, read_clip

SCHEMA = "toyvideo-score/1"
HELD_OUT_PER_PROMPT = 20
HELD_OUT_SEED = 20_011

ClipRow = dict[str, Any]


def score_file(path: Path) -> tuple[ClipRow, FloatArray | None]:
    """Measure one file; return its row, and its pixels if it could be read."""
    try:
        stored = read_clip(path)
        prompt = parse_prompt(stored.facts.get("prompt", ""))
    except (VideoError, ValueError) as error:
        return {"file": path.name, "readable": False, "reasons": {"readable": str(error)}}, None
    row: ClipRow = {"file": path.name, "readable": True, "prompt": prompt.text, "seed": stored.facts.get("seed")}
    row.update(asdict(measure_clip(stored.frames, prompt)))
    return row, stored.frames.astype(np.float32) / np.float32(255.0)


def held_out_features() -> Features:
    """Return the features of clips that no model was trained on."""
    clips, _ = draw_clips(HELD_OUT_PER_PROMPT, HELD_OUT_SEED)
    return fit_features(clips)


def score_arm(arm: str, paths: list[Path], features: Features) -> dict[str, Any]:
    """Score all clips of one arm."""
    scored = [score_file(path) for path in paths]
    pixels = [clip for _, clip in scored if clip is not None]
    stacked = np.stack(pixels) if pixels else np.zeros((0, 2, 4, 4, 3), dtype=np.float32)
    distance, reason = frechet_distance(features, stacked)
    return {
        "schema": SCHEMA,
        "arm": arm,
        "clips": [row for row, _ in scored],
        "frechet": {"value": None if distance is None else round(distance, 4), "reason": reason, "clips": len(pixels)},
        "provenance": collect_provenance(),
    }


def main(argv: list[str] | None = None) -> int:
    """Score one arm and write the result."""
    parser = argparse.ArgumentParser(prog="toyvideo.score", description="Score one arm of the toy study.")
    parser.add_argument("--arm", required=True, help="the arm's name")
    parser.add_argument("--clips", type=Path, required=True, help="the folder with the arm's .mp4 files")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--expect", type=int, help="fail unless there are exactly this many clips")
    arguments = parser.parse_args(argv)
    paths = sorted(arguments.clips.glob("[!.]*.mp4"))
    if not paths or (arguments.expect is not None and len(paths) != arguments.expect):
        wanted = "at least 1" if arguments.expect is None else arguments.expect
        print(f"{arguments.clips}: {len(paths)} clips, expected {wanted}", file=sys.stderr)
        return 1
    result = score_arm(arguments.arm, paths, held_out_features())
    write_json(arguments.out, result)
    distance = result["frechet"]["value"]
    print(f"{arguments.arm}: scored {len(paths)} clips, Frechet distance {distance}, wrote {arguments.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
