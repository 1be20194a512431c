"""The toy's model: right gradients, learning, whole checkpoints, and clips that repeat with their seed."""

import json

import numpy as np
import pytest

from toyvideo.autoencoder import fit_autoencoder, load_autoencoder, save_autoencoder
from toyvideo.clips import FRAMES, PROMPTS, SIZE_PX, FloatArray, draw_clips
from toyvideo.generate import generate, setup
from toyvideo.measure import measure_clip
from toyvideo.model import (
    init_weights,
    load_checkpoint,
    loss_and_gradients,
    network_input,
    sample_clip,
    save_checkpoint,
)
from toyvideo.train import train_model
from toyvideo.video import read_clip


@pytest.fixture(scope="module")
def fitted():
    # A few clips are enough to learn from, and quick to fit.
    return fit_autoencoder(draw_clips(10, seed=1)[0], size=24)


@pytest.fixture(scope="module")
def model(fitted):
    return train_model(*fitted, arm="tried", iterations=400)


@pytest.fixture(scope="module")
def checkpoint(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "checkpoint.npz"
    save_checkpoint(path, model)
    return path


def test_the_autoencoder_keeps_most_of_a_clip_it_never_saw(fitted):
    held_out, _ = draw_clips(1, seed=99)
    autoencoder, _ = fitted

    restored = autoencoder.decode(autoencoder.encode(held_out))

    assert np.mean((restored - held_out) ** 2) < 0.1 * held_out.var()


def test_the_autoencoder_survives_its_file(fitted, tmp_path):
    autoencoder, latents = fitted
    save_autoencoder(tmp_path / "autoencoder.npz", autoencoder, latents)

    loaded, loaded_latents = load_autoencoder(tmp_path / "autoencoder.npz")

    assert np.array_equal(loaded_latents, latents)
    assert np.array_equal(loaded.components, autoencoder.components)


def test_the_gradients_agree_with_differences():
    rng = np.random.default_rng(2)
    weights: dict[str, FloatArray] = {name: value.astype(np.float64) for name, value in init_weights(5, rng).items()}
    weights["w2"] = rng.normal(0, 0.1, weights["w2"].shape)
    latents, time = rng.normal(0, 1, (3, 5)).astype(np.float32), np.array([0.1, 0.5, 0.9], dtype=np.float32)
    rows = network_input(latents, time, np.eye(3, 7, dtype=np.float32)).astype(np.float64)
    target = rng.normal(0, 1, (3, 5))
    _, gradients = loss_and_gradients(weights, rows, target)

    for name, gradient in gradients.items():
        place = tuple(rng.integers(size) for size in gradient.shape)
        moved: list[float] = []
        for step in (1e-5, -1e-5):
            changed = {key: value.copy() for key, value in weights.items()}
            changed[name][place] += step
            moved.append(loss_and_gradients(changed, rows, target)[0])
        assert gradient[place] == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-3, abs=1e-8)


def test_training_lowers_the_loss_and_repeats_itself(fitted, model):
    again = train_model(*fitted, arm="tried", iterations=400)

    assert model.record.loss[-1] < 0.8 * model.record.loss[0]
    assert again.record.loss == model.record.loss
    assert all(np.array_equal(again.weights[name], model.weights[name]) for name in model.weights)


def test_a_trained_model_mostly_shows_the_prompted_color(model):
    frames = [np.clip(sample_clip(model, prompt, seed=0, guidance=1.5, steps=12), 0, 1) * 255 for prompt in PROMPTS]

    results = [measure_clip(clip.astype(np.uint8), prompt) for clip, prompt in zip(frames, PROMPTS, strict=True)]

    assert sum(result.color_ok is True for result in results) >= 9


def test_sampling_depends_on_seed_and_prompt_alone(model):
    def sample(prompt, seed):
        return sample_clip(model, prompt, seed=seed, guidance=1.5, steps=8)

    assert np.array_equal(sample(PROMPTS[0], 1), sample(PROMPTS[0], 1))
    assert not np.array_equal(sample(PROMPTS[0], 1), sample(PROMPTS[0], 2))
    assert not np.array_equal(sample(PROMPTS[0], 1), sample(PROMPTS[1], 1))


def test_a_checkpoint_samples_as_the_model_that_it_holds(model, checkpoint):
    loaded = load_checkpoint(checkpoint)

    assert loaded.record == model.record
    assert np.array_equal(
        sample_clip(loaded, PROMPTS[3], seed=4, guidance=1.5, steps=8),
        sample_clip(model, PROMPTS[3], seed=4, guidance=1.5, steps=8),
    )


def test_a_resident_loads_once_and_serves_many(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("FLEETCRAFT_SLOT", "gpu-0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-simulated-0")
    monkeypatch.setenv("FLEETCRAFT_API_TOKEN", "hidden")
    state = setup(checkpoint=str(checkpoint))

    results = [generate(state, prompt=PROMPTS[1].text, seed=s, out=str(tmp_path / f"{s}.mp4")) for s in (0, 1)]

    assert [result["resident"]["served"] for result in results] == [1, 2]
    assert results[0]["frames"] == FRAMES
    assert results[0]["psnr_decode_db"] > 35.0
    assert results[0]["provenance"]["FLEETCRAFT_SLOT"] == "gpu-0"
    assert results[0]["provenance"]["CUDA_VISIBLE_DEVICES"] == "GPU-simulated-0"
    assert "hidden" not in json.dumps(results, allow_nan=False)
    stored = read_clip(tmp_path / "1.mp4")
    assert stored.frames.shape == (FRAMES, SIZE_PX, SIZE_PX, 3)
    assert (stored.facts["prompt"], stored.facts["seed"], stored.facts["arm"]) == (PROMPTS[1].text, "1", "tried")


def test_generating_again_gives_the_same_file(checkpoint, tmp_path):
    for name in ("one", "two"):
        generate(setup(checkpoint=str(checkpoint)), prompt=PROMPTS[0].text, seed=3, out=str(tmp_path / f"{name}.mp4"))

    assert (tmp_path / "one.mp4").read_bytes() == (tmp_path / "two.mp4").read_bytes()
