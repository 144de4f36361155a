"""A worker's part: the whole model on a rank's own examples, from the rows of their unique keys."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, embedding_bag

from bench.mesh.shard import F32, I64, owners
from livectr.ingest.plan.features import Features
from livectr.kernels.keys.unique import unique_segments
from livectr.models.base import CTRModel


@dataclass(frozen=True)
class Request:
    """Request of a batch: unique keys i64[U], of rank r at keys[bounds[r] : bounds[r + 1]]; index i64[nnz]:
    position of each of the batch's keys among them."""

    keys: I64
    bounds: I64
    index: I64

    @staticmethod
    def of(features: Features, world: int) -> Request:
        """Equal keys of two fields are two keys."""
        starts = features.offsets[:: max(features.rows, 1)].astype(np.int64)
        found = unique_segments(features.keys, starts)
        keys = found.keys ^ np.repeat(_salts(len(starts) - 1), np.diff(found.bounds))
        of_rank = owners(keys, world)
        order = np.argsort(of_rank, kind="stable")
        position = np.empty(len(keys), np.int64)
        position[order] = np.arange(len(keys))
        index = position[found.index + np.repeat(found.bounds[:-1], np.diff(starts))]
        bounds = np.r_[0, np.cumsum(np.bincount(of_rank, minlength=world))]
        return Request(keys[order], bounds, index)

    def of_rank(self, rank: int) -> slice:
        """Slice of a rank's keys."""
        return slice(int(self.bounds[rank]), int(self.bounds[rank + 1]))


@functools.cache
def _salts(fields: int) -> I64:
    """A random number for each field, i64[F]."""
    return np.random.default_rng(7).integers(-(2**63), 2**63 - 1, fields)


def logits(model: CTRModel, features: Features, request: Request, rows: Tensor) -> Tensor:
    """f32[b] from the rows f32[U, D] of a request's keys."""
    cells = torch.from_numpy(features.offsets[:-1]).long()
    pooled = embedding_bag(torch.from_numpy(request.index), rows, cells, mode="sum")
    values = pooled.view(features.fields, features.rows, -1).transpose(0, 1).contiguous()
    found: Tensor = model(values, torch.from_numpy(features.dense))
    return found


def largest_numbers(features: Features) -> Tensor:
    """Largest |x| f32[Dd] of each dense feature."""
    return torch.from_numpy(features.dense).abs().amax(0)


def learn(model: CTRModel, features: Features, label: F32, request: Request, values: F32) -> tuple[F32, F32]:
    """(gradient f32[U, D] of the rows, logits f32[b]); the network's gradients are left in it.

    All are sums over samples.
    """
    rows = torch.from_numpy(values).requires_grad_()
    found = logits(model, features, request, rows)
    loss = binary_cross_entropy_with_logits(found, torch.from_numpy(label), reduction="sum")
    loss.backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    return rows.grad.numpy(), found.detach().numpy()
