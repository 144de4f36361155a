"""Models of the examples and what goes into them, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from models import CTRModel, Gathered, ModelConfig, Ragged
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
    """What a model sees of B samples: values f64[B, F, D_model], dense f64[B, Dd] and every key's vector of
    sequence fields, of which `values` has the sum."""

    values: Tensor
    dense: Tensor
    sequences: Mapping[str, Ragged]

    @staticmethod
    def of(config: ModelConfig, rows: int = 7, *, seed: int = 1, scale: float = 1.0) -> Inputs:
        """Random ones; lists have 0 to 4 keys."""
        source = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return scale * torch.randn(*shape, generator=source, dtype=torch.float64)

        values, dense = normal(rows, len(FIELDS), config.width), normal(rows, len(DENSE))
        sequences = {}
        for name in config.gathers(FIELDS).sequences:
            lengths = torch.randint(0, 5, (rows,), generator=source)
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
            ragged = Ragged(normal(int(offsets[-1]), config.width), offsets)
            values[:, FIELDS.index(name)] = torch.stack(
                [part.sum(0) for part in lists(ragged)] or [torch.empty(0)]
            ).reshape(rows, config.width)
            sequences[name] = ragged
        return Inputs(values, dense, sequences)

    def gathered(self, config: ModelConfig) -> Gathered | None:
        """What the trainer and the servers gather for this model."""
        wanted = config.gathers(FIELDS)
        if not wanted:
            return None
        pooled = self.values[:, [FIELDS.index(f) for f in wanted.pooled]]
        return Gathered(
            pooled, {f: self.sequences[f] for f in wanted.sequences}, self.dense if wanted.dense else None
        )

    def logits(self, config: ModelConfig, model: CTRModel) -> Tensor:
        """The model's f64[B]."""
        return model(self.values, self.dense, self.gathered(config))

    def take(self, rows: Tensor) -> Inputs:
        """The given rows, in the given order."""
        return replace(
            self,
            values=self.values[rows],
            dense=self.dense[rows],
            sequences={name: taken(ragged, rows) for name, ragged in self.sequences.items()},
        )

    def leaves(self) -> Inputs:
        """The same as leaves of a graph of their own."""

        def leaf(x: Tensor) -> Tensor:
            return x.detach().clone().requires_grad_()

        sequences = {n: Ragged(leaf(r.values), r.offsets) for n, r in self.sequences.items()}
        return Inputs(leaf(self.values), leaf(self.dense), sequences)

    def tensors(self) -> dict[str, Tensor]:
        """All of them by a name."""
        return {"values": self.values, "dense": self.dense} | {
            name: ragged.values for name, ragged in self.sequences.items()
        }


def lists(ragged: Ragged) -> list[Tensor]:
    """Each sample's vectors f64[n, D_model]."""
    ends = ragged.offsets.tolist()
    return [ragged.values[a:b] for a, b in itertools.pairwise(ends)]


def taken(ragged: Ragged, rows: Tensor) -> Ragged:
    """The lists of the given samples."""
    parts = [lists(ragged)[i] for i in rows.tolist()]
    lengths = torch.tensor([0, *map(len, parts)], dtype=torch.int64)
    values = torch.cat(parts) if parts else ragged.values[:0]
    return Ragged(values, lengths.cumsum(0))
