"""Measures one clip from its pixels: color, direction, speed, flicker, sharpness, black and frozen frames.

What cannot be measured is None, with the reason under the same name; no measurement is ever NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from toyvideo.clips import BACKGROUND, COLORS, DIRECTIONS, SPEED_PX_PER_FRAME, ByteArray, Prompt

# The disc is known by its saturation: the background is grey, and a codec adds less color than this.
SATURATION_FLOOR = 0.12
# A true disc covers 50 pixels and more; the middle of a speck says nothing about motion.
DISC_FLOOR_PX = 8
VISIBLE_FLOOR_FRAMES = 8
# Below this a clip stands still, and the direction of its rest would be noise.
SPEED_FLOOR_PX_PER_FRAME = 0.15
# A true clip changes by about 0.006 a frame, and its background alone is far brighter than black.
FROZEN_CHANGE = 0.0015
BLACK_LEVEL = 0.03

DoubleArray = npt.NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class Measurement:
    """All that one clip's pixels tell."""

    frames: int
    black_frames: int
    frozen_frames: int
    color: str | None = None
    direction: str | None = None
    speed_px_per_frame: float | None = None
    color_ok: bool | None = None
    direction_ok: bool | None = None
    speed_error: float | None = None
    flicker: float | None = None
    sharpness: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)


def measure_clip(frames: ByteArray, prompt: Prompt) -> Measurement:
    """Measure a clip (frames, height, width, 3) against its prompt."""
    clip = frames.astype(np.float64) / 255.0
    saturation = np.clip(clip.max(axis=-1) - clip.min(axis=-1) - SATURATION_FLOOR, 0.0, None)
    visible = (saturation > 0.0).sum(axis=(1, 2)) >= DISC_FLOOR_PX
    result = Measurement(
        frames=len(clip),
        black_frames=int((np.quantile(clip.max(axis=-1), 0.99, axis=(1, 2)) < BLACK_LEVEL).sum()),
        frozen_frames=int((np.abs(np.diff(clip, axis=0)).mean(axis=(1, 2, 3)) < FROZEN_CHANGE).sum()),
    )
    if visible.sum() < VISIBLE_FLOOR_FRAMES:
        reason = f"a colored disc is visible in {int(visible.sum())} of {len(clip)} frames"
        for name in ("color_ok", "direction_ok", "speed_error", "flicker", "sharpness"):
            result.reasons[name] = reason
        return result
    _measure_color(result, clip[visible], saturation[visible], prompt)
    _measure_motion(result, saturation, visible, prompt)
    _measure_flicker(result, saturation)
    result.sharpness = _rim_sharpness(clip[visible])
    return result


def _measure_color(result: Measurement, clip: DoubleArray, saturation: DoubleArray, prompt: Prompt) -> None:
    mean = (clip * saturation[..., None]).sum(axis=(0, 1, 2)) / saturation.sum()
    # Compared by direction from the background, so that a dim disc still has its color.
    offset = mean - BACKGROUND
    likeness = {
        name: float(offset @ (np.array(color) - BACKGROUND) / np.linalg.norm(np.array(color) - BACKGROUND))
        for name, color in COLORS.items()
    }
    result.color = max(likeness, key=lambda name: likeness[name])
    result.color_ok = result.color == prompt.color


def _measure_motion(
    result: Measurement, saturation: DoubleArray, visible: npt.NDArray[np.bool_], prompt: Prompt
) -> None:
    seen = saturation[visible]
    mass = seen.sum(axis=(1, 2))
    x = (seen.sum(axis=1) @ np.arange(seen.shape[2])) / mass
    y = (seen.sum(axis=2) @ np.arange(seen.shape[1])) / mass
    time = np.flatnonzero(visible).astype(np.float64)
    time -= time.mean()
    velocity = np.array([time @ x, time @ y]) / (time @ time)
    speed = float(np.hypot(*velocity))
    result.speed_px_per_frame = round(speed, 4)
    result.speed_error = round(abs(speed - SPEED_PX_PER_FRAME) / SPEED_PX_PER_FRAME, 4)
    if speed < SPEED_FLOOR_PX_PER_FRAME:
        result.reasons["direction_ok"] = f"the disc hardly moves ({speed:.2f} px per frame)"
        return
    result.direction = max(DIRECTIONS, key=lambda name: float(velocity @ np.array(DIRECTIONS[name])))
    result.direction_ok = result.direction == prompt.direction


def _measure_flicker(result: Measurement, saturation: DoubleArray) -> None:
    """How much the disc's total color changes from frame to frame; a true disc only moves."""
    mass = saturation.sum(axis=(1, 2))
    result.flicker = round(float(np.abs(np.diff(mass)).mean() / mass.mean()), 5)


def _rim_sharpness(clip: DoubleArray) -> float:
    """The steepest step between neighbouring pixels, as a share of the frame's full contrast."""
    grey = clip.max(axis=-1)
    across = np.abs(np.diff(grey, axis=2)).max(axis=(1, 2))
    down = np.abs(np.diff(grey, axis=1)).max(axis=(1, 2))
    contrast = grey.max(axis=(1, 2)) - np.median(grey, axis=(1, 2))
    # Visible frames have a disc, so the contrast is never zero; the floor guards against a full-frame disc.
    return round(float(np.median(np.maximum(across, down) / np.maximum(contrast, 0.05))), 4)
