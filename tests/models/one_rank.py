"""A model and its tables on one rank without a trainer: what DesStep must come to, in a few lines.

The pooled fields are one block of `FieldTables`; every list whose keys a model wants apart is a block of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from livectr.ingest.plan.features import Features
from livectr.kernels.network.small_batch import curvature
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.rows import row_layout
from livectr.kernels.table.table import DynamicTable, Floats
from livectr.models import Gathered, ModelConfig, Ragged
from livectr.models.roles import row_segments
from livectr.trainer.des.dense import DenseAdam
from tests.models.examples import DENSE, FIELDS, SHARED
from tests.models.inputs import image_dim

F32 = NDArray[np.float32]


def batch(rng: np.random.Generator, rows: int, *, keys: int = 40, empty: bool = False) -> Features:
    """Examples of `FIELDS`: C3 and C6 are lists, the others have one key. empty: nothing has any."""
    lengths = np.full((len(FIELDS), rows), 0 if empty else 1, np.int32)
    if not empty:
        for field in ("C3", "C6"):
            lengths[FIELDS.index(field)] = rng.integers(0, 5, rows)
    offsets = np.r_[0, np.cumsum(lengths)].astype(np.int32)
    ids = rng.integers(1, keys + 1, offsets[-1]).astype(np.int64)
    return Features(rows, offsets, ids, rng.normal(size=(rows, len(DENSE))).astype(np.float32))


@dataclass(frozen=True)
class Read:
    """Rows of a batch: values f32[B, F, D_model], the lists' f32[nnz, D_model], dense f32[B, Dd], and vectors
    of content f32[nnz, image_dim] by field."""

    values: Tensor
    lists: tuple[Ragged, ...]
    dense: Tensor
    content: Mapping[str, Ragged]


TABLES = {name: name for name in FIELDS} | {f"C{f}": f"C{g}" for f, g in SHARED}


class OneRank:
    """Tables, network and optimisers of one model, by default for the features of `examples`.

    table_of: every field's table, in the order of the fields.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        table_of: Mapping[str, str] = TABLES,
        dense: tuple[str, ...] = DENSE,
        seed: int = 5,
    ) -> None:
        self.config = config
        self.fields = tuple(table_of)
        self.wanted = config.gathers(self.fields)
        layout = row_layout(row_segments({"rank": config}, len(self.fields) + len(dense)))
        self.tables = {
            name: DynamicTable(layout, name=name, seed=seed) for name in dict.fromkeys(table_of.values())
        }
        names = [*self.fields, *self.wanted.sequences]
        blocks = [0] * len(self.fields) + [1 + i for i in range(len(self.wanted.sequences))]
        self.front = FieldTables(self.tables, [(name, table_of[name]) for name in names], blocks)
        self.model = config.build(self.fields, self.fields, dense, True, seed)
        self.adam = DenseAdam({"rank": self.model}, {"rank": config})

    def logits(self, features: Features) -> F32:
        """Scores without storing anything."""
        with torch.no_grad():
            out: F32 = self.run(self.read(features, store=False)).numpy()
            return out

    def step(self, features: Features, label: F32) -> F32:
        """Scores and then learns a batch: tables by the sum of the loss, the network by its mean.

        The model's auxiliary loss, if it has one, is added to that of the labels.
        """
        read = self.read(features, store=True)
        leaves = [read.values, *(ragged.values for ragged in read.lists)]
        for leaf in leaves:
            leaf.requires_grad_()
        target = torch.from_numpy(label)
        partial = self.model.partial(read.values, read.dense)
        logits, auxiliary = self.model.finish_with_loss(partial, self.gathered(read), target)
        loss = binary_cross_entropy_with_logits(logits, target, reduction="sum")
        (loss if auxiliary is None else loss + auxiliary).backward()  # type: ignore[no-untyped-call]
        grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]
        self.front.backward(grads[0].numpy(), *(grad.unsqueeze(1).numpy() for grad in grads[1:]))
        scored: F32 = logits.detach().numpy()
        largest = torch.from_numpy(features.dense).abs().amax(0)
        self.adam.step(len(label), {"rank": curvature(scored)}, largest)
        return scored

    def run(self, read: Read) -> Tensor:
        """The model's logits f32[B], gathered vectors and all."""
        out: Tensor = self.model(read.values, read.dense, self.gathered(read))
        return out

    def gathered(self, read: Read) -> Gathered | None:
        """Tensors that the model gathers."""
        if not self.wanted:
            return None
        return Gathered(
            read.values[:, [self.fields.index(f) for f in self.wanted.pooled]],
            dict(zip(self.wanted.sequences, read.lists, strict=True)),
            read.dense if self.wanted.dense else None,
            read.content,
        )

    def read(self, features: Features, *, store: bool) -> Read:
        """The rows of a batch's keys."""
        lists = [_list(features, self.fields.index(name)) for name in self.wanted.sequences]
        keys = np.concatenate([features.keys, *(own for _, own in lists)])
        offsets = np.r_[
            features.offsets, features.offsets[-1] + 1 + np.arange(len(keys) - len(features.keys))
        ]
        rows = [features.rows, *(len(own) for _, own in lists)]
        call = self.front.forward if store else self.front.infer
        pooled, *apart = call(offsets.astype(np.int32), keys, *rows)
        return Read(
            torch.from_numpy(pooled),
            tuple(_ragged(values, at) for values, (at, _) in zip(apart, lists, strict=True)),
            torch.from_numpy(features.dense),
            {name: self._content(features, name) for name in self.wanted.content},
        )

    def _content(self, features: Features, name: str) -> Ragged:
        """Every id has its own vector, as of a sub-model that is not trained."""
        offsets, ids = _list(features, self.fields.index(name))
        vectors = np.sin(np.outer(ids, 1 + np.arange(image_dim(self.config)))).astype(np.float32)
        return Ragged(torch.from_numpy(vectors), torch.tensor(offsets, dtype=torch.int64))

    @property
    def keys(self) -> int:
        """Rows in all tables."""
        return sum(len(table) for table in self.tables.values())


def _list(features: Features, field: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    if not features.rows:
        return np.zeros(1, np.int32), features.keys[:0]
    return features.field(field)


def _ragged(values: Floats, offsets: Sequence[int] | NDArray[np.int32]) -> Ragged:
    return Ragged(torch.from_numpy(values[:, 0]), torch.tensor(offsets, dtype=torch.int64))
