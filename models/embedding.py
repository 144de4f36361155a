"""Sub-models: what turns raw features of an image or a text into a small vector, trained with the rest of the
network (the embedding model of DICM §5.1, which its Advanced Model Server runs where the features are, §4).

    features f[n, width] ─► network ─► f32[n, out]
    no features stored   ─► absent      f32[out], learned as well

A sub-model depends on no other feature, so that it runs once for each unique id of a batch, on the rank that
holds the id's features, and in advance for serving.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from livectr.models.base import Schedule, copy_named
from livectr.models.half import half_linear
from livectr.models.layers import generator, glorot, matrix
from livectr.models.products import affine
from livectr.models.settings import check_settings


@dataclass(frozen=True)
class SubModel(ABC):
    """A sub-model as a pipeline file names it.

    width: raw features of an id. out: of its vector. lr: Adam's learning rate; schedule: how it changes.
    init_scale: of what makes the vectors at the start. Raw features are far from 0 where embeddings of ids
        begin near it: at full scale a young model sees little but noise of images (the paper says nothing).
    """

    width: int = 4096
    out: int = 12
    lr: float = 1e-3
    schedule: Schedule = field(default=Schedule(), kw_only=True)
    init_scale: float = field(default=0.02, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise ValueError(f"{type(self).__name__}: schedule is {self.schedule!r}, but must be a Schedule")
        check_settings(self)

    @abstractmethod
    def network(self, name: str, seed: int) -> SubNetwork:
        """Its network; initial values depend on the seed, the name and the parameter's name only."""


class SubNetwork(nn.Module):
    """A sub-model's network.

    Attributes:
        absent: f32[out], the vector of an id without features.
    """

    def __init__(self, config: SubModel, name: str, seed: int) -> None:
        super().__init__()
        self.width = config.width
        absent = glorot((config.out,), config.out, 1, generator(seed, f"{name}.absent"))
        self.absent = nn.Parameter(config.init_scale * absent)

    def embed(self, features: Tensor) -> Tensor:
        """f16 or f32 [n, width] → f32[n, out]."""
        raise NotImplementedError

    def forward(self, features: Tensor, known: Tensor) -> Tensor:
        """features f16 or f32 [n, width], known bool[n] → f32[n, out]; rows that are not known are not looked
        at."""
        if bool(known.all()):
            return self.embed(features)
        there = known.unsqueeze(1)
        return torch.where(there, self.embed(features.masked_fill(~there, 0)), self.absent)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Copies the parameters by name. Raises KeyError or ValueError naming what does not fit."""
        copy_named({name: p.detach() for name, p in self.named_parameters()}, tensors)


@dataclass(frozen=True)
class EmbeddingModel(SubModel):
    """DICM's trainable part (§5.1): fully connected layers of the `hidden` widths with PReLU, 4096-256-64-12.

    The features are those of a fixed network before it, such as VGG16's FC6.
    """

    hidden: tuple[int, ...] = (256, 64)

    def network(self, name: str, seed: int) -> SubNetwork:
        """See `SubModel.network`."""
        return EmbeddingNetwork(self, name, seed)


class EmbeddingNetwork(SubNetwork):
    """PReLU has a slope for each unit, starting at ¼ (He et al. 2015); the last layer has none."""

    def __init__(self, config: EmbeddingModel, name: str, seed: int) -> None:
        super().__init__(config, name, seed)
        sizes = (config.width, *config.hidden, config.out)
        pairs = list(itertools.pairwise(sizes))
        weights = [matrix(seed, f"{name}.{i}", a, b).detach() for i, (a, b) in enumerate(pairs)]
        weights[-1] *= config.init_scale
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList(torch.zeros(b) for _, b in pairs)
        self.slopes = nn.ParameterList(torch.full((b,), 0.25) for b in config.hidden)

    def embed(self, features: Tensor) -> Tensor:
        """See `SubNetwork.embed`."""
        x = half_linear(features, self.weights[0], self.biases[0])
        for i, slope in enumerate(self.slopes, 1):
            x = affine(self.biases[i], nn.functional.prelu(x, slope), self.weights[i])
        return x


@dataclass(frozen=True)
class TextProjection(SubModel):
    """One linear layer, for features that are meaningful by themselves: sentence or word vectors of texts."""

    width: int = 300

    def network(self, name: str, seed: int) -> SubNetwork:
        """See `SubModel.network`."""
        return ProjectionNetwork(self, name, seed)


class ProjectionNetwork(SubNetwork):
    """x W + b."""

    def __init__(self, config: TextProjection, name: str, seed: int) -> None:
        super().__init__(config, name, seed)
        weight = matrix(seed, f"{name}.weight", config.width, config.out).detach()
        self.weight = nn.Parameter(config.init_scale * weight)
        self.bias = nn.Parameter(torch.zeros(config.out))

    def embed(self, features: Tensor) -> Tensor:
        """See `SubNetwork.embed`."""
        return half_linear(features, self.weight, self.bias)
