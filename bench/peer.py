"""DeepFM in plain torch, the peer of bench/train.py.

All fields share one `EmbeddingBag` of a fixed number of rows, and an id's row is its hash modulo that number:
ids collide. Sparse gradients, sparse Adagrad for the embeddings, Adam for the rest; on several ranks
`DistributedDataParallel`, each rank with its own share of the batch.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from livectr.ingest.plan.features import Features


class Head(nn.Module):
    """DeepFM behind the embeddings: vectors f32[B, F, K], Σ first-order weights f32[B] or 0, dense f32[B, Dd]
    → logits f32[B]."""

    def __init__(self, fields: int, dense: int, dim: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.linear = nn.Linear(dense, 1) if dense else None
        widths = [fields * dim + dense, *hidden]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, vectors: Tensor, first: Tensor | float, dense: Tensor) -> Tensor:
        """See the class."""
        pairs = 0.5 * (vectors.sum(1).square().sum(1) - vectors.square().sum((1, 2)))
        deep: Tensor = self.mlp(torch.cat([vectors.flatten(1), dense], 1)).squeeze(1)
        logits = first + pairs + deep
        return logits if self.linear is None else logits + self.linear(dense).squeeze(1)


class PlainDeepFM(nn.Module):
    """Indices i64[B * F] and dense f32[B, Dd] → logits f32[B]."""

    def __init__(self, rows: int, fields: int, dense: int, dim: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.fields = fields
        self.bag = nn.EmbeddingBag(rows, 1 + dim, mode="sum", sparse=True)
        # torch's own N(0, 1) saturates the sigmoid, and gradients that are denormal numbers slow every matmul
        nn.init.normal_(self.bag.weight, std=0.01)
        self.head = Head(fields, dense, dim, hidden)

    def forward(self, indices: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
        """See the class."""
        values = self.bag(indices, offsets).view(-1, self.fields, self.bag.embedding_dim)
        logits: Tensor = self.head(values[..., 1:], values[..., 0].sum(1), dense)
        return logits


class Peer:
    """Trains `PlainDeepFM` on a torch device; `step` has the shape of `DesStep.step`."""

    def __init__(
        self,
        *,
        rows: int,
        fields: int,
        dense: int,
        dim: int,
        hidden: Sequence[int],
        world: int,
        device: str = "cpu",
    ) -> None:
        torch.manual_seed(1)
        self.device = device
        plain = PlainDeepFM(rows, fields, dense, dim, hidden).to(device)
        self.rows, self.fields = rows, fields
        self.model: nn.Module = DistributedDataParallel(plain) if world > 1 else plain
        self.sparse = torch.optim.Adagrad(plain.bag.parameters(), lr=0.05, initial_accumulator_value=0.1)
        self.dense = torch.optim.Adam(plain.head.parameters(), lr=1e-3, fused=True)
        self.salts = np.arange(fields, dtype=np.int64)[:, None] * 0x632BE59BD9B4E01

    def step(self, features: Features, label: NDArray[np.float32]) -> None:
        """One batch, every field with one key in each row."""
        keys = features.keys.reshape(self.fields, features.rows)
        indices = torch.from_numpy(((keys ^ self.salts) % self.rows).T.reshape(-1)).to(self.device)
        offsets = torch.arange(len(indices), device=self.device)
        logits = self.model(indices, offsets, torch.from_numpy(features.dense).to(self.device))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(label).to(self.device))
        self.sparse.zero_grad()
        self.dense.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.sparse.step()
        self.dense.step()
