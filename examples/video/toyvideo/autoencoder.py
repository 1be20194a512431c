"""The toy's stand-in for a video autoencoder: principal components of procedural clips.

Run as `python -m toyvideo.autoencoder --out FILE.npz`. All arms share one, so that they differ only in training.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from toyvideo.clips import FRAMES, PROMPTS, SIZE_PX, FloatArray, draw_clips
from toyvideo.files import write_aside

LATENT_SIZE = 64
CLIPS_PER_PROMPT = 80
FIT_SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoencoder:
    """A linear map between clips and short latent vectors of unit variance."""

    mean: FloatArray
    components: FloatArray
    scale: FloatArray

    def encode(self, clips: FloatArray) -> FloatArray:
        """Return the latents (count, size) of clips (count, frames, height, width, 3)."""
        flat = clips.reshape(len(clips), -1) - self.mean
        return np.asarray(flat @ self.components.T / self.scale, dtype=np.float32)

    def decode(self, latents: FloatArray) -> FloatArray:
        """Return the clips that `latents` stand for; values may leave 0..1 a little."""
        flat = (latents * self.scale) @ self.components + self.mean
        return np.asarray(flat, dtype=np.float32).reshape(len(latents), FRAMES, SIZE_PX, SIZE_PX, 3)


def fit_autoencoder(clips: FloatArray, size: int = LATENT_SIZE) -> tuple[Autoencoder, FloatArray]:
    """Fit to `clips`; return the autoencoder and the latents of those clips."""
    flat = clips.reshape(len(clips), -1)
    mean = flat.mean(axis=0)
    centered = flat - mean
    # There are fewer clips than pixels, so the eigenvectors of the small Gram matrix are the cheap way.
    values, vectors = np.linalg.eigh((centered @ centered.T).astype(np.float64))
    values, vectors = values[::-1][:size], vectors[:, ::-1][:, :size]
    components = (vectors / np.sqrt(values)).T.astype(np.float32) @ centered
    # The sign of an eigenvector is arbitrary; without a rule it may differ between linear algebra libraries.
    largest = np.abs(components).argmax(axis=1)
    components *= np.sign(components[np.arange(size), largest])[:, None]
    scale = np.sqrt(values / len(clips)).astype(np.float32)
    autoencoder = Autoencoder(mean=mean, components=components, scale=scale)
    return autoencoder, autoencoder.encode(clips)


def save_autoencoder(path: Path, autoencoder: Autoencoder, latents: FloatArray) -> None:
    """Write the autoencoder and the training latents, in the order that `draw_clips` gives."""

    def fill(part: Path) -> None:
        with part.open("wb") as file:
            np.savez(
                file,
                mean=autoencoder.mean,
                components=autoencoder.components,
                scale=autoencoder.scale,
                latents=latents,
            )

    write_aside(path, fill)


def load_autoencoder(path: Path) -> tuple[Autoencoder, FloatArray]:
    """Read what `save_autoencoder` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        autoencoder = Autoencoder(mean=stored["mean"], components=stored["components"], scale=stored["scale"])
        return autoencoder, stored["latents"]


def fit_drawn(per_prompt: int = CLIPS_PER_PROMPT) -> tuple[Autoencoder, FloatArray]:
    """Fit to the study's own training clips."""
    clips, _ = draw_clips(per_prompt, FIT_SEED)
    return fit_autoencoder(clips)


def main(argv: list[str] | None = None) -> int:
    """Fit the autoencoder and write it."""
    parser = argparse.ArgumentParser(prog="toyvideo.autoencoder", description="Fit the toy's clip autoencoder.")
    parser.add_argument("--out", type=Path, required=True, help="the .npz file to write")
    parser.add_argument(
        "--per-prompt", type=int, default=CLIPS_PER_PROMPT, help="training clips for each prompt (default %(default)s)"
    )
    arguments = parser.parse_args(argv)
    if arguments.per_prompt * len(PROMPTS) <= LATENT_SIZE:
        parser.error(f"--per-prompt must give more than {LATENT_SIZE} clips over {len(PROMPTS)} prompts")
    autoencoder, latents = fit_drawn(arguments.per_prompt)
    save_autoencoder(arguments.out, autoencoder, latents)
    print(f"autoencoder: {len(latents)} clips, {latents.shape[1]} numbers each, wrote {arguments.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
