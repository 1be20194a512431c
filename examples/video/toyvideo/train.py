"""Trains the denoiser of one arm; run as `python -m toyvideo.train --arm NAME --iterations N --out FILE.npz`.

Arms differ only in the number of iterations: the same seed means that a longer arm starts as the shorter one did.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from toyvideo.autoencoder import Autoencoder, fit_drawn, load_autoencoder
from toyvideo.clips import PROMPTS, FloatArray
from toyvideo.model import (
    Model,
    TrainingRecord,
    Weights,
    cosine_schedule,
    embed_prompt,
    init_weights,
    loss_and_gradients,
    network_input,
    save_checkpoint,
)
from toyvideo.provenance import collect_provenance

BATCH_SIZE = 128
LEARNING_RATE = 2e-3
PROMPT_DROPOUT = 0.15
AVERAGE_DECAY = 0.99
LOSS_POINTS = 60


class Adam:
    """Adam with bias correction and a cosine fall of the learning rate, over a dictionary of arrays."""

    def __init__(self, weights: Weights, iterations: int) -> None:
        self._iterations = iterations
        self._first = {name: np.zeros_like(value) for name, value in weights.items()}
        self._second = {name: np.zeros_like(value) for name, value in weights.items()}

    def step(self, weights: Weights, gradients: Weights, iteration: int) -> None:
        """Change `weights` in place; `iteration` counts from 1."""
        rate = LEARNING_RATE * 0.5 * (1.0 + np.cos(np.pi * (iteration - 1) / self._iterations))
        for name, gradient in gradients.items():
            first, second = self._first[name], self._second[name]
            first += 0.1 * (gradient - first)
            second += 0.01 * (gradient**2 - second)
            mean = first / (1.0 - 0.9**iteration)
            spread = np.sqrt(second / (1.0 - 0.99**iteration)) + 1e-8
            weights[name] -= np.float32(rate) * mean / spread


def train_model(autoencoder: Autoencoder, latents: FloatArray, *, arm: str, iterations: int, seed: int = 7) -> Model:
    """Train on `latents` (in prompt order) and return the model with averaged weights."""
    rng = np.random.default_rng(seed)
    weights = init_weights(latents.shape[1], rng)
    average = {name: value.copy() for name, value in weights.items()}
    optimizer = Adam(weights, iterations)
    # The latents come in the order of the prompts, the same number for each.
    conditions = np.repeat(np.stack([embed_prompt(prompt) for prompt in PROMPTS]), len(latents) // len(PROMPTS), axis=0)
    losses: list[float] = []
    for iteration in range(1, iterations + 1):
        rows, target = _draw_batch(latents, conditions, rng)
        loss, gradients = loss_and_gradients(weights, rows, target)
        optimizer.step(weights, gradients, iteration)
        losses.append(loss)
        # A young average would remember the start for too long, so it follows quickly at first.
        decay = np.float32(min(AVERAGE_DECAY, iteration / (iteration + 10)))
        for name, value in weights.items():
            average[name] += (1 - decay) * (value - average[name])
    record = TrainingRecord(
        arm=arm, iterations=iterations, seed=seed, loss=_thin(losses), provenance=collect_provenance()
    )
    return Model(autoencoder=autoencoder, weights=average, record=record)


def _draw_batch(latents: FloatArray, conditions: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    chosen = rng.integers(len(latents), size=BATCH_SIZE)
    clean = latents[chosen]
    noise = rng.standard_normal(clean.shape, dtype=np.float32)
    time = rng.random(BATCH_SIZE, dtype=np.float32)
    signal_level, noise_level = cosine_schedule(time[:, None])
    noisy = signal_level * clean + noise_level * noise
    target = signal_level * noise - noise_level * clean
    kept = (rng.random((BATCH_SIZE, 1)) >= PROMPT_DROPOUT).astype(np.float32)
    return network_input(noisy, time, conditions[chosen] * kept), target


def _thin(losses: list[float]) -> list[float]:
    """Return at most LOSS_POINTS means of neighbouring losses, for the plot."""
    pieces = np.array_split(np.array(losses), min(LOSS_POINTS, len(losses)))
    return [round(float(piece.mean()), 6) for piece in pieces]


def main(argv: list[str] | None = None) -> int:
    """Train one arm and write its checkpoint."""
    parser = argparse.ArgumentParser(prog="toyvideo.train", description="Train one arm of the toy study.")
    parser.add_argument("--arm", required=True, help="the arm's name")
    parser.add_argument("--iterations", type=int, required=True, help="training steps")
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint (.npz) to write")
    parser.add_argument("--autoencoder", type=Path, help="a fitted autoencoder; without it one is fitted here")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args(argv)
    if arguments.iterations < 1:
        parser.error("--iterations must be at least 1")
    fitted = load_autoencoder(arguments.autoencoder) if arguments.autoencoder else fit_drawn()
    model = train_model(*fitted, arm=arguments.arm, iterations=arguments.iterations, seed=arguments.seed)
    save_checkpoint(arguments.out, model)
    loss = model.record.loss[-1]
    print(f"{arguments.arm}: {arguments.iterations} iterations, loss {loss:.4f}, wrote {arguments.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
