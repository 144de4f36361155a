"""Deep Image CTR Model (DICM, Ge et al. 2018, §3.3 and §5): images of the ad and of the user's clicked items.

    images = [e_ad, Agg(e_1 … e_n; e_ad, v_ad)]          e: vectors of images, by the content's sub-model
    lr:    logit = b + Σ w + Σ x u + images W
    mlp:   logit = b + MLP([v_1 … v_F, s(x), images])
    din:   logit = b + MLP([v_1 … v_F, s(x), interests, images])
    wide_deep:  logit = b + Σ w + Σ x u + MLP([v_1 … v_F, s(x), images])

Agg: `models.aggregators`. The basic nets are `models.lr`, `models.dnn`, `models.din` and `models.wide_deep`.
DNN and DIN have PReLU (§7.2), and Wide&Deep is not in the paper. Without images they are the paper's
baselines, in which image ids are sparse fields as any other (§7.4). With images they keep these fields.

Sub-operators: those of the basic net over ID fields. The images' block of the first layer has shared weights,
and is added after ⊕.  ⊕: 1 (lr), H₁ or 1 + H₁ (wide_deep) float32 per example. The vectors of the ad's image
and of every behavior image are gathered, and v_ad for `multi_query_attentive`.

Deviations: those of the aggregators and of the basic nets, with s of `models.symlog`. A row of the basic net
lr has a vector v beside its weight only where `multi_query_attentive` uses v_ad as its query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from livectr.kernels.network.pooling import Channel, Pool, VectorList
from livectr.models.aggregators import Aggregator, AggregatorName, aggregator
from livectr.models.base import CTRModel, ModelConfig
from livectr.models.din import DIN, DINModel
from livectr.models.dnn import DNN, DNNModel
from livectr.models.forward import Block, ForwardLayers, LayeredModel
from livectr.models.inputs import Columns, Gathered, Gathers, Part, require_gathered
from livectr.models.layers import IMAGE_SCALE, generator, glorot
from livectr.models.learning import OptimiserSpec, adagrad, ftrl
from livectr.models.lr import LRModel
from livectr.models.products import affine
from livectr.models.ragged import content, pooled_content
from livectr.models.segments import SegmentSpec
from livectr.models.settings import check_choice, check_fields, check_name, check_names
from livectr.models.wide_deep import WideDeep, WideDeepModel

Basic = Literal["lr", "mlp", "din", "wide_deep"]
Images = Literal["none", "ad", "behaviors", "joint"]


@dataclass(frozen=True)
class DICM(ModelConfig):
    """Deep Image CTR Model (Ge et al. 2018, §5): images of the ad and of the user's clicked items.

    images = [e_ad, Agg(e_1 … e_n; e_ad, v_ad)] joins the first layer of a basic net. Use it
    where pictures drive clicks, and for new ads, whose ids no table knows yet. Do not use it without stored
    image features: a content store is needed beside the log.

    Args:
        ad_image: field of the ad's image ids.
        behavior_images: field of the image ids of the user's clicked items, oldest first.
        ad: field whose vector is the second query of `multi_query_attentive`.
        aggregator: pooling of the behavior images: "concat", "sum", "mean", "max", "attentive" or
            "multi_query_attentive" (§5.2).
        basic: basic net, "lr", "mlp", "din" or "wide_deep".
        images: images that take part (Table 3): "none", "ad", "behaviors" or "joint".
        target: target fields of the basic net `din`, as of `DIN`.
        behaviors: behavior fields of the basic net `din`, as of `DIN`.
        image_dim: W, float32 values of an image's vector; the `out` of the content's sub-model.
        concat_length: images that `concat` keeps.
        dim: K, float32 values of an ID's vector v.
        hidden: units of the MLP's hidden layers, H₁ first; at least one layer.
        attention: units of the hidden layers of all activation units.
        optimiser: table optimiser of the vectors v.
        first_order: table optimiser of the weights w of the basic nets `lr` and `wide_deep`.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the network's parameters.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import DICM, Gathered, Ragged
        >>> images = {"ad_image": "image", "behavior_images": "clicked", "image_dim": 3}
        >>> config = DICM(**images, ad="ad", aggregator="sum")
        >>> fields = ("user", "ad", "image", "clicked")
        >>> model = config.build(fields, fields, (), dense_local=False, seed=1)
        >>> values = torch.zeros(2, len(fields), config.width)  # rows v of 2 examples
        >>> shown = Ragged(torch.zeros(2, 3), torch.tensor([0, 1, 2]))  # an image per ad
        >>> clicked = Ragged(torch.zeros(5, 3), torch.tensor([0, 5, 5]))  # 5 clicked images, none
        >>> content = {"image": shown, "clicked": clicked}
        >>> gathered = Gathered(pooled=values[:, :0], sequences={}, content=content)
        >>> model.partial_size, model(values, None, gathered).shape
        (256, torch.Size([2]))
    """

    ad_image: str
    behavior_images: str
    ad: str
    aggregator: AggregatorName = "multi_query_attentive"
    basic: Basic = "mlp"
    images: Images = "joint"
    target: tuple[str, ...] = ()
    behaviors: tuple[str, ...] = ()
    image_dim: int = 12
    concat_length: int = 32
    dim: int = 16
    hidden: tuple[int, ...] = (256, 128)
    attention: tuple[int, ...] = (32, 16)
    optimiser: OptimiserSpec = adagrad()
    first_order: OptimiserSpec = field(default=ftrl(), kw_only=True)
    init_scale: float = 0.02
    dense_lr: float = 2e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in ("ad_image", "behavior_images", "ad"):
            check_name(self, setting)
        check_names(self, "target", "behaviors", optional=self.basic != "din")
        check_choice(self, "aggregator", get_args(AggregatorName))
        check_choice(self, "basic", get_args(Basic))
        check_choice(self, "images", get_args(Images))
        if self.ad_image == self.behavior_images:
            raise ValueError(
                f"DICM names {self.behavior_images} twice; ad_image and behavior_images are two fields"
            )
        if self.images == "behaviors" and self.aggregator == "attentive":
            raise ValueError(
                "DICM: attentive looks at behaviors from the ad's image, which images='behaviors' leaves "
                "out; take another aggregator"
            )
        if self.basic == "din":
            self.din()  # raises

    def din(self) -> DIN:
        """Settings of the basic net `din`.

        Raises:
            ValueError: its pairs of fields are wrong.
        """
        try:
            return DIN(
                target=self.target,
                behaviors=self.behaviors,
                dim=self.dim,
                hidden=self.hidden,
                attention=self.attention,
                activation="prelu",
            )
        except ValueError as error:
            raise ValueError(f"DICM with basic='din': {error}") from None

    @property
    def with_ad(self) -> bool:
        """True if the ad's image takes part."""
        return self.images in ("ad", "joint")

    @property
    def with_behaviors(self) -> bool:
        """True if the behaviors' images take part."""
        return self.images in ("behaviors", "joint")

    @property
    def by_id(self) -> bool:
        """True if the ad's ID is a query of the behavior images."""
        return self.with_behaviors and self.aggregator == "multi_query_attentive"

    @property
    def map_of_dense(self) -> str:
        """That of the basic net."""
        return "" if self.basic == "lr" else super().map_of_dense

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: v f32[K]; of wide_deep w f32[1] and v; of lr w, and v only where the ad's ID is a query."""
        v = SegmentSpec("v", self.dim, self.optimiser, self.init_scale)
        if self.basic not in ("lr", "wide_deep"):
            return (v,)
        w = SegmentSpec("w", 1, self.first_order, order=1)
        return (w, v) if self.by_id or self.basic == "wide_deep" else (w,)

    def check(self, fields: Sequence[str], dense_names: Sequence[str]) -> None:
        """Checks names as `ModelConfig.check` does, also names that this variant does not use."""
        names = (self.ad_image, self.behavior_images, self.ad, *self.target, *self.behaviors)
        check_fields(self, names, fields)

    def gathers(self, fields: Sequence[str]) -> Gathers:
        """Gathers the images' vectors, the ad's vector as a query, and the inputs of the basic net."""
        basic = self.din().gathers(fields) if self.basic == "din" else Gathers()
        ad = (self.ad,) if self.by_id and self.ad not in basic.pooled else ()
        content = [(self.ad_image, self.with_ad), (self.behavior_images, self.with_behaviors)]
        return Gathers(
            (*basic.pooled, *ad), basic.sequences, content=tuple(name for name, wanted in content if wanted)
        )

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        networks = {"lr": DICMOnLR, "mlp": DICMOnDNN, "din": DICMOnDIN, "wide_deep": DICMOnWideDeep}
        return networks[self.basic](self, part)


