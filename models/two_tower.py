"""Two-tower model for pre-rank, after DSSM (Huang et al., CIKM 2013), the form of DICM's pre-rank stage.

    logit = γ · cos(y_user, y_item) + b,   y_t = MLP_t([v_f for f in tower t, s(x) of tower t, images_t])
    images_t = [1/n Σ e_i for f in the image fields of tower t]    e: vectors of images (DICM §6 and Fig. 4)

Sub-operators: each tower's first-layer block product Σ_f v_f W_f (DES eq. 8).  ⊕: H₁ + H₁ float32 per
example. The images' block of a first layer has shared weights; every image's vector is gathered. Serving
keeps y_item / ‖y_item‖ of every item as a matrix; a request is a user vector γ y_user / ‖y_user‖ and a matrix
product. Here ‖y‖ is soft, √(Σ y² + SOFT_NORM²).

Deviations from DSSM: sparse keys with learned vectors instead of letter n-grams; cross entropy on every
impression instead of a softmax over sampled documents; γ is learned; relu instead of tanh; the soft norm;
dense features x enter by s of `models.symlog`. Deviation from DICM: a field's images are averaged, not summed
(`models.aggregators` has the reason).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from livectr.models.base import CTRModel, ModelConfig
from livectr.models.inputs import Columns, Gathered, Gathers, Part, require_gathered
from livectr.models.layers import IMAGE_SCALE, MLP, SubsetLinear, generator, glorot
from livectr.models.learning import OptimiserSpec, adagrad
from livectr.models.products import affine
from livectr.models.ragged import pooled_content
from livectr.models.segments import SegmentSpec
from livectr.models.settings import check_fields, check_names

SOFT_NORM = 0.1
"""Soft minimum of the norm of a tower's output. A plain ‖y‖ has gradients of γ / ‖y‖, which are unbounded
where an output starts near zero: they spoil AdaGrad's sums and magnify rounding.
"""


@dataclass(frozen=True)
class TwoTower(ModelConfig):
    """Two-tower model for pre-rank (DSSM, Huang et al., CIKM 2013): logit = γ cos(y_user, y_item) + b.

    Use it as `prerank=`: item vectors are computed in advance, and a request scores thousands of ads by an
    inner product. Do not use it for the final ranking: features of user and item meet only in the product.

    Args:
        user: fields and dense features of the user tower; a feature in neither tower takes no part.
        item: fields and dense features of the item tower.
        dim: K, float32 values of a field's vector.
        hidden: units of each tower's hidden layers, H₁ first; at least one layer.
        out: float32 values of a user or item vector.
        optimiser: table optimiser of the fields' vectors.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the network's parameters.
        user_images: content fields whose images the user tower averages.
        item_images: content fields whose images the item tower averages.
        image_dim: float32 values of an image's vector; the `out` of the content's sub-model.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import TwoTower
        >>> config = TwoTower(user=("user",), item=("ad", "price"), dim=8, hidden=(16,), out=4)
        >>> fields = ("user", "ad")
        >>> model = config.build(fields, fields, ("price",), dense_local=True, seed=1)
        >>> values, dense = torch.zeros(2, len(fields), config.width), torch.zeros(2, 1)  # 2 examples
        >>> partial = model.partial(values, dense)
        >>> model.item_vector(partial).shape, model.finish(partial).shape
        (torch.Size([2, 4]), torch.Size([2]))
    """

    user: tuple[str, ...]
    item: tuple[str, ...]
    dim: int = 16
    hidden: tuple[int, ...] = (64,)
    out: int = 32
    optimiser: OptimiserSpec = adagrad()
    init_scale: float = 0.02
    dense_lr: float = 2e-3
    user_images: tuple[str, ...] = ()
    item_images: tuple[str, ...] = ()
    image_dim: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self, "user", "item")
        check_names(self, "user_images", "item_images", optional=True)
        both = (set(self.user) & set(self.item)) | (set(self.user_images) & set(self.item_images))
        if both:
            raise ValueError(f"TwoTower has {', '.join(sorted(both))} in both towers; leave it in one")

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: t f32[K]."""
        return (SegmentSpec("t", self.dim, self.optimiser, self.init_scale),)

    def check(self, fields: Sequence[str], dense_names: Sequence[str]) -> None:
        """Checks names as `ModelConfig.check` does; a tower may name a dense vector or one of its numbers."""
        vectors = {name.rpartition(".")[0] for name in dense_names} - {""}
        check_fields(self, (*self.user, *self.item), (*fields, *dense_names, *vectors))
        check_fields(self, (*self.user_images, *self.item_images), fields)

    def gathers(self, fields: Sequence[str]) -> Gathers:
        """Gathers the images' vectors."""
        return Gathers(content=(*self.user_images, *self.item_images))

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return TwoTowerModel(self, part)


