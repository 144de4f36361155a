"""All-gather of scores: logits of all examples, and a bit for each label."""

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
    """Start to send own scores to all ranks. Collective.

    Args:
        own: role → logits f32[b].
        label: f32[b] in {0, 1}.
        rows: examples of each rank.
        collectives: of this rank.

    Returns:
        A function that waits for the logits f32[B] by role and the labels f32[B] of all ranks, rank-major.
    """
    words = np.zeros(_word_count(len(label)), np.int32)
    bits = np.packbits(label != 0)
    words.view(np.uint8)[: len(bits)] = bits
    sizes = [len(own) * n + _word_count(n) for n in rows]
    packed = np.concatenate([*(logits.view(np.int32) for logits in own.values()), words])
    wait = collectives.begin_all_gather_ragged(packed, sizes, "scores")

    @functools.cache
    def received() -> tuple[dict[str, F32], F32]:
        logits, labels = [], []
        for part, n in zip(wait(), rows, strict=True):
            logits.append(part[: len(own) * n].view(np.float32).reshape(len(own), n))
            labels.append(np.unpackbits(part[len(own) * n :].view(np.uint8), count=n))
        roles = dict(zip(own, np.concatenate(logits, axis=1), strict=True))
        return roles, np.concatenate(labels).astype(np.float32)

    return received


def _word_count(examples: int) -> int:
    """32-bit words that hold a bit for each example."""
    return -(-examples // 32)
