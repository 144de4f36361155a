"""What every rank is told of all samples: their logits, and a bit for each label."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from livectr.trainer.comm.collectives import Collectives

F32 = NDArray[np.float32]


def all_gather_scores(
    own: Mapping[str, F32], label: F32, rows: Sequence[int], collectives: Collectives
) -> Callable[[], tuple[dict[str, F32], F32]]:
    """Role → logits f32[b] and labels f32[b] in {0, 1} of own samples, to all ranks → those of all, f32[B],
    rank-major; they travel until the result is called. rows: samples of each rank. Collective."""
    words = np.zeros(_words(len(label)), np.int32)
    bits = np.packbits(label != 0)
    words.view(np.uint8)[: len(bits)] = bits
    sizes = [len(own) * n + _words(n) for n in rows]
    packed = np.concatenate([*(logits.view(np.int32) for logits in own.values()), words])
    wait = collectives.begin_all_gather_ragged(packed, sizes, "scores")

    @functools.cache
    def told() -> tuple[dict[str, F32], F32]:
        logits, labels = [], []
        for part, n in zip(wait(), rows, strict=True):
            logits.append(part[: len(own) * n].view(np.float32).reshape(len(own), n))
            labels.append(np.unpackbits(part[len(own) * n :].view(np.uint8), count=n))
        roles = dict(zip(own, np.concatenate(logits, axis=1), strict=True))
        return roles, np.concatenate(labels).astype(np.float32)

    return told


def _words(samples: int) -> int:
    """Of 32 bits, for a bit a sample."""
    return -(-samples // 32)
