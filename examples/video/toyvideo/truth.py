"""Writes held-out true clips through the same codec; run as `python -m toyvideo.truth --out DIR`.

Scored like an arm, they show what the scores of a perfect model would be.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from toyvideo import TOY_LABEL
from toyvideo.clips import draw_clips, to_bytes
from toyvideo.video import write_clip

TRUTH_SEED = 30_011


def main(argv: list[str] | None = None) -> int:
    """Draw and write the clips."""
    parser = argparse.ArgumentParser(prog="toyvideo.truth", description="Write held-out true clips.")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--per-prompt", type=int, default=2, help="clips for each prompt (default 2)")
    arguments = parser.parse_args(argv)
    clips, prompts = draw_clips(arguments.per_prompt, TRUTH_SEED)
    for index, (clip, prompt) in enumerate(zip(clips, prompts, strict=True)):
        number = index % arguments.per_prompt
        what = f"drawn, not generated; {TOY_LABEL}"
        facts = {"prompt": prompt.text, "seed": str(number), "arm": "truth", "what": what}
        write_clip(arguments.out / f"{prompt.slug}-{number}.mp4", to_bytes(clip), facts)
    print(f"truth: wrote {len(clips)} clips to {arguments.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
