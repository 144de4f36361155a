"""Example models and their inputs, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from livectr.models import CTRModel, Gathered, ModelConfig, Ragged
from tests.models.examples import DENSE, FIELDS


def build(
    config: ModelConfig,
    local: tuple[str, ...] = FIELDS,
    *,
    fields: tuple[str, ...] = FIELDS,
    dense: tuple[str, ...] = DENSE,
    dense_local: bool = True,
) -> CTRModel:
    """A rank's network in float64, none of whose parameters is at a zero or another special place."""
    model = config.build(fields, local, dense, dense_local, seed=3).double()
    with torch.no_grad():
        for name, tensor in (model.local_state() | model.shared_state()).items():
            source = torch.Generator().manual_seed(sum(name.encode()))
            tensor += 0.3 * torch.randn(tensor.shape, generator=source, dtype=torch.float64)
    return model


@dataclass(frozen=True)
class Inputs:
    """Inputs of a model for B examples.

    Args:
        values: f64[B, F, D_model]; of sequence fields the sum of the keys' vectors.
        dense: f64[B, Dd], some beyond ±1.
        sequences: field → every key's vector.
        content: field → vectors of `image_dim` numbers.
    """

    values: Tensor
    dense: Tensor
    sequences: Mapping[str, Ragged]
    content: Mapping[str, Ragged] = field(default_factory=dict)

    @staticmethod
    def of(config: ModelConfig, rows: int = 7, *, seed: int = 1, scale: float = 1.0) -> Inputs:
        """Random inputs; lists have 0 to 4 keys."""
        source = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return scale * torch.randn(*shape, generator=source, dtype=torch.float64)

        values, dense = normal(rows, len(FIELDS), config.width), 5 * normal(rows, len(DENSE))

        def listed(width: int) -> Ragged:
            lengths = torch.randint(0, 5, (rows,), generator=source)
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
            return Ragged(normal(int(offsets[-1]), width), offsets)

        sequences = {}
        for name in config.gathers(FIELDS).sequences:
            ragged = listed(config.width)
            values[:, FIELDS.index(name)] = torch.stack(
                [part.sum(0) for part in lists(ragged)] or [torch.empty(0)]
            ).reshape(rows, config.width)
            sequences[name] = ragged
        content = {name: listed(image_dim(config)) for name in config.gathers(FIELDS).content}
        return Inputs(values, dense, sequences, content)

    def gathered(self, config: ModelConfig) -> Gathered | None:
        """Tensors that the trainer and the servers gather for this model."""
        wanted = config.gathers(FIELDS)
        if not wanted:
            return None
        pooled = self.values[:, [FIELDS.index(f) for f in wanted.pooled]]
        return Gathered(
            pooled,
            {f: self.sequences[f] for f in wanted.sequences},
            self.dense if wanted.dense else None,
            {f: self.content[f] for f in wanted.content},
        )

    def logits(self, config: ModelConfig, model: CTRModel) -> Tensor:
        """The model's f64[B]."""
        return model(self.values, self.dense, self.gathered(config))

    def leaves(self) -> Inputs:
        """The same as leaves of a graph of their own."""
        return self.moved([x.detach().clone().requires_grad_() for x in self.tensors().values()])

    def moved(self, tensors: Sequence[Tensor]) -> Inputs:
        """The same lists with other `tensors`."""
        values, dense, *rest = tensors
        of_lists = iter(rest)
        sequences = {n: Ragged(next(of_lists), r.offsets) for n, r in self.sequences.items()}
        content = {n: Ragged(next(of_lists), r.offsets) for n, r in self.content.items()}
        return Inputs(values, dense, sequences, content)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {"values": self.values, "dense": self.dense} | {
            name: ragged.values for name, ragged in self.lists().items()
        }

    def lists(self) -> dict[str, Ragged]:
        """Sequences by their field's name, content by "content.<field>"."""
        return {**self.sequences, **{f"content.{name}": one for name, one in self.content.items()}}


def image_dim(config: ModelConfig) -> int:
    """Numbers of a vector of content."""
    return getattr(config, "image_dim", 0)


def lists(ragged: Ragged) -> list[Tensor]:
    """Each sample's vectors f64[n, D_model]."""
    ends = ragged.offsets.tolist()
    return [ragged.values[a:b] for a, b in itertools.pairwise(ends)]
