"""Pooling of a user's behavior images to a vector f32[B, width] (DICM, Ge et al. 2018, §5.2 and Fig. 3).

| name | of the behavior images e_1 … e_n | width |
|---|---|---|
| concat | [e_n, e_{n−1} …], the newest first, padded with zeros or cut to a length | length · W |
| sum, mean, max | Σ_i e_i; 1/n Σ_i e_i; elementwise maximum | W |
| attentive | 1/n Σ_i a(e_i, ad image) e_i | W |
| multi_query_attentive | 1/n [Σ_i a(e_i, ad image) e_i, Σ_i a'(e_i, P ad ID) e_i] | 2 W |

W: `image_dim`.  Lists come oldest first; an empty list gives zeros.

Deviations: the paper has no equation of its attention and cites DIN's, so a is DIN's activation unit
(`models.attention`): PReLU, no softmax. Attention divides by n and starts near the mean, with a near 1, and
`mean` is not in the paper. A sum of images of a young sub-model is noise that grows with the history, and it
moves with each step of the sub-model as far as all its images together; docs/dicm.md has what that costs. The
unit subtracts and multiplies e and its query. The vector of an ID is of another space, often
of another length, so a learned matrix P projects it into the images' space. Where ad images take no part
(behavior images alone, Table 3), `multi_query_attentive` has the channel of the ad's ID only.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from livectr.kernels.network.pooling import Channel, Pool, VectorList
from livectr.models.attention import ActivationUnit
from livectr.models.inputs import Ragged
from livectr.models.layers import matrix
from livectr.models.products import product
from livectr.models.ragged import lengths, list_max, list_mean, list_sum, newest

AggregatorName = Literal["concat", "sum", "mean", "max", "attentive", "multi_query_attentive"]
AGGREGATORS: tuple[str, ...] = get_args(AggregatorName)


class Aggregator(nn.Module):
    """Pooling of behavior images.

    Attributes:
        width: W', float32 values of the result.
    """

    width: int

    def forward(self, behaviors: Ragged, ad_image: Tensor | None, ad: Tensor | None) -> Tensor:
        """Pools the behavior images; queries that the aggregator does not have are not read.

        Args:
            behaviors: lists of f32[nnz, W].
            ad_image: f32[B, W], or None.
            ad: f32[B, K], vector of the ad's ID, or None.

        Returns:
            f32[B, width].
        """
        raise NotImplementedError

    def channels(
        self, behaviors: VectorList, ad_image: VectorList | None, ad: str | None
    ) -> tuple[Channel, ...] | None:
        """Results one behind the other, as a compiled function pools them; None: torch alone computes one.

        Args:
            behaviors: the behavior images.
            ad_image: the ad's, whose mean is a query.
            ad: field of the ad's ID.
        """
        raise NotImplementedError


class Concat(Aggregator):
    """Concatenation of the `length` newest images."""

    def __init__(self, image_dim: int, length: int) -> None:
        super().__init__()
        self.length, self.width = length, length * image_dim

    def forward(self, behaviors: Ragged, ad_image: Tensor | None, ad: Tensor | None) -> Tensor:
        """See `Aggregator.forward`."""
        return newest(behaviors, self.length)

    def channels(
        self, behaviors: VectorList, ad_image: VectorList | None, ad: str | None
    ) -> tuple[Channel, ...] | None:
        """See `Aggregator.channels`."""
        return (Channel(Pool.NEWEST, behaviors, self.length),)


class Sum(Aggregator):
    """Sum of the images."""

    pool = Pool.SUM

    def __init__(self, image_dim: int) -> None:
        super().__init__()
        self.width = image_dim

    def forward(self, behaviors: Ragged, ad_image: Tensor | None, ad: Tensor | None) -> Tensor:
        """See `Aggregator.forward`."""
        return list_sum(behaviors)

    def channels(
        self, behaviors: VectorList, ad_image: VectorList | None, ad: str | None
    ) -> tuple[Channel, ...] | None:
        """See `Aggregator.channels`."""
        return (Channel(self.pool, behaviors),)


class Mean(Sum):
    """Mean of the images."""

    pool = Pool.MEAN

    def forward(self, behaviors: Ragged, ad_image: Tensor | None, ad: Tensor | None) -> Tensor:
        """See `Aggregator.forward`."""
        return list_mean(behaviors)


class Max(Sum):
    """Elementwise maximum of the images."""

    pool = Pool.MAX

    def forward(self, behaviors: Ragged, ad_image: Tensor | None, ad: Tensor | None) -> Tensor:
        """See `Aggregator.forward`."""
        return list_max(behaviors)


class Attentive(Aggregator):
    """Attention with a channel per query.

    Queries are the ad's image (`by_image`), and its ID's vector if `id_dim` is above 0.
    """

    def __init__(
        self, image_dim: int, attention: tuple[int, ...], seed: int, *, by_image: bool, id_dim: int
    ) -> None:
        super().__init__()

        def unit(name: str, wanted: bool) -> ActivationUnit | None:
            return (
                _near_mean(ActivationUnit(f"images.{name}", image_dim, attention, seed)) if wanted else None
            )

        self.image = unit("image", by_image)
        self.id = unit("id", id_dim > 0)
        self.project = matrix(seed, "images.project", id_dim, image_dim) if id_dim else None
        self.width = image_dim * (by_image + (id_dim > 0))

    def forward(self, behaviors: Ragged, ad_image: Tensor | None, ad: Tensor | None) -> Tensor:
        """See `Aggregator.forward`."""
        channels = []
        if self.image is not None:
            channels.append(self.image(behaviors, _required(ad_image, "the ad's image")))
        if self.id is not None and self.project is not None:
            channels.append(self.id(behaviors, product(_required(ad, "the ad's ID vector"), self.project)))
        sums = torch.cat(channels, dim=1)
        return sums / lengths(behaviors.offsets, sums)

    def channels(
        self, behaviors: VectorList, ad_image: VectorList | None, ad: str | None
    ) -> tuple[Channel, ...] | None:
        """See `Aggregator.channels`."""
        units = []
        if self.image is not None and ad_image is not None:
            units.append(self.image.compiled(ad_image))
        if self.id is not None and ad is not None:
            units.append(self.id.compiled(ad, self.project))
        found = [Channel(Pool.MEAN_ATTENTION, behaviors, unit=unit) for unit in units if unit is not None]
        return tuple(found) if len(found) == len(units) else None


POOLINGS: dict[str, type[Sum]] = {"sum": Sum, "mean": Mean, "max": Max}


def _near_mean(unit: ActivationUnit) -> ActivationUnit:
    """Starts the weights a near 1, so that a new unit averages: weights of random signs would give noise."""
    with torch.no_grad():
        unit.weights[-1].mul_(0.1)
        unit.biases[-1].fill_(1.0)
    return unit


def _required(query: Tensor | None, what: str) -> Tensor:
    if query is None:
        raise ValueError(f"this aggregator looks at behaviors from {what}; give it")
    return query


def aggregator(
    name: AggregatorName,
    *,
    image_dim: int,
    id_dim: int,
    length: int,
    attention: tuple[int, ...],
    seed: int,
    ad_image: bool = True,
) -> Aggregator:
    """Builds an aggregator by name.

    Args:
        name: a row of the module's table.
        image_dim: W, float32 values of an image's vector.
        id_dim: K, float32 values of an ID's vector.
        length: images that `concat` keeps.
        attention: units of the hidden layers of an activation unit.
        seed: seed of the initial values.
        ad_image: ad images take part.

    Raises:
        ValueError: an unknown name, or `attentive` without ad images.
    """
    if name == "concat":
        return Concat(image_dim, length)
    if pooling := POOLINGS.get(name):
        return pooling(image_dim)
    if name == "multi_query_attentive":
        return Attentive(image_dim, attention, seed, by_image=ad_image, id_dim=id_dim)
    if name != "attentive":
        raise ValueError(f"aggregator is {name!r}, but must be one of {', '.join(AGGREGATORS)}")
    if not ad_image:
        raise ValueError("the aggregator attentive looks from the ad's image; without ad images take another")
    return Attentive(image_dim, attention, seed, by_image=True, id_dim=0)
