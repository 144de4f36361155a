"""One synchronous training step over the ranks (DES Algorithm 1).

    exchange ─► tables.forward ─► partial ─► ⊕ ─► finish ─► logits (test, then train)
                     ▲               ▲                │
    tables.backward ─┴─ dense Adam ──┴─── backward ◄──┘          nothing crosses ranks on the way back

Every rank computes the same loss over all B samples, so that replicated parameters get the same gradient and
stay equal without being sent; those of a field, and its table, get theirs on the rank that holds them.

The loss of a role is binary cross entropy. Table rows see its *sum* over the batch: a key's gradient is that
of the samples it occurs in, whatever B is, which is what FTRL's and AdaGrad's per-coordinate rates are made
for. The networks' own parameters see its *mean*, as is usual with Adam.

Where clicks are rare, a bias would need hundreds of steps from the prior CTR to the log's, and every row
would meanwhile learn the bias' error. So the first batch, once scored, moves the bias to its own CTR before
it is learned. All ranks see all labels, and a sum of labels is exact: all take the same bits.

What a user's examples have in common (ingest.common) is pooled, and enters the first layers, once a group:

    forward ─► common f32[G, Fc, D] ─► partial f32[G, S] ─┐
            └► others f32[B, Fo, D] ─► partial f32[B, S] ─┴─► + ─► ⊕

All sub-operators are sums over fields, so this is the same sum; behind ⊕ every row is on its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ingest.common import Common, CommonFeatures
from ingest.features import Features
from ingest.pipeline import Pipeline
from kernels.errors import ConfigError
from kernels.layout import RowLayout
from kernels.rows import row_layout
from kernels.table import DynamicTable, FieldTables
from models.base import Columns, CTRModel, ModelConfig, prior_log_odds, role_slices, row_segments
from models.two_tower import TwoTowerModel
from trainer.collectives import Collectives
from trainer.dense import DenseAdam
from trainer.exchange import Exchange, GlobalBatch
from trainer.groups import Groups
from trainer.placement import place

F32 = NDArray[np.float32]

ITEM_CHUNK = 65_536
"""Items per round of `DesStep.item_vectors`, so that its memory does not grow with the number of items."""


@dataclass(frozen=True)
class StepResult:
    """What a step saw and predicted before it learned, the same on every rank.

    Attributes:
        logits: role → f32[B], of the weights before the update
        label: f32[B]
        loss: mean cross entropy that the step minimised, summed over roles; in the first step that of
            the logits after the bias was moved (see the module's docstring)
        rows: rows of each rank; row order is rank-major
    """

    logits: dict[str, F32]
    label: F32
    loss: float
    rows: tuple[int, ...] = field(default=())

    def own(self, rank: int) -> slice:
        """Where a rank's own rows are."""
        start = sum(self.rows[:rank])
        return slice(start, start + self.rows[rank])


@dataclass(frozen=True)
class _Part:
    """Rows, examples or groups, whose fields and dense features are computed together.

    leaves: role → values f32[n, F_part, D_model], leaves of the graph. dense: f32[n, Dd_part]. columns: which
    these are (None: all).
    """

    leaves: dict[str, Tensor]
    dense: Tensor | None
    columns: Columns | None = None

    def partial(self, role: str, model: CTRModel) -> Tensor:
        """Partial results f32[n, S]."""
        return model.partial(self.leaves[role], self.dense, self.columns)

    def grad(self) -> F32:
        """Gradient of the values f32[n, F_part, D], roles side by side."""
        grads = []
        for leaf in self.leaves.values():
            assert leaf.grad is not None, "every role's loss depends on its values"
            grads.append(leaf.grad.cpu().numpy())
        return grads[0] if len(grads) == 1 else np.concatenate(grads, axis=-1)


def model_configs(pipeline: Pipeline) -> dict[str, ModelConfig]:
    """Role → configuration, of the models that a pipeline has; raises ConfigError for what is none."""
    found = {"rank": pipeline.rank, "prerank": pipeline.prerank}
    configs: dict[str, ModelConfig] = {}
    for role, config in found.items():
        if isinstance(config, ModelConfig):
            configs[role] = config
        elif config is not None or role == "rank":
            raise ConfigError(f"Pipeline: {role}= must be a model such as models.DeepFM(), not {config!r}")
    return configs


class DesStep:
    """A rank's tables, networks and optimisers, and the step that trains them together with the other ranks.

    Attributes:
        tables: table name → this rank's tables
        models: role → network
        placement: which rank holds which field
    """

    tables: dict[str, DynamicTable]
    models: dict[str, CTRModel]

    def __init__(
        self, pipeline: Pipeline, *, rank: int, world: int, seed: int, collectives: Collectives | None = None
    ) -> None:
        configs = model_configs(pipeline)
        fields = pipeline.fields
        self.collectives = collectives or Collectives(rank, world)
        self.device = self.collectives.device
        self.placement = place([f.table for f in fields], world)
        self.own = self.placement.fields_of(rank)
        dense_names = tuple(pipeline.plan.dense_names)
        common = Common.of(pipeline)
        self.exchange = Exchange(self.placement, len(dense_names), self.collectives, common)
        self._columns = _sides(common, self.own, len(dense_names))
        self.layout: RowLayout = row_layout(row_segments(configs))
        self.slices = role_slices(configs)
        self.tables = {
            table: DynamicTable(self.layout, name=table, seed=seed)
            for table in dict.fromkeys(fields[f].table for f in self.own)
        }
        named = [(fields[f].name, fields[f].table) for f in self.own]
        self.front = self._forwarded = FieldTables(self.tables, named)
        self._grouped = FieldTables(self.tables, named, [f not in common.fields for f in self.own])
        self.models = {}
        for role, config in configs.items():
            try:
                model = config.build(
                    [f.name for f in fields],
                    [fields[f].name for f in self.own],
                    dense_names,
                    self.exchange.holds_dense,
                    seed,
                )
            except ValueError as error:
                raise ConfigError(f"Pipeline: {role}: {error}") from None
            self.models[role] = model.to(self.device)
        self.dense = DenseAdam(self.models, configs)
        self.rank = rank

    def step(self, features: Features | CommonFeatures, label: F32) -> StepResult:
        """Scores and then learns the batch that all ranks' examples make. Collective.

        Args:
            features: own examples, b rows with all fields, grouped by user or not; b may be 0 as long as it
                calls.
            label: f32[b] in {0, 1}.
        """
        batch = self.exchange(features, label)
        if not len(batch):
            return StepResult(
                {role: np.empty(0, np.float32) for role in self.models}, batch.label, 0.0, batch.rows
            )
        # 1 forward: own rows → sub-operators → ⊕ → the rest
        parts = self._parts(batch)
        logits = self._finish(parts, batch)
        # 2 backward: identical on every rank from the logits to ⊕, then local
        target = torch.from_numpy(batch.label).to(self.device)
        shift = self._first_shift(batch.label)
        losses = [
            binary_cross_entropy_with_logits(z + shift, target, reduction="sum") for z in logits.values()
        ]
        loss = torch.stack(losses).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        # 3 update: tables by the sum, networks by the mean
        self._forwarded.backward(*(part.grad() for part in parts))
        self.dense.step(len(batch))
        return StepResult(
            {role: z.detach().cpu().numpy() for role, z in logits.items()},
            batch.label,
            loss.item() / len(batch),
            batch.rows,
        )

    def _first_shift(self, label: F32) -> float:
        """Moves every bias by what the first batch's CTR says, and returns by how much; 0 in later steps."""
        if self.dense.steps:
            return 0.0
        clicks = float(label.sum(dtype=np.float64))
        shift = prior_log_odds(clicks, len(label) - clicks) - prior_log_odds()
        with torch.no_grad():
            for model in self.models.values():
                model.bias.add_(shift)
        return shift

    def _parts(self, batch: GlobalBatch) -> tuple[_Part, ...]:
        """The tables' values of the examples; where these are grouped, of the groups before."""
        dense = self._tensor(batch.dense)
        if batch.index is None:
            self._forwarded = self.front
            (values,) = self.front.forward(batch.offsets, batch.keys, len(batch))
            return (_Part(self._leaves(values), dense),)
        self._forwarded = self._grouped
        common, own = self._grouped.forward(batch.offsets, batch.keys, batch.groups, len(batch))
        return (
            _Part(self._leaves(common), self._tensor(batch.common), self._columns[0]),
            _Part(self._leaves(own), dense, self._columns[1]),
        )

    def _tensor(self, array: F32 | None) -> Tensor | None:
        return None if array is None else torch.from_numpy(array).to(self.device)

    def _leaves(self, values: F32) -> dict[str, Tensor]:
        """Role → its values f32[n, F, D_model], as leaves of the graph."""
        whole = torch.from_numpy(values).to(self.device)
        return {role: whole[..., at].contiguous().requires_grad_() for role, at in self.slices.items()}

    def _finish(self, parts: tuple[_Part, ...], batch: GlobalBatch) -> dict[str, Tensor]:
        """Role → logits f32[B]; the partial results of all roles cross in one ⊕."""
        partials = [parts[-1].partial(role, model) for role, model in self.models.items()]
        if batch.index is not None:
            groups = Groups(batch.index, batch.groups, self.device)
            shared = [parts[0].partial(role, model) for role, model in self.models.items()]
            partials = [groups.add(own, common) for own, common in zip(partials, shared, strict=True)]
        total = self.collectives.aggregate(
            partials[0] if len(partials) == 1 else torch.cat(partials, 1), "sum"
        )
        split = total.split([p.shape[1] for p in partials], dim=1)  # type: ignore[no-untyped-call]
        return {role: self.models[role].finish(part) for role, part in zip(self.models, split, strict=True)}

    @torch.no_grad()
    def item_vectors(self, features: Features) -> F32:
        """Pre-rank vectors f32[n, out] of n items, whose features every rank brings alike. Collective.

        Only the item tower's fields are looked at; items that are not stored get their initial rows.
        """
        model = self.models.get("prerank")
        if not isinstance(model, TwoTowerModel):
            raise ConfigError("Pipeline: item vectors need prerank=models.TwoTower(...)")
        parts = []
        for start in range(0, features.rows, ITEM_CHUNK):
            chunk = features.take(np.arange(start, min(start + ITEM_CHUNK, features.rows)))
            own = chunk.select_fields(self.own)
            (rows,) = self.front.infer(own.offsets, own.keys, own.rows)
            values = torch.from_numpy(rows).to(self.device)
            dense = torch.from_numpy(own.dense).to(self.device) if self.exchange.holds_dense else None
            partial = model.item.partial(values[..., self.slices["prerank"]], dense)
            parts.append(model.item.vector(self.collectives.all_reduce(partial, "items")).cpu().numpy())
        return (
            np.concatenate(parts) if parts else np.empty((0, model.item.mlp.weights[-1].shape[1]), np.float32)
        )

    def weights(self) -> dict[str, Tensor]:
        """Copies of this rank's network parameters, "<role>.<name>"; the replicated ones on rank 0 only."""
        return {n: t.cpu().clone() for n, t in self.dense.weights(shared=self.rank == 0).items()}

    def state_dense(self) -> dict[str, Tensor]:
        """`weights` with Adam's state; all ranks' dictionaries put together restore any number of ranks."""
        return {n: t.cpu().clone() for n, t in self.dense.state(shared=self.rank == 0).items()}

    def load_dense(self, state: Mapping[str, Tensor]) -> None:
        """Restores from all ranks' `state_dense` put together; raises MismatchError for another model's."""
        self.dense.load(state)

    def shared_checksum(self) -> int:
        """64-bit digest of the replicated parameters: equal on all ranks, or the replicas have drifted."""
        digest = hashlib.sha256()
        for role, model in self.models.items():
            for name, tensor in sorted(model.shared_state().items()):
                digest.update(f"{role}.{name}".encode() + tensor.cpu().numpy().tobytes())
        return int.from_bytes(digest.digest()[:8], "little", signed=True)


def _sides(common: Common, own: tuple[int, ...], dense_width: int) -> tuple[Columns, Columns]:
    """What of a rank's own fields, and of the dense features, is common, and what is not."""
    sides = []
    for side in (True, False):
        fields = (i for i, f in enumerate(own) if (f in common.fields) is side)
        dense = (d for d in range(dense_width) if (d in common.dense) is side)
        sides.append(Columns(tuple(fields), tuple(dense)))
    return sides[0], sides[1]
