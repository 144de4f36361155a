"""Content store of random features: rectified normal numbers, like FC6, made of a few halves to save time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from livectr.ingest.content.store import F16, ContentStore

HALVES = 1024


def random_store(folder: Path, images: int, width: int, *, seed: int = 1) -> ContentStore:
    """Features of the ids 0 … images - 1, in one chunk a shard."""
    store = ContentStore.create(folder, width=width, encoder="made-up")
    store.append(np.arange(images), random_features(images, width, seed))
    return store


def random_features(rows: int, width: int, seed: int) -> F16:
    """float16[rows, width]; a row has one of `HALVES` left and one of as many right halves."""
    rng = np.random.default_rng(seed)
    halves = np.maximum(rng.standard_normal((2, HALVES, width // 2), np.float32), 0).astype(np.float16)
    features = np.empty((rows, width), np.float16)
    for start in range(0, rows, 8192):
        part = features[start : start + 8192]
        for side, columns in enumerate((slice(0, width // 2), slice(width // 2, width))):
            np.take(halves[side], rng.integers(0, HALVES, len(part)), axis=0, out=part[:, columns])
    return features
