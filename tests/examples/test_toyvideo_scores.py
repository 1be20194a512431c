"""The toy's scores: near perfect for true clips, bad for wrong ones, null with a reason where nothing can be said."""

import json

import numpy as np
import pytest

from toyvideo import score
from toyvideo.clips import FRAMES, PROMPTS, SIZE_PX, draw_clip, draw_clips, to_bytes
from toyvideo.files import write_json
from toyvideo.frechet import fit_features, frechet_distance
from toyvideo.measure import measure_clip
from toyvideo.metrics import METRICS, summarize_arm
from toyvideo.video import write_clip


def true_clip(prompt, seed=8):
    return to_bytes(draw_clip(prompt, np.random.default_rng(seed)))


def measured(frames, prompt):
    return measure_clip(frames, prompt)


def distance_of(features, clips):
    value, reason = frechet_distance(features, clips)
    assert reason is None
    return value


def flat_clip(level):
    return np.full((FRAMES, SIZE_PX, SIZE_PX, 3), level, dtype=np.uint8)


@pytest.fixture(scope="module")
def features():
    return fit_features(draw_clips(6, 1234)[0])


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.slug)
def test_a_true_clip_scores_as_true(prompt):
    result = measured(true_clip(prompt), prompt)

    assert (result.color, result.direction) == (prompt.color, prompt.direction)
    assert result.color_ok is True
    assert result.direction_ok is True
    assert result.speed_error < 0.07
    assert result.flicker < 0.01
    assert result.sharpness > 0.75
    assert (result.black_frames, result.frozen_frames, result.reasons) == (0, 0, {})


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.slug)
def test_a_true_clip_of_another_prompt_scores_as_wrong(prompt):
    for other in PROMPTS:
        result = measured(true_clip(other), prompt)

        assert result.color_ok is (other.color == prompt.color)
        assert result.direction_ok is (other.direction == prompt.direction)


def test_a_black_clip_has_reasons_instead_of_scores():
    result = measured(flat_clip(0), PROMPTS[0])

    assert (result.black_frames, result.frozen_frames) == (FRAMES, FRAMES - 1)
    assert result.color_ok is None
    assert result.direction_ok is None
    assert result.speed_error is None
    assert result.reasons["speed_error"] == "a colored disc is visible in 0 of 16 frames"


def test_a_grey_clip_is_frozen_but_not_black():
    result = measured(flat_clip(26), PROMPTS[0])

    assert (result.black_frames, result.frozen_frames) == (0, FRAMES - 1)
    assert result.color_ok is None


def test_a_frozen_clip_has_a_color_but_no_direction():
    frames = np.repeat(true_clip(PROMPTS[0])[:1], FRAMES, axis=0)

    result = measured(frames, PROMPTS[0])

    assert result.frozen_frames == FRAMES - 1
    assert result.color_ok is True
    assert result.direction_ok is None
    assert "hardly moves" in result.reasons["direction_ok"]
    assert result.speed_error == pytest.approx(1.0, abs=0.01)


def test_some_black_frames_are_counted_and_the_rest_is_measured():
    frames = true_clip(PROMPTS[0])
    frames[3:5] = 0

    result = measured(frames, PROMPTS[0])

    assert result.black_frames == 2
    assert result.direction_ok is True
    assert result.flicker > 0.1


def test_a_blurred_clip_is_less_sharp_and_a_blinking_one_flickers_more():
    frames = true_clip(PROMPTS[0])
    blurred = frames.astype(float)
    for _ in range(4):
        blurred = (
            np.roll(blurred, 1, 1) + np.roll(blurred, -1, 1) + np.roll(blurred, 1, 2) + np.roll(blurred, -1, 2)
        ) / 4
    blinking = frames.copy()
    blinking[::2] = (blinking[::2] * 0.7).astype(np.uint8)
    plain = measured(frames, PROMPTS[0])

    assert measured(blurred.astype(np.uint8), PROMPTS[0]).sharpness < 0.7 * plain.sharpness
    assert measured(blinking, PROMPTS[0]).flicker > 10 * plain.flicker