class ImageLayer(nn.Module):
    """Images' block of a first layer with `hidden` units: images W.

    Attributes:
        weight: W, f32[width, H].
        aggregator: pooling of the behavior images; None where they take no part.
    """

    aggregator: Aggregator | None

    def __init__(self, config: DICM, part: Part, hidden: int) -> None:
        super().__init__()
        self._ad_image = config.ad_image if config.with_ad else None
        self._behaviors = config.behavior_images
        self._image_dim, self._ad_field = config.image_dim, config.ad if config.by_id else None
        self._ad = config.gathers(part.fields).pooled.index(config.ad) if config.by_id else None
        self._vector = slice(config.width - config.dim, None)  # after w, in rows of lr
        self.aggregator = None
        width = config.image_dim * config.with_ad
        if config.with_behaviors:
            self.aggregator = aggregator(
                config.aggregator,
                image_dim=config.image_dim,
                id_dim=config.dim,
                length=config.concat_length,
                attention=config.attention,
                seed=part.seed,
                ad_image=config.with_ad,
            )
            width += self.aggregator.width
        fan_in = width + len(part.fields) * config.dim + len(part.dense_names)
        weight = glorot((width, hidden), fan_in, hidden, generator(part.seed, "images"))
        self.weight = nn.Parameter(IMAGE_SCALE * weight)

    def forward(self, aggregated: Tensor, seen: Gathered) -> Tensor:
        """Adds the images' block to a first layer's product f32[B, H]."""
        return affine(aggregated, self.inputs(seen), self.weight)

    def inputs(self, seen: Gathered) -> Tensor:
        """Inputs f32[B, width] of the block: the ad's image and the pooled behavior images."""
        inputs, ad_image = [], None
        if self._ad_image is not None:
            ad_image = pooled_content(seen, self._ad_image)
            inputs.append(ad_image)
        if self.aggregator is not None:
            ad = None if self._ad is None else seen.pooled[:, self._ad, self._vector]
            inputs.append(self.aggregator(content(seen, self._behaviors), ad_image, ad))
        return torch.cat(inputs, dim=1)

    def channels(self) -> tuple[Channel, ...] | None:
        """Inputs one behind the other, as a compiled function pools them; None: torch alone computes one."""
        ad_image = None if self._ad_image is None else self._image_list(self._ad_image)
        own = () if ad_image is None else (Channel(Pool.MEAN, ad_image),)
        if self.aggregator is None:
            return own
        pooled = self.aggregator.channels(self._image_list(self._behaviors), ad_image, self._ad_field)
        return None if pooled is None else (*own, *pooled)

    def _image_list(self, field: str) -> VectorList:
        return VectorList(field, self._image_dim, content=True)


