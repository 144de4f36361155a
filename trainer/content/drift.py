"""Drift of a content's vectors: how far those of a sample have moved since each version that computed some.

The sample has about `SAMPLE` ids of all ranks, drawn by a hash, so that it does not depend on the number of
ranks. At a version its vectors are computed with the present sub-model and compared with those of each
earlier version that still has vectors in use. The movement is the largest distance of an id's two vectors,
divided by the root mean square of the sample's norms.

The bound: of the vectors that stay, those of the sample have moved by at most the tolerance. Of all ids a
share above 3 / SAMPLE has moved further with a probability of at most 5 % (the rule of three).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import torch

from livectr.ingest.content.store import ContentStore, shard_of
from livectr.models.embedding import SubNetwork
from livectr.trainer.comm.control import Control

SAMPLE = 256
HASHES = 1 << 62
"""Hashes by which samples are drawn."""

F32 = npt.NDArray[np.float32]


class Drift:
    """Sample of one content on one rank. `moved` is collective.

    Args:
        tolerance: greatest movement of a vector that stays.

    Attributes:
        redrawn: the last `moved` has drawn a new sample, as the store was empty or has doubled.
        most: greatest movement of a version's vectors that stay.
    """

    def __init__(self, store: ContentStore, control: Control, tolerance: float) -> None:
        self._store, self._control, self._tolerance = store, control, tolerance
        self._drawn = 0
        self._features = torch.empty(0, store.width)
        self._vectors: F32 = np.empty((0, 0), np.float32)
        self._kept: dict[int, F32 | None] = {}
        """Version's number → vectors of the sample at that version; None: of another sample."""
        self.redrawn = False
        self.most = 0.0

    @torch.no_grad()
    def moved(self, network: SubNetwork, used: Collection[int]) -> set[int]:
        """Numbers of versions whose vectors have moved beyond the tolerance. Collective.

        Args:
            network: the present sub-model.
            used: numbers of versions that vectors in use on this rank are of.
        """
        self._draw()
        device = network.absent.device
        self._vectors = network.embed(self._features.to(device)).cpu().numpy()
        numbers = sorted(self._kept)  # alike on every rank
        distances = [self._distance(self._kept[number]) for number in numbers]
        squares = float(np.square(self._vectors, dtype=np.float64).sum())
        own = [len(self._vectors), squares, *distances, *(number in used for number in numbers)]
        every = self._control.gather(np.array(own, np.float64).view(np.int64)).view(np.float64)
        count, total = every[:, :2].sum(axis=0)
        scale = np.sqrt(total / max(count, 1.0))
        farthest, in_use = np.split(every[:, 2:].max(axis=0), 2)
        for number, wanted in zip(numbers, in_use, strict=True):
            if not wanted:
                del self._kept[number]
        far = farthest > self._tolerance * scale
        stays = farthest[(in_use > 0) & ~far]
        self.most = float(stays.max(initial=0.0) / scale) if scale > 0 else 0.0
        return {number for number, beyond in zip(numbers, far, strict=True) if beyond}

    def published(self, number: int) -> None:
        """Keep the sample's vectors of the version that the last `moved` was about."""
        self._kept[number] = self._vectors

    def _distance(self, before: F32 | None) -> float:
        if before is None or not len(before):
            return 0.0  # vectors of another sample are all computed again
        return float(np.linalg.norm(self._vectors - before, axis=1).max())

    def _draw(self) -> None:
        """Draw the sample: of each shard the ids of the least hashes."""
        self.redrawn = len(self._store) >= 2 * self._drawn and len(self._store) > 0
        if not self.redrawn:
            return
        ids = self._store.ids
        hashes, shards = shard_of(ids, HASHES), self._store.shard_of(ids)
        of_shard = -(-SAMPLE // self._store.shards)
        chosen = []
        for shard in np.flatnonzero(np.bincount(shards)).tolist():
            places = np.flatnonzero(shards == shard)
            least = np.argpartition(hashes[places], min(of_shard, len(places)) - 1)[:of_shard]
            chosen.append(np.sort(ids[places[least]]))
        rows, _ = self._store.read(np.concatenate(chosen))
        self._features, self._drawn = torch.from_numpy(rows).float(), len(ids)
        self._kept = dict.fromkeys(self._kept)
