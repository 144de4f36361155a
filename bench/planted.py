"""Examples with a planted truth: ids by Zipf's law, and known click probabilities.

    logit = b + Σ_f a_f[id] + Σ_{pairs} ⟨c_f[id], c_g[id]⟩ + Σ_d sin(2 x_d) u_d

First order, second order and a non-linear part each carry some of the truth. The AUC of the true
probabilities (the Bayes AUC) is the upper bound of a model's AUC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bench.zipf import zipf
from livectr.ingest.language.content import Content
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Field, Pipeline
from livectr.ingest.plan.features import Features
from livectr.models import ModelConfig, TwoTower

MIX = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that id → id · MIX is a bijection of 64-bit integers: keys look like hashes and never collide."""


class Planted:
    """A source of planted examples.

    Args:
        cardinality: ids of each field; their number is F.
        dense: Dd, dense features, standard normal.
        exponent: of Zipf's law, from the first to the last field.
        strength: standard deviation of the logit's three parts: first order, pairs, dense.
        rate: clicks per impression, roughly.
    """

    def __init__(
        self,
        cardinality: Sequence[int],
        dense: int = 0,
        *,
        exponent: tuple[float, float] = (1.1, 1.3),
        strength: tuple[float, float, float] = (0.7, 0.7, 0.7),
        rate: float = 0.2,
        seed: int = 1,
    ) -> None:
        rng = np.random.default_rng(seed)
        fields = len(cardinality)
        self.dense = dense
        self.popularity = []
        for n, s in zip(cardinality, np.linspace(*exponent, fields), strict=True):
            self.popularity.append(zipf(n, s))
        self.first = [rng.normal(0, strength[0] / np.sqrt(fields), n) for n in cardinality]
        self.pairs = [(f, f + 1) for f in range(0, fields - 1, 2)]
        scale = (strength[1] / np.sqrt(max(len(self.pairs), 1))) ** 0.5
        self.latent = [rng.normal(0, scale, (n, 1)) for n in cardinality]
        self.slope = rng.normal(0, strength[2] * np.sqrt(2 / max(dense, 1)), dense)
        self.bias = np.log(rate / (1 - rate))

    def batch(
        self, rng: np.random.Generator, rows: int
    ) -> tuple[Features, NDArray[np.float32], NDArray[np.float64]]:
        """`rows` examples: features, labels f32[B] and true logits f64[B]."""
        ids = [np.minimum(np.searchsorted(cdf, rng.random(rows)), len(cdf) - 1) for cdf in self.popularity]
        x = rng.normal(size=(rows, self.dense)).astype(np.float32)
        logit = np.full(rows, self.bias) + np.sin(2 * x) @ self.slope
        for first, i in zip(self.first, ids, strict=True):
            logit += first[i]
        for f, g in self.pairs:
            logit += (self.latent[f][ids[f]] * self.latent[g][ids[g]]).sum(axis=1)
        label = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
        keys = np.concatenate(ids).astype(np.uint64)
        keys *= MIX
        offsets = np.arange(len(keys) + 1, dtype=np.int32)
        return Features(rows, offsets, keys.view(np.int64), x), label, logit


def pipeline(
    rank: ModelConfig,
    *,
    fields: int,
    dense: int = 0,
    prerank: TwoTower | None = None,
    shared: Sequence[tuple[int, int]] = (),
    content: Mapping[str, Content] | None = None,
) -> Pipeline:
    """A pipeline of fields C1 … and dense features I1 …

    `shared` (f, g): C<f> reads the table of C<g>. The item side of `prerank` comes from an items table.
    content: of which some fields' keys are the ids.
    """
    kinds = {f"C{i + 1}": "int64" for i in range(fields)} | {f"I{i + 1}": "float32" for i in range(dense)}
    of_item = {name: kinds[name] for name in (prerank.item if prerank else ())}
    events = Stream(
        "planted", key="user", columns={"user": "int64", "item": "int64", "label": "float32"} | kinds
    )
    items = Table("items", key="item", columns={"item": "int64"} | of_item)
    log = labelled(events, label="label")
    column = {name: (items if name in of_item else events)[name] for name in kinds}
    table_of = {f"C{f}": f"C{g}" for f, g in shared}
    return Pipeline(
        log.lookup(items) if prerank else log,
        sparse={
            name: Field(column[name], table=table_of[name]) if name in table_of else column[name]
            for name in kinds
            if name.startswith("C")
        },
        dense={name: column[name] for name in kinds if name.startswith("I")},
        rank=rank,
        prerank=prerank,
        items=items if prerank else None,
        content=content or {},
    )
