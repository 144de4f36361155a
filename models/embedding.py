"""Sub-models: networks from raw content features to a small vector, trained with the rest of the model.

This is the embedding model of DICM §5.1; its Advanced Model Server runs it where the features are (§4).

    features f[n, width] ─► network ─► f32[n, out]
    no features stored   ─► absent      f32[out], learned as well

A sub-model depends on no other feature. It runs once for each unique id of a batch, on the rank that holds
the id's features, and in advance for serving.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from livectr.models.base import copy_named
from livectr.models.half import half_linear
from livectr.models.layers import generator, glorot, matrix
from livectr.models.learning import Schedule
from livectr.models.products import affine
from livectr.models.settings import check_settings


@dataclass(frozen=True)
class SubModel(ABC):
    """Sub-model of a content in a pipeline file.

    Args:
        width: raw features of an id.
        out: float32 values of its vector.
        lr: Adam's learning rate.
        schedule: learning rate over the number of batches.
        init_scale: factor of the layer that makes the vectors. Embeddings of ids start near 0, raw features
            do
            not: at full scale a young model sees mostly noise of images (the paper says nothing).
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
        """Network of the sub-model; initial values depend on the seed and the names only."""


class SubNetwork(nn.Module):
    """Network of a sub-model.

    Attributes:
        absent: f32[out], the vector of an id without features.
    """

    def __init__(self, config: SubModel, name: str, seed: int) -> None:
        super().__init__()
        self.width = config.width
        absent = glorot((config.out,), config.out, 1, generator(seed, f"{name}.absent"))
        self.absent = nn.Parameter(config.init_scale * absent)

    def embed(self, features: Tensor) -> Tensor:
        """Maps features f16 or f32 [n, width] to vectors f32[n, out]."""
        raise NotImplementedError

    def forward(self, features: Tensor, known: Tensor) -> Tensor:
        """Maps features to vectors f32[n, out].

        Args:
            features: f16 or f32 [n, width]; rows without features are not read.
            known: bool[n], the id has features; on the host, which does not wait for a GPU then.
        """
        if bool(known.all()):
            return self.embed(features)
        if features.device.type == "cuda" and known.device.type == "cpu":
            known = known.pin_memory().to(features.device, non_blocking=True)
        there = known.unsqueeze(1)
        return torch.where(there, self.embed(features.masked_fill(~there, 0)), self.absent)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Copies the parameters by name.

        Raises:
            KeyError: a parameter is missing.
            ValueError: a parameter has another shape.
        """
        copy_named({name: p.detach() for name, p in self.named_parameters()}, tensors)


@dataclass(frozen=True)
class EmbeddingModel(SubModel):
    """DICM's trainable image embedding (Ge et al. 2018, §5.1): layers 4096-256-64-12 with PReLU.

    Its input are features of a fixed network, for example VGG16's FC6. Use it for image features. Do not use
    it for vectors that are meaningful by themselves: `TextProjection` has fewer parameters.

    Args:
        width: raw features of an id.
        out: float32 values of its vector.
        lr: Adam's learning rate.
        hidden: units of the hidden layers.
        schedule: learning rate over the number of batches.
        init_scale: factor of the last layer's initial weights.

    Example:
        >>> import torch
        >>> from livectr.models import EmbeddingModel
        >>> network = EmbeddingModel(width=32, hidden=(16,), out=4).network("image", seed=1)
        >>> known = torch.tensor([True, False])  # the second id has no features
        >>> network(torch.zeros(2, 32), known).shape
        torch.Size([2, 4])
    """

    hidden: tuple[int, ...] = (256, 64)

    def network(self, name: str, seed: int) -> SubNetwork:
        """See `SubModel.network`."""
        return EmbeddingNetwork(self, name, seed)


class EmbeddingNetwork(SubNetwork):
    """Network of `EmbeddingModel`.

    PReLU has a slope per unit, starting at ¼ (He et al. 2015); the last layer has none.
    """

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
        """Maps features f16 or f32 [n, width] to vectors f32[n, out]."""
        x = half_linear(features, self.weights[0], self.biases[0])
        for i, slope in enumerate(self.slopes, 1):
            x = affine(self.biases[i], nn.functional.prelu(x, slope), self.weights[i])
        return x


@dataclass(frozen=True)
class TextProjection(SubModel):
    """Linear layer x W + b, for features that are meaningful by themselves.

    Use it for sentence or word vectors of texts. Do not use it for image features: `EmbeddingModel` has the
    hidden layers that they need.

    Args:
        width: raw features of an id.
        out: float32 values of its vector.
        lr: Adam's learning rate.
        schedule: learning rate over the number of batches.
        init_scale: factor of the initial weights.

    Example:
        >>> import torch
        >>> from livectr.models import TextProjection
        >>> network = TextProjection(width=32, out=4).network("title", seed=1)
        >>> network(torch.zeros(2, 32), torch.tensor([True, True])).shape
        torch.Size([2, 4])
    """

    width: int = 300

    def network(self, name: str, seed: int) -> SubNetwork:
        """See `SubModel.network`."""
        return ProjectionNetwork(self, name, seed)


class ProjectionNetwork(SubNetwork):
    """Network of `TextProjection`: x W + b."""

    def __init__(self, config: TextProjection, name: str, seed: int) -> None:
        super().__init__(config, name, seed)
        weight = matrix(seed, f"{name}.weight", config.width, config.out).detach()
        self.weight = nn.Parameter(config.init_scale * weight)
        self.bias = nn.Parameter(torch.zeros(config.out))

    def embed(self, features: Tensor) -> Tensor:
        """Maps features f16 or f32 [n, width] to vectors f32[n, out]."""
        return half_linear(features, self.weight, self.bias)
