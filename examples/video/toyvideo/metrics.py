"""Names what the study reports for each arm, and folds the rows of its clips into those figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One column of the table."""

    key: str
    label: str
    better: Literal["higher", "lower", "truth"]
    digits: int
    is_share: bool
    meaning: str

    def format(self, value: float | None) -> str:
        """Return `value` as people read it."""
        if value is None:
            return "n/a"
        return f"{100 * value:.0f} %" if self.is_share else f"{value:.{self.digits}f}"


METRICS: tuple[Metric, ...] = (
    Metric(
        key="as_prompted",
        label="as prompted",
        better="higher",
        digits=2,
        is_share=True,
        meaning="share of all clips with the right color and the right direction; "
        "a clip that shows no disc counts as wrong",
    ),
    Metric(
        key="color_right",
        label="color right",
        better="higher",
        digits=2,
        is_share=True,
        meaning="share of all clips whose disc has the color of the prompt",
    ),
    Metric(
        key="direction_right",
        label="direction right",
        better="higher",
        digits=2,
        is_share=True,
        meaning="share of all clips whose disc moves the way the prompt says, within 45 degrees",
    ),
    Metric(
        key="speed_error",
        label="speed error",
        better="lower",
        digits=3,
        is_share=False,
        meaning="how far the speed is from the true mean speed, as a share of it; "
        "mean over the clips with a visible disc",
    ),
    Metric(
        key="flicker",
        label="flicker",
        better="lower",
        digits=3,
        is_share=False,
        meaning="mean change of the disc's total color from frame to frame, as a share of it",
    ),
    Metric(
        key="sharpness",
        label="sharpness",
        better="truth",
        digits=3,
        is_share=False,
        meaning="steepest step between neighbouring pixels as a share of the contrast; best when near the truth",
    ),
    Metric(
        key="black_or_frozen",
        label="black or frozen",
        better="lower",
        digits=2,
        is_share=True,
        meaning="share of all clips with a black frame or with two equal frames in a row, or unreadable",
    ),
    Metric(
        key="frechet",
        label="Fréchet distance",
        better="lower",
        digits=2,
        is_share=False,
        meaning="distance to held-out clips over 12 principal components of pooled pixels; "
        "so few clips give some distance even when they are true",
    ),
)


def summarize_arm(score: dict[str, Any]) -> dict[str, Row]:
    """Return the figures of one arm: value, reason when there is none, and over how many clips."""
    clips: list[Row] = score["clips"]
    return {
        "as_prompted": _share(clips, [c.get("color_ok") is True and c.get("direction_ok") is True for c in clips]),
        "color_right": _share(clips, [c.get("color_ok") is True for c in clips]),
        "direction_right": _share(clips, [c.get("direction_ok") is True for c in clips]),
        "speed_error": _mean(clips, "speed_error"),
        "flicker": _mean(clips, "flicker"),
        "sharpness": _mean(clips, "sharpness"),
        "black_or_frozen": _share(clips, [_is_black_or_frozen(c) for c in clips]),
        "frechet": {
            "value": score["frechet"]["value"],
            "reason": score["frechet"]["reason"],
            "measured": score["frechet"]["clips"],
            "of": len(clips),
        },
    }


def _is_black_or_frozen(clip: Row) -> bool:
    return not clip["readable"] or clip["black_frames"] > 0 or clip["frozen_frames"] > 0


def _share(clips: list[Row], hits: list[bool]) -> Row:
    if not clips:
        return {"value": None, "reason": "there are no clips", "measured": 0, "of": 0}
    return {"value": round(sum(hits) / len(clips), 4), "reason": None, "measured": len(clips), "of": len(clips)}


def _mean(clips: list[Row], key: str) -> Row:
    values = [clip[key] for clip in clips if clip.get(key) is not None]
    if not values:
        reasons = sorted({clip["reasons"].get(key, "not readable") for clip in clips}) or ["there are no clips"]
        return {"value": None, "reason": "; ".join(reasons), "measured": 0, "of": len(clips)}
    return {"value": round(sum(values) / len(values), 5), "reason": None, "measured": len(values), "of": len(clips)}
