"""The toy's latent video diffusion model: a small denoiser trained on v-prediction and sampled by DDIM.

Everything is numpy and seeded: the same seed on the same machine gives the same clip.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from toyvideo.autoencoder import Autoencoder
from toyvideo.clips import COLORS, DIRECTIONS, FloatArray, Prompt
from toyvideo.files import write_aside

HIDDEN_SIZE = 256
TIME_FEATURES = 16
CONDITION_SIZE = len(COLORS) + len(DIRECTIONS)

Weights = dict[str, FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecord:
    """How a checkpoint came to be; stored inside it."""

    arm: str
    iterations: int
    seed: int
    loss: list[float]
    provenance: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A checkpoint in memory."""

    autoencoder: Autoencoder
    weights: Weights
    record: TrainingRecord


def embed_prompt(prompt: Prompt | None) -> FloatArray:
    """Return the condition vector; `None` is the empty prompt that guidance steers away from."""
    vector = np.zeros(CONDITION_SIZE, dtype=np.float32)
    if prompt is not None:
        vector[list(COLORS).index(prompt.color)] = 1.0
        vector[len(COLORS) + list(DIRECTIONS).index(prompt.direction)] = 1.0
    return vector


def cosine_schedule(time: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return how much signal and how much noise there is at `time` in 0..1; their squares add up to one."""
    angle = np.asarray(time, dtype=np.float32) * np.float32(np.pi / 2)
    return np.asarray(np.cos(angle), dtype=np.float32), np.asarray(np.sin(angle), dtype=np.float32)


def init_weights(latent_size: int, rng: np.random.Generator) -> Weights:
    """Return fresh weights; the last layer starts at zero, so that the first prediction is zero."""
    sizes = [latent_size + TIME_FEATURES + CONDITION_SIZE, HIDDEN_SIZE, HIDDEN_SIZE, latent_size]
    weights: Weights = {}
    for layer, (inner, outer) in enumerate(pairwise(sizes)):
        gain = 0.0 if layer == len(sizes) - 2 else np.sqrt(2.0 / inner)
        weights[f"w{layer}"] = (rng.standard_normal((inner, outer)) * gain).astype(np.float32)
        weights[f"b{layer}"] = np.zeros(outer, dtype=np.float32)
    return weights


def network_input(latents: FloatArray, time: FloatArray, condition: FloatArray) -> FloatArray:
    """Join noisy latents, features of the time, and the condition into rows for the network."""
    octaves = 2.0 ** np.arange(TIME_FEATURES // 2, dtype=np.float32)
    phase = time[:, None] * octaves[None, :] * np.float32(np.pi / 2)
    return np.concatenate([latents, np.sin(phase), np.cos(phase), condition], axis=1).astype(np.float32)


def predict_v(weights: Weights, rows: FloatArray) -> tuple[FloatArray, list[FloatArray]]:
    """Run the network; also return what the backward pass needs."""
    a0, g0 = _silu(rows @ weights["w0"] + weights["b0"])
    a1, g1 = _silu(a0 @ weights["w1"] + weights["b1"])
    return a1 @ weights["w2"] + weights["b2"], [rows, a0, g0, a1, g1]


def loss_and_gradients(weights: Weights, rows: FloatArray, target: FloatArray) -> tuple[float, Weights]:
    """Return the mean squared error against `target` and its gradient for each weight."""
    output, (rows, a0, g0, a1, g1) = predict_v(weights, rows)
    error = output - target
    d2 = error * np.float32(2.0 / error.size)
    d1 = (d2 @ weights["w2"].T) * g1
    d0 = (d1 @ weights["w1"].T) * g0
    gradients = {
        "w2": a1.T @ d2,
        "b2": d2.sum(axis=0),
        "w1": a0.T @ d1,
        "b1": d1.sum(axis=0),
        "w0": rows.T @ d0,
        "b0": d0.sum(axis=0),
    }
    return float(np.mean(error**2)), gradients


def _silu(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    # Far below zero the exponential would overflow, and the result is zero anyway.
    bounded: FloatArray = np.maximum(x, -60.0)
    sigmoid: FloatArray = 1.0 / (1.0 + np.exp(-bounded))
    return x * sigmoid, sigmoid * (1.0 + x * (1.0 - sigmoid))


def sample_clip(model: Model, prompt: Prompt, *, seed: int, guidance: float, steps: int) -> FloatArray:
    """Generate one clip (frames, height, width, 3) in about 0..1 by DDIM with classifier-free guidance."""
    rng = np.random.default_rng(seed)
    latent = rng.standard_normal((1, len(model.autoencoder.scale))).astype(np.float32)
    # Both branches of the guidance run as one batch of two rows.
    conditions = np.stack([embed_prompt(prompt), embed_prompt(None)])
    times = np.linspace(0.98, 0.0, steps + 1, dtype=np.float32)
    for now, then in pairwise(times):
        rows = network_input(np.repeat(latent, 2, axis=0), np.full(2, now), conditions)
        (with_prompt, without), _ = predict_v(model.weights, rows)
        v = without + np.float32(guidance) * (with_prompt - without)
        signal, noise = cosine_schedule(now)
        clean = signal * latent - noise * v
        estimate = noise * latent + signal * v
        signal, noise = cosine_schedule(then)
        latent = signal * clean + noise * estimate
    return np.asarray(model.autoencoder.decode(latent)[0])


def save_checkpoint(path: Path, model: Model) -> None:
    """Write the checkpoint as one .npz file without pickled objects."""
    arrays: dict[str, npt.NDArray[np.float32]] = {
        "ae_mean": model.autoencoder.mean,
        "ae_components": model.autoencoder.components,
        "ae_scale": model.autoencoder.scale,
        **{f"net_{name}": value for name, value in model.weights.items()},
    }
    record = json.dumps(asdict(model.record), sort_keys=True)

    def fill(part: Path) -> None:
        with part.open("wb") as file:
            np.savez(file, allow_pickle=False, record=np.array(record), **arrays)

    write_aside(path, fill)


def load_checkpoint(path: Path) -> Model:
    """Read what `save_checkpoint` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        record = json.loads(str(stored["record"]))
        return Model(
            autoencoder=Autoencoder(
                mean=stored["ae_mean"], components=stored["ae_components"], scale=stored["ae_scale"]
            ),
            weights={name.removeprefix("net_"): stored[name] for name in stored.files if name.startswith("net_")},
            record=TrainingRecord(**record),
        )