def test_the_frechet_distance_grows_with_the_damage(features):
    clips, _ = draw_clips(2, 77)
    rng = np.random.default_rng(1)
    distances = [
        distance_of(features, np.clip(clips + rng.normal(0, 1, clips[:, :1, :1, :1, :1].shape) * level, 0, 1))
        for level in (0.0, 0.05, 0.2)
    ]

    assert distances[0] < 0.5
    assert distances == sorted(distances)
    assert distance_of(features, clips[:4]) > distances[0]


@pytest.mark.parametrize("count", (0, 1))
def test_the_frechet_distance_of_too_few_clips_is_null_with_a_reason(features, count):
    value, reason = frechet_distance(features, draw_clips(1, 77)[0][:count])

    assert value is None
    assert reason == f"needs at least 2 readable clips, there are {count}"


def test_the_frechet_distance_never_is_nan(features):
    clips, _ = draw_clips(1, 77)
    clips[0, 0, 0, 0, 0] = np.nan

    assert frechet_distance(features, clips) == (None, "some pixels are not finite numbers")


def test_values_that_are_no_numbers_become_black_pixels():
    clip = np.full((2, 4, 4, 3), np.nan, dtype=np.float32)
    clip[0] = np.inf

    frames = to_bytes(clip)

    assert frames[0].min() == 255
    assert frames[1].max() == 0


@pytest.fixture
def arm(tmp_path, features):
    """Four true clips, one of another color than its prompt, one black, and one damaged."""
    folder = tmp_path / "clips"
    for index, prompt in enumerate(PROMPTS[:4]):
        write_clip(folder / f"{index}.mp4", true_clip(prompt), {"prompt": prompt.text, "seed": "0"})
    write_clip(folder / "4.mp4", true_clip(PROMPTS[4]), {"prompt": PROMPTS[0].text, "seed": "0"})
    write_clip(folder / "5.mp4", flat_clip(0), {"prompt": PROMPTS[0].text, "seed": "0"})
    (folder / "6.mp4").write_bytes(b"damaged")
    # A leftover of a killed attempt is no clip.
    (folder / ".7.mp4.123.part").write_bytes(b"half")
    return folder


def test_an_arm_with_damage_is_summarized_over_all_its_clips(arm, features, tmp_path):
    result = score.score_arm("mixed", sorted(arm.glob("[!.]*.mp4")), features)
    figures = summarize_arm(result)

    assert figures["as_prompted"] == {"value": round(4 / 7, 4), "reason": None, "measured": 7, "of": 7}
    assert figures["black_or_frozen"]["value"] == round(2 / 7, 4)
    assert (figures["speed_error"]["measured"], figures["speed_error"]["of"]) == (5, 7)
    assert figures["frechet"]["measured"] == 6
    assert "not a readable clip" in result["clips"][6]["reasons"]["readable"]
    write_json(tmp_path / "score.json", result)
    assert json.loads((tmp_path / "score.json").read_text())["arm"] == "mixed"


def test_an_arm_without_a_readable_clip_has_reasons_everywhere(tmp_path, features):
    (tmp_path / "0.mp4").write_bytes(b"")

    figures = summarize_arm(score.score_arm("none", [tmp_path / "0.mp4"], features))

    assert figures["as_prompted"]["value"] == 0.0
    for key in ("speed_error", "flicker", "sharpness", "frechet"):
        assert figures[key]["value"] is None
        assert figures[key]["reason"]
    assert [metric.format(figures[metric.key]["value"]) for metric in METRICS].count("n/a") == 4


def test_the_command_refuses_a_wrong_number_of_clips(arm, tmp_path, capsys):
    out = tmp_path / "score.json"

    code = score.main(["--arm", "mixed", "--clips", str(arm), "--out", str(out), "--expect", "24"])

    assert code == 1
    assert "7 clips, expected 24" in capsys.readouterr().err
    assert not out.exists()


def test_json_with_nan_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "bad.json", {"value": float("nan")})

    assert list(tmp_path.iterdir()) == []
