"""Measures how far a set of clips lies from held-out truth: a Frechet distance over pooled pixels.

The features are fitted on held-out clips, not taken from the generator's own autoencoder, whose clips would all fit it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toyvideo.clips import FloatArray

FEATURE_SIZE = 12
POOL_PX = 4
POOL_FRAMES = 2

DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """A projection of pooled clips, and where the held-out clips lie in it."""

    mean: DoubleArray
    components: DoubleArray
    center: DoubleArray
    covariance: DoubleArray

    def project(self, clips: FloatArray) -> DoubleArray:
        """Return one row of features for each clip."""
        return np.asarray((_pool(clips) - self.mean) @ self.components.T)


def fit_features(held_out: FloatArray) -> Features:
    """Fit the projection to held-out clips and note their distribution."""
    pooled = _pool(held_out)
    mean = pooled.mean(axis=0)
    _, _, rows = np.linalg.svd(pooled - mean, full_matrices=False)
    components = rows[:FEATURE_SIZE]
    projected = (pooled - mean) @ components.T
    return Features(
        mean=mean, components=components, center=projected.mean(axis=0), covariance=np.cov(projected, rowvar=False)
    )


def frechet_distance(features: Features, clips: FloatArray) -> tuple[float | None, str | None]:
    """Return the distance and no reason, or no distance and the reason."""
    if len(clips) < 2:
        return None, f"needs at least 2 readable clips, there are {len(clips)}"
    projected = features.project(clips)
    if not np.isfinite(projected).all():
        return None, "some pixels are not finite numbers"
    covariance = np.cov(projected, rowvar=False)
    root = _square_root(features.covariance)
    cross = _square_root(root @ covariance @ root)
    shift = features.center - projected.mean(axis=0)
    distance = float(shift @ shift + np.trace(features.covariance + covariance - 2.0 * cross))
    # Rounding can leave a tiny negative number for equal distributions.
    return max(distance, 0.0), None


def _pool(clips: FloatArray) -> DoubleArray:
    count, frames, height, width, channels = clips.shape
    shape = (count, frames // POOL_FRAMES, POOL_FRAMES, height // POOL_PX, POOL_PX, width // POOL_PX, POOL_PX, channels)
    return np.asarray(clips.reshape(shape).mean(axis=(2, 4, 6), dtype=np.float64)).reshape(count, -1)


def _square_root(matrix: DoubleArray) -> DoubleArray:
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    return np.asarray((vectors * np.sqrt(np.clip(values, 0.0, None))) @ vectors.T)
