"""Generates clips as a resident function: `setup` loads a checkpoint once, `generate` then makes one clip per task."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toyvideo import TOY_LABEL
from toyvideo.clips import parse_prompt, to_bytes
from toyvideo.model import Model, load_checkpoint, sample_clip
from toyvideo.provenance import collect_provenance
from toyvideo.video import psnr_db, write_clip


@dataclass(slots=True, kw_only=True)
class Resident:
    """A loaded checkpoint, and how often it has served."""

    model: Model
    checkpoint: str
    load_s: float
    served: int = 0


def setup(*, checkpoint: str) -> Resident:
    """Load `checkpoint`; the worker calls this once per slot."""
    began_s = time.monotonic()
    model = load_checkpoint(Path(checkpoint))
    return Resident(model=model, checkpoint=checkpoint, load_s=time.monotonic() - began_s)


def generate(
    state: Resident, *, prompt: str, seed: int, out: str, guidance: float = 1.5, steps: int = 24
) -> dict[str, Any]:
    """Generate one clip and write it to `out`; return what happened, for the receipt."""
    began_s = time.monotonic()
    wanted = parse_prompt(prompt)
    clip = sample_clip(state.model, wanted, seed=seed, guidance=guidance, steps=steps)
    frames = to_bytes(clip)
    facts = {
        "prompt": prompt,
        "seed": str(seed),
        "arm": state.model.record.arm,
        "iterations": str(state.model.record.iterations),
        "what": f"generated; {TOY_LABEL}",
    }
    decoded = write_clip(Path(out), frames, facts)
    state.served += 1
    return {
        "arm": state.model.record.arm,
        "frames": len(frames),
        "bytes": Path(out).stat().st_size,
        "psnr_decode_db": psnr_db(frames, decoded),
        "nonfinite_values": int(np.size(clip) - np.isfinite(clip).sum()),
        "generate_s": round(time.monotonic() - began_s, 4),
        # One process id with growing counts shows that the checkpoint was loaded once for many clips.
        "resident": {"pid": os.getpid(), "served": state.served, "load_s": round(state.load_s, 4)},
        "provenance": collect_provenance(),
    }
