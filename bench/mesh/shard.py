"""A server's part: a share of the keys' rows, and on one rank the network's parameters."""

from __future__ import annotations

import threading

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from livectr.kernels.table.rows import row_layout
from livectr.kernels.table.table import DynamicTable
from livectr.models.base import CTRModel, ModelConfig, prior_log_odds
from livectr.models.roles import row_segments
from livectr.trainer.des.dense import DenseAdam

I64 = NDArray[np.int64]
F32 = NDArray[np.float32]
ODD = np.uint64(0x9E3779B97F4A7C15)


def owners(keys: I64, world: int) -> NDArray[np.uint8]:
    """The rank that holds each key, u8[n]."""
    mixed = (keys.view(np.uint64) * ODD) >> np.uint64(33)
    return (mixed % np.uint64(world)).astype(np.uint8)


class Shard:
    """Rows of a rank's keys. Calls may come from several threads."""

    def __init__(self, config: ModelConfig, features: int, seed: int) -> None:
        layout = row_layout(row_segments({"rank": config}, features))
        self.table = DynamicTable(layout, name="mesh", seed=seed)
        self.lock = threading.Lock()

    def pull(self, keys: I64) -> F32:
        """Values f32[n, D]; nothing is stored for a new key."""
        with self.lock:
            return self.table.lookup(keys)

    def push(self, keys: I64, grads: F32) -> None:
        """One optimiser step; gradients f32[n, D] of equal keys are summed."""
        with self.lock:
            self.table.update(keys, grads)


class Network:
    """The network's parameters and their Adam, as flat vectors f32[P]."""

    def __init__(self, model: CTRModel, config: ModelConfig) -> None:
        self.model = model
        self.adam = DenseAdam({"rank": model}, {"rank": config})
        self.parameters = list(model.parameters())
        self.lock = threading.Lock()

    def pull(self) -> Tensor:
        """A copy of the parameters."""
        with self.lock:
            return torch.cat([p.detach().ravel() for p in self.parameters])

    @torch.no_grad()
    def put(self, flat: Tensor) -> None:
        """Takes parameters over."""
        for p, part in zip(self.parameters, self._split(flat), strict=True):
            p.copy_(part.view_as(p))

    def gradient(self) -> Tensor:
        """Gradients of backward, summed over samples; clears them."""
        flat = torch.cat(
            [torch.zeros(p.numel()) if p.grad is None else p.grad.ravel() for p in self.parameters]
        )
        self.adam.clear()
        return flat

    def push(self, gradient: Tensor, samples: int, curved: float, largest: Tensor) -> None:
        """One step with a summed gradient of examples.

        Args:
            gradient: f32[P], summed over the examples.
            samples: number of examples.
            curved: `curvature` of their logits.
            largest: f32[Dd], largest |x| of each dense feature among them.
        """
        with self.lock:
            for p, part in zip(self.parameters, self._split(gradient), strict=True):
                p.grad = part.view_as(p).clone()
            self.adam.step(samples, {"rank": curved}, largest)

    @torch.no_grad()
    def start(self, clicks: float, samples: int) -> None:
        """Moves the bias to the CTR of the first batch, as `trainer.des.step` does."""
        self.model.bias.add_(prior_log_odds(clicks, samples - clicks) - prior_log_odds())

    def _split(self, flat: Tensor) -> tuple[Tensor, ...]:
        return torch.split(flat, [p.numel() for p in self.parameters])
