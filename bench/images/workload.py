"""Examples of `livectr bench images`: users with histories of items, every item with its image.

Sizes follow DICM §7.3, scaled down: 27 kinds of ID features, 32.6 behaviors a user, and users in
groups, so that a batch of 60,000 has about 320,000 behavior and ad images and 1.4 M other IDs. Ids follow
Zipf's law. An item and its image have the same number; the advertised items are drawn once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bench.zipf import zipf
from livectr.ingest.common_features import Common, CommonFeatures
from livectr.ingest.plan.features import Features

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

IMAGE, CLICKED_IMAGES = "image", "clicked_images"


@dataclass(frozen=True)
class Batch:
    """A rank's own examples, grouped by user, and their labels f32[b]."""

    features: Features | CommonFeatures
    label: F32


@dataclass(frozen=True)
class Ads:
    """Log of display ads.

    Args:
        batch: examples of all ranks.
        per_user: examples of a user in a batch.
        behaviors: clicked items of a user, on average.
        user: numbers of ids of the fields of a user.
        own: numbers of ids of the fields of an impression and its ad.
        clicked: numbers of ids of the fields of a behavior, beside its image.
        dense: dense features of an impression.
        images: number of items, and of their images.
        ads: number of advertised items.
        exponent: of Zipf's law, for all ids.
    """

    batch: int
    per_user: float
    behaviors: float
    user: tuple[int, ...]
    own: tuple[int, ...]
    clicked: tuple[int, ...]
    dense: int
    images: int
    ads: int
    exponent: float = 1.0
    seed: int = 1

    @property
    def user_fields(self) -> tuple[str, ...]:
        """Names of the user's fields."""
        return tuple(f"U{i + 1}" for i in range(len(self.user)))

    @property
    def own_fields(self) -> tuple[str, ...]:
        """Names of the impression's fields."""
        return tuple(f"C{i + 1}" for i in range(len(self.own)))

    @property
    def clicked_fields(self) -> tuple[str, ...]:
        """Names of the lists of behaviors, beside that of images."""
        return tuple(f"B{i + 1}" for i in range(len(self.clicked)))

    @property
    def fields(self) -> tuple[str, ...]:
        """All sparse fields, in order."""
        return (*self.user_fields, *self.clicked_fields, CLICKED_IMAGES, *self.own_fields, IMAGE)

    @property
    def common(self) -> Common:
        """Common fields of the examples of a user."""
        return Common(tuple(range(len(self.user) + len(self.clicked) + 1)))

    def batches(self, rank: int, world: int, count: int) -> list[Batch]:
        """`count` batches of this rank's share. Their union depends on the number of ranks."""
        rng = np.random.default_rng([self.seed, world, rank])
        return [self._batch(rng, self.batch // world) for _ in range(count)]

    def image_references(self, rng: np.random.Generator, users: int, rows: int) -> tuple[I64, I64]:
        """(lengths i64[users] of histories, images i64[nnz] of histories and then of `rows` ads)."""
        lengths = rng.poisson(self.behaviors, users)
        clicked = _draw(rng, self._popularity[self.images], int(lengths.sum()))
        shown = self._advertised[_draw(rng, self._popularity[self.ads], rows)]
        return lengths, np.concatenate([clicked, shown])

    def _batch(self, rng: np.random.Generator, rows: int) -> Batch:
        users = max(1, round(rows / self.per_user))
        lengths, images = self.image_references(rng, users, rows)
        clicked, shown = images[:-rows], images[-rows:]
        common = [_draw(rng, self._popularity[size], users) for size in self.user]
        lists = [*(clicked * _odd(i) % size for i, size in enumerate(self.clicked)), clicked]
        own = [
            shown % self.own[0],
            *(_draw(rng, self._popularity[size], rows) for size in self.own[1:]),
            shown,
        ]
        ones = np.ones(users, np.int64)
        index = np.r_[np.arange(users), rng.integers(0, users, rows - users)].astype(np.int32)
        rng.shuffle(index)
        features = CommonFeatures(
            _features(users, [*common, *lists], [ones] * len(common) + [lengths] * len(lists), 0, rng),
            _features(rows, own, [np.ones(rows, np.int64)] * len(own), self.dense, rng),
            index,
            np.empty((0, rows), np.int64),
            np.zeros(rows, bool),
        )
        return Batch(features, (rng.random(rows) < 0.2).astype(np.float32))

    @cached_property
    def _popularity(self) -> dict[int, NDArray[np.float64]]:
        sizes = {*self.user, *self.own, self.images, self.ads}
        return {size: zipf(size, self.exponent) for size in sizes}

    @cached_property
    def _advertised(self) -> I64:
        return np.random.default_rng(self.seed).permutation(self.images)[: self.ads]


def _draw(rng: np.random.Generator, cumulated: NDArray[np.float64], count: int) -> I64:
    """Ids 0, 1, … of Zipf's law, i64[count]."""
    return np.minimum(np.searchsorted(cumulated, rng.random(count)), len(cumulated) - 1)


def _odd(i: int) -> int:
    return 2 * (i + 1) * 1_000_003 + 1


def _features(
    rows: int, ids: Sequence[I64], lengths: Sequence[I64], dense: int, rng: np.random.Generator
) -> Features:
    offsets = np.r_[0, np.cumsum(np.concatenate(lengths))].astype(np.int32)
    numbers = rng.normal(size=(rows, dense)).astype(np.float32)
    return Features(rows, offsets, np.concatenate(ids).astype(np.int64), numbers)
