"""Draws the ground truth: short clips of one colored disc that moves in one direction.

The same seed always gives the same clips, and every clip can be judged from its pixels alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FRAMES = 16
SIZE_PX = 32
SPEED_PX_PER_FRAME = 0.9
BACKGROUND = 0.10

COLORS: dict[str, tuple[float, float, float]] = {
    "red": (0.90, 0.18, 0.16),
    "green": (0.16, 0.74, 0.32),
    "blue": (0.20, 0.42, 0.95),
}
# Image rows grow downwards, so "up" is a negative step in y.
DIRECTIONS: dict[str, tuple[float, float]] = {
    "left": (-1.0, 0.0),
    "right": (1.0, 0.0),
    "up": (0.0, -1.0),
    "down": (0.0, 1.0),
}

# Single precision everywhere in the study; the tests check gradients in double.
FloatArray = npt.NDArray[np.floating[Any]]
ByteArray = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a clip should show."""

    color: str
    direction: str

    @property
    def text(self) -> str:
        """The prompt as a person would type it."""
        return f"a {self.color} disc moving {self.direction}"

    @property
    def slug(self) -> str:
        """The prompt as part of a file or task name."""
        return f"{self.color}-{self.direction}"


PROMPTS: tuple[Prompt, ...] = tuple(
    Prompt(color=color, direction=direction) for color in COLORS for direction in DIRECTIONS
)


def parse_prompt(text: str) -> Prompt:
    """Return the prompt that `text` spells; the toy knows twelve sentences and no others."""
    for prompt in PROMPTS:
        if prompt.text == text:
            return prompt
    known = "; ".join(prompt.text for prompt in PROMPTS)
    raise ValueError(f"the toy does not know the prompt {text!r}; it knows: {known}")


def draw_clip(prompt: Prompt, rng: np.random.Generator) -> FloatArray:
    """Draw one clip (frames, height, width, 3) in 0..1; place, speed, radius and brightness vary a little."""
    speed = SPEED_PX_PER_FRAME * rng.uniform(0.95, 1.05)
    radius = rng.uniform(4.0, 5.0)
    middle = (SIZE_PX - 1) / 2 + rng.uniform(-1.5, 1.5, size=2)
    color = np.array(COLORS[prompt.color]) * rng.uniform(0.92, 1.0)

    time = np.arange(FRAMES) - (FRAMES - 1) / 2
    step = np.array(DIRECTIONS[prompt.direction])
    center = middle[None, :] + speed * time[:, None] * step[None, :]
    grid = np.arange(SIZE_PX)
    dx = grid[None, None, :] - center[:, 0, None, None]
    dy = grid[None, :, None] - center[:, 1, None, None]
    # A one pixel ramp at the rim: a hard edge would make the position jump by whole pixels.
    cover = np.clip(radius + 0.5 - np.hypot(dx, dy), 0.0, 1.0)[..., None]
    return np.asarray(BACKGROUND + cover * (color - BACKGROUND), dtype=np.float32)


def draw_clips(count_per_prompt: int, seed: int) -> tuple[FloatArray, list[Prompt]]:
    """Draw `count_per_prompt` clips of every prompt, in the order of `PROMPTS`."""
    rng = np.random.default_rng(seed)
    prompts = [prompt for prompt in PROMPTS for _ in range(count_per_prompt)]
    return np.stack([draw_clip(prompt, rng) for prompt in prompts]), prompts


def to_bytes(clip: FloatArray) -> ByteArray:
    """Round a clip in 0..1 to 8 bits; values outside are clipped, NaN becomes black."""
    return np.asarray(np.rint(np.clip(np.nan_to_num(clip), 0.0, 1.0) * 255.0), dtype=np.uint8)