def is_named(number: str, names: Container[str]) -> bool:
    """True if a dense number is in `names`, by itself or by its vector: number "vector.i" of "vector"."""
    return number in names or number.rpartition(".")[0] in names


class Tower(nn.Module):
    """Tower of user or item: selects its fields and dense features and maps them to a vector.

    Attributes:
        image_fields: the image fields of the configuration.
        images: f32[image_fields · image_dim, H₁]; None without images.
    """

    images: nn.Parameter | None

    def __init__(
        self,
        name: str,
        names: tuple[str, ...],
        image_fields: tuple[str, ...],
        config: TwoTower,
        part: Part,
    ) -> None:
        super().__init__()
        own = replace(
            part,
            fields=tuple(f for f in part.fields if f in names),
            local=tuple(f for f in part.local if f in names),
            dense_names=tuple(d for d in part.dense_names if is_named(d, names)),
        )
        self.first = SubsetLinear(f"{name}.first", part, own, dim=config.dim, hidden=config.hidden[0])
        self.mlp = MLP(f"{name}.mlp", (*config.hidden, config.out), part.seed)
        self.local_axes = self.first.local_axes
        self.image_fields = image_fields
        self.images = None
        if width := len(image_fields) * config.image_dim:
            hidden, fan_in = config.hidden[0], len(own.fields) * config.dim + len(own.dense_names) + width
            source = generator(part.seed, f"{name}.images")
            self.images = nn.Parameter(IMAGE_SCALE * glorot((width, hidden), fan_in, hidden, source))

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, K] → Σ v W f32[B, H₁]."""
        out: Tensor = self.first(values, dense, columns)
        return out

    def pooled_images(self, gathered: Gathered | None) -> Tensor | None:
        """Means of the gathered images f32[B, image_fields · image_dim]; None for a tower without images."""
        if self.images is None:
            return None
        seen = require_gathered(gathered)
        return torch.cat([pooled_content(seen, name) for name in self.image_fields], dim=1)

    def vector(self, aggregated: Tensor, images: Tensor | None = None) -> Tensor:
        """Maps aggregated f32[B, H₁] to x / √(‖x‖² + SOFT_NORM²) f32[B, out]: unit vectors except for tiny x.

        Args:
            aggregated: f32[B, H₁], the first layer's product.
            images: f32[B, image_fields · image_dim], as `pooled_images` returns them.

        Raises:
            ValueError: a tower with images gets none.
        """
        if self.images is not None:
            if images is None:
                raise ValueError(
                    f"this tower sees images of {', '.join(self.image_fields)}; give their means"
                )
            aggregated = affine(aggregated, images, self.images)
        x: Tensor = self.mlp(aggregated)
        return x * torch.rsqrt(x.square().sum(dim=1, keepdim=True) + SOFT_NORM**2)


class TwoTowerModel(CTRModel):
    """Network of `TwoTower`; S = H₁ + H₁."""

    def __init__(self, config: TwoTower, part: Part) -> None:
        super().__init__()
        self.hidden = config.hidden[0]
        self.partial_size = 2 * self.hidden
        self.gamma = nn.Parameter(torch.tensor(4.0))
        self.user = Tower("user", config.user, config.user_images, config, part)
        self.item = Tower("item", config.item, config.item_images, config, part)
        self.local_axes = self.user.local_axes | self.item.local_axes

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, K] → [Σ_user v W, Σ_item v W] f32[B, H₁ + H₁]."""
        towers = (self.user, self.item)
        return torch.cat([tower.partial(values, dense, columns) for tower in towers], dim=1)

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, H₁ + H₁] → logits f32[B]."""
        user = self.user_vector(aggregated, self.user.pooled_images(gathered))
        item = self.item_vector(aggregated, self.item.pooled_images(gathered))
        return (user * item).sum(dim=1) + self.bias

    def user_vector(self, aggregated: Tensor, images: Tensor | None = None) -> Tensor:
        """γ · unit vector of the user.

        Args:
            aggregated: f32[B, H₁ + H₁]; the item half is not used.
            images: f32[B, user_images · image_dim], the means of each field's image vectors.

        Returns:
            f32[B, out].
        """
        return self.gamma * self.user.vector(aggregated[:, : self.hidden], images)

    def item_vector(self, aggregated: Tensor, images: Tensor | None = None) -> Tensor:
        """Unit vector of the item; logit = ⟨user_vector, item_vector⟩ + bias.

        Args:
            aggregated: f32[B, H₁ + H₁]; the user half is not used.
            images: f32[B, item_images · image_dim], the means of each field's image vectors.

        Returns:
            f32[B, out].
        """
        return self.item.vector(aggregated[:, self.hidden :], images)
