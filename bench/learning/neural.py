"""One pass of a network over a log, in an environment that has torch: what its peers have in common.

A network's tables have to be sized beforehand: `Given` numbers the ids of the whole log, those of its future,
too. This is generous to the peer: no two ids collide, and no row is spare.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Given:
    """A log for a network.

    Attributes:
        codes: i64[n, F], ids numbered from 0 in each field.
        sizes: number of ids of each field.
        dense: f32[n, Dd].
        label: f32[n].
    """

    codes: Tensor
    sizes: tuple[int, ...]
    dense: Tensor
    label: Tensor


Learn = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Codes i64[B, F], dense f32[B, Dd] and label f32[B] → probabilities f32[B] from before they were learned."""


def given(path: Path) -> Given:
    """Log of a file that `bench.learning.contestants` wrote."""
    with np.load(path) as log:
        fields = [np.unique(column, return_inverse=True) for column in log["ids"].T]
        codes = np.stack([code for _, code in fields], axis=1).astype(np.int64)
        sizes = tuple(len(ids) for ids, _ in fields)
        return Given(
            torch.from_numpy(codes), sizes, torch.from_numpy(log["dense"]), torch.from_numpy(log["label"])
        )


def one_pass(log: Given, learn: Learn, batch: int) -> F32:
    """Logits of all examples, each batch scored before it is learned."""
    found = []
    for start in range(0, len(log.label), batch):
        rows = slice(start, start + batch)
        p = learn(log.codes[rows], log.dense[rows], log.label[rows])
        found.append(p.detach().double().clamp(1e-7, 1 - 1e-7).logit().float())
    return torch.cat(found).numpy()


def main(name: str, make: Callable[[Given], Learn], batch: int) -> None:
    """Score a log with a network: `LOG.npz SCORES.npz SEED`; print the seconds of its pass."""
    path, out, seed = sys.argv[1:4]
    torch.set_num_threads(1)
    torch.manual_seed(int(seed))
    log = given(Path(path))
    learn = make(log)
    began = time.perf_counter()
    found = one_pass(log, learn, batch)
    print(time.perf_counter() - began)
    np.savez(out, **{name: found})  # type: ignore[arg-type]  # the stub takes names for flags