class _WithImages(LayeredModel):
    """Mixin of a basic net: `finish` adds the images' block to the first layer."""

    images: ImageLayer | None

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Computes the logits f32[B]; see `CTRModel.finish`."""
        if self.images is not None:
            aggregated = self.images(aggregated, require_gathered(gathered))
        return super().finish(aggregated, gathered)

    def forward_layers(self) -> ForwardLayers | None:
        """See `LayeredModel.forward_layers`."""
        layers = super().forward_layers()
        if self.images is None or layers is None:
            return layers
        block = Block(self.images.weight, self.images.inputs, self.images.channels)
        return replace(layers, blocks=(*layers.blocks, block))


def _images(config: DICM, part: Part, hidden: int) -> ImageLayer | None:
    return None if config.images == "none" else ImageLayer(config, part, hidden)


class DICMOnLR(_WithImages, LRModel):
    """DICM on LR; S = 1."""

    def __init__(self, config: DICM, part: Part) -> None:
        LRModel.__init__(self, part)
        self.images = _images(config, part, 1)

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, 1 or 1 + K] → Σ w f32[B, 1]."""
        return super().partial(values[..., :1], dense, columns)


class DICMOnDNN(_WithImages, DNNModel):
    """DICM on DNN; S = H₁."""

    def __init__(self, config: DICM, part: Part) -> None:
        basic = DNN(dim=config.dim, hidden=config.hidden, activation="prelu")
        DNNModel.__init__(self, basic, part)
        self.images = _images(config, part, config.hidden[0])


class DICMOnDIN(_WithImages, DINModel):
    """DICM on DIN; S = H₁. The targets' vectors come first among the gathered vectors, as DIN expects."""

    def __init__(self, config: DICM, part: Part) -> None:
        DINModel.__init__(self, config.din(), part)
        self.images = _images(config, part, config.hidden[0])


class DICMOnWideDeep(_WithImages, WideDeepModel):
    """DICM on Wide&Deep; S = 1 + H₁."""

    def __init__(self, config: DICM, part: Part) -> None:
        WideDeepModel.__init__(self, WideDeep(dim=config.dim, hidden=config.hidden), part)
        self.images = _images(config, part, config.hidden[0])

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Computes the logits f32[B]; the images join the deep part."""
        if self.images is not None:
            deep = self.images(aggregated[:, 1:], require_gathered(gathered))
            aggregated = torch.cat([aggregated[:, :1], deep], 1)
        return WideDeepModel.finish(self, aggregated, gathered)
