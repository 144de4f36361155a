"""One synchronous training step over the ranks (DES Algorithm 1).

    exchange ─► read tables ─► partial ─► ⊕ ─► finish ─► logits (test, then train)
                    ▲            ▲                │
      tables learn ─┴─ networks ─┴─── backward ◄──┘

⊕ is run in one of two ways (`StepSettings.aggregate`); both are the one-process model:

    allreduce       every rank finishes all B samples and computes the same loss, so that replicated
                    parameters get the same gradient: nothing crosses on the way back
                    (`trainer.des.field_parallel`)
    reducescatter   every rank finishes its own samples; the gradients of their partial results go back to
                    the owners of the fields, those of replicated parameters are summed
                    (`trainer.des.sample_parallel`)

The loss of a role is binary cross entropy. Table rows see its *sum* over the batch: a key's gradient is that
of the samples it occurs in, whatever B is, which is what FTRL's and AdaGrad's per-coordinate rates are made
for. The networks' own parameters see its *mean*, as is usual with Adam.

Where clicks are rare, a bias would need hundreds of steps from the prior CTR to the log's, and every row
would meanwhile learn the bias' error. So the first batch, once scored, moves the bias to its own CTR before
it is learned. All ranks see all labels, and a sum of labels is exact: all take the same bits.

A batch whose gradients are not finite is scored, counted and not learned: no table and no network sees it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from livectr.ingest.common_features import Common, CommonFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.kernels.errors import ConfigError
from livectr.kernels.gpu_table.gpu_cache import CachedFields, GpuCache
from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.rows import row_layout
from livectr.kernels.table.table import DynamicTable, FieldTables
from livectr.models.base import CTRModel, Gathered, prior_log_odds, role_slices, row_segments
from livectr.models.precision import arithmetic_name, precision
from livectr.trainer import telemetry
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.configs import model_configs
from livectr.trainer.content.ams import ContentRequest, Features16, ams_of
from livectr.trainer.des.dense import DenseAdam
from livectr.trainer.des.exchange import Exchange, GlobalBatch
from livectr.trainer.des.field_parallel import FieldParallel
from livectr.trainer.des.measure import measure_batch
from livectr.trainer.des.networks import build_networks
from livectr.trainer.des.reading import Leaves, Reading
from livectr.trainer.des.result import StepResult, loss_of
from livectr.trainer.des.route import gathered, route
from livectr.trainer.des.sample_parallel import SampleParallel
from livectr.trainer.des.scores import all_gather_scores
from livectr.trainer.placement.exchange_cost import CostModel
from livectr.trainer.placement.placement import FieldPlacement, place
from livectr.trainer.step_settings import TRAVELS, FieldExchange, StepSettings
from livectr.trainer.tables.gpu_tables import GpuTables
from livectr.trainer.tables.tiers import Prefetched, Tiers

F32 = NDArray[np.float32]
LOG = logging.getLogger(__name__)

FIELD_EXCHANGE_KEY = "des.travel"
"""Name, in a checkpoint, of the number of ranks and every field's travel."""
BIASES_TRAINED_KEY = "des.trained"
"""Name, in a checkpoint before the first step, of that biases come from another run
(trainer.checkpoint.warm_start)."""


@dataclass(frozen=True)
class PreparedBatch:
    """A batch on its way into a step: what this rank has to do with it, its rows that are being read, and the
    content that it asks for."""

    batch: GlobalBatch
    prefetched: Prefetched | None
    content: Mapping[str, ContentRequest]


class DesStep:
    """A rank's tables, networks and optimisers, and the step that trains them together with the other ranks.

    Attributes:
        tables: table name → this rank's tables, those of the host; read them after a `flush`. Of one that is
            split by key, this rank's keys
        precision: arithmetic of the networks' products, a name of `models.precision.arithmetic_name`
        cache: their rows on the GPU; None where tables are in host memory, or this rank has none
        models: role → network of this rank's fields, with `finish`
        placement: which rank holds which field
        ams: the content that models want; None where they want none

    content: name → where the raw features of the pipeline's content are.
    """

    tables: dict[str, DynamicTable]
    models: dict[str, CTRModel]

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        rank: int,
        world: int,
        seed: int,
        collectives: Collectives | None = None,
        settings: StepSettings = StepSettings(),  # noqa: B008, frozen
        tiers: Tiers | None = None,
        gpu: GpuTables | None = None,
        placement: FieldPlacement | None = None,
        content: Mapping[str, Features16] = {},
    ) -> None:
        if gpu is not None and tiers is not None:
            raise ConfigError(
                "rows cannot lie on a GPU and on an SSD at once: leave out dram_bytes and spill, or set "
                "gpu_rows to 0, so that tables are in host memory"
            )
        self.configs = model_configs(pipeline)
        self.settings, self.seed, self.rank = settings, seed, rank
        self.collectives = collectives or Collectives(rank, world)
        self.device = self.collectives.device
        self.precision = arithmetic_name(settings.precision, self.device)
        self.fields = tuple(spec.name for spec in pipeline.fields)
        self.table_of = tuple(spec.table for spec in pipeline.fields)
        self.dense_names = tuple(pipeline.plan.dense_names)
        self.placement = placement or place(self.table_of, world)
        self.held = self.placement.held(self.table_of, rank)
        self._common = Common.of(pipeline)
        self.layout: RowLayout = row_layout(row_segments(self.configs), pipeline.row_values)
        self.slices = role_slices(self.configs)
        self.tiers = tiers
        new_table = DynamicTable if tiers is None else tiers.table
        self.tables = {
            table: new_table(self.layout, name=table, seed=seed)
            for table in dict.fromkeys(self.table_of[f] for f in self.held)
        }
        self.cache: GpuCache | None = None
        if gpu is not None:
            self.cache = gpu.cache(self.tables, pipeline.table_policies, self.device)
        fields = [(self.fields[f], self.table_of[f]) for f in self.held]
        self.front: FieldTables | CachedFields
        if self.cache is None:
            self.front = FieldTables(self.tables, fields)
        else:
            self.front = CachedFields(self.cache, fields)
        try:
            self._gathers = {role: config.gathers(self.fields) for role, config in self.configs.items()}
            self._gathered = gathered(self.configs, self.fields)
            self.ams = ams_of(
                pipeline.content,
                content,
                self.fields,
                self._gathered.content,
                seed,
                self.collectives,
                scatter=settings.aggregate == "reducescatter",
                common=self._common,
            )
            field_exchange = settings.field_exchange
            self._undecided = field_exchange == "auto" and settings.aggregate == "reducescatter" and world > 1
            self._loaded: Mapping[str, Tensor] | None = None
            self._started: Mapping[str, Tensor] = {}
            self._trained = False
            self._build(None if field_exchange == "auto" else self._travels(field_exchange))
        except ValueError as error:
            raise ConfigError(f"Pipeline: {error}") from None

    def _travels(self, field_exchange: FieldExchange | Mapping[str, FieldExchange]) -> list[FieldExchange]:
        """The forced travel of every field."""
        if isinstance(field_exchange, str):
            return [field_exchange] * len(self.fields)
        if unknown := sorted(set(field_exchange) - set(self.fields)):
            raise ConfigError(
                f"travel names {unknown[0]!r}, which is no field; fields: {', '.join(self.fields)}"
            )
        return [field_exchange.get(name, "partial") for name in self.fields]

    def _choose(self, features: Features | CommonFeatures) -> None:
        """Measures the first batch and takes the cheapest way of every field. Collective."""
        measured = measure_batch(self.exchange, features)
        if not measured.samples:
            return
        self._undecided = False
        split = self.placement.split_fields(self.table_of)
        self._build(self.cost.cheapest(measured, {*self.route.pooled, *self.route.sequences, *split}))
        if self._loaded is not None:
            self.dense.load(self._loaded)
        self.dense.start_from(self._started)
        self._loaded, self._started = None, {}

    @property
    def cost(self) -> CostModel:
        """Bytes of a step by what travels."""
        partial = sum(model.partial_size for model in self.models.values())
        width = 2 if self.collectives.wire == "bf16" else 4
        return CostModel(self.placement.world, partial, self.layout.dim, self._parameters, width)

    def _build(self, field_exchange: Sequence[FieldExchange] | None) -> None:
        """Networks, optimiser and ways of the fields."""
        self.route = route(
            self.placement,
            self.fields,
            self.table_of,
            self._gathered,
            mode=self.settings.aggregate,
            field_exchange=field_exchange,
            common=self._common,
        )
        width = len(self.dense_names)
        networks = build_networks(
            self.configs, self.route, self.rank, self.fields, self.dense_names, self.seed, self.device
        )
        self.models, self.near_models = networks.far, networks.near
        self._parameters = networks.parameters
        self.exchange = Exchange(self.route, width, self.collectives)
        self.reading = Reading(self.tables, self.fields, self.route, self.rank, self.device, self.cache)
        self._far = FieldParallel(self.route, self.models, self.slices, width, self.collectives)
        self._near = SampleParallel(
            self.route, self.near_models, self.slices, width, self.layout.dim, self.collectives
        )
        content = {} if self.ams is None else self.ams.contents
        sub_models = {name: (one.config, one.network) for name, one in content.items()}
        self.dense = DenseAdam(self.models, self.configs, self.near_models, sub_models)

    def step(self, features: Features | CommonFeatures, label: F32) -> StepResult:
        """Scores and then learns the batch that all ranks' examples make. Collective.

        Args:
            features: own examples, b rows with all fields, grouped by user or not; b may be 0 as long as it
                calls.
            label: f32[b] in {0, 1}.
        """
        return self.learn(self.prepare(features, label))

    def prepare(self, features: Features | CommonFeatures, label: F32) -> PreparedBatch:
        """The first half of `step`, which another batch's `learn` may follow: keys go to their ranks, and
        rows that are not in memory begin to be read. Collective."""
        if not ((label == 0) | (label == 1)).all():
            wrong = label[(label != 0) & (label != 1)][0]
            raise ValueError(f"labels must be 0 or 1, not {wrong}")
        if self._undecided:
            self._choose(features)
        batch = self.exchange(features, label)
        prefetched = None if self.tiers is None else self.tiers.prefetch(self.reading.keys(batch))
        return PreparedBatch(batch, prefetched, {} if self.ams is None else self.ams.prepare(features))

    def learn(self, prepared: PreparedBatch) -> StepResult:
        """The second half of `step`, in the order of `prepare`. Collective."""
        if not len(prepared.batch):
            none = np.empty(0, np.float32)
            return StepResult(dict.fromkeys(self.models, none), none, 0.0, prepared.batch.rows)
        if self.tiers is not None and prepared.prefetched is not None:
            self.tiers.promote(prepared.prefetched)
        with precision(self.settings.precision):
            return self._learn(prepared.batch, prepared.content)

    def flush(self) -> None:
        """Brings the host's tables up to date, before they are marked or read."""
        if self.cache is not None:
            self.cache.flush()

    def drop(self) -> None:
        """To be called when the host's tables were filled from elsewhere: they are what counts."""
        if self.cache is not None:
            self.cache.drop()

    def erase(self, table: str, keys: NDArray[np.int64]) -> int:
        """Forgets keys of an own table wherever they lie; returns how many were there."""
        return self.tables[table].erase(keys) if self.cache is None else self.cache.erase(table, keys)

    def _learn(self, batch: GlobalBatch, content: Mapping[str, ContentRequest]) -> StepResult:
        self._set_rates()
        # 1 forward: rows → sub-operators → ⊕ → the rest, of all samples or of the own ones
        leaves = self.reading.forward(batch)
        logits = self._forward(leaves, batch, content)
        scores = self._scores(logits, batch)
        # 2 backward
        shift = 0.0 if self.dense.steps or self._trained else self._first_shift(scores()[1])
        target = torch.from_numpy(batch.label).to(self.device)
        losses = [
            binary_cross_entropy_with_logits(z + shift, target, reduction="sum") for z in logits.values()
        ]
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        # 3 update: tables by the sum, networks by the mean
        if self._agree(leaves):
            self.reading.backward(leaves)
            self.dense.step(len(batch))
        else:
            self._skip(shift)
        if self.tiers is not None:
            self.tiers.evict()
        told, labels = scores()
        return StepResult(told, labels, loss_of(told, labels, shift), batch.rows)

    def _set_rates(self) -> None:
        """Every role's learning rates, as its schedule has them after so many batches."""
        for role, config in self.configs.items():
            factor = config.schedule.factor(self.dense.steps)
            self.dense.set_rate(role, factor)
            for table in self.tables.values():
                table.set_rate(factor, f"{role}.")
        for name, one in ({} if self.ams is None else self.ams.contents).items():
            self.dense.set_rate(f"content.{name}", one.config.schedule.factor(self.dense.steps))

    def _forward(
        self, leaves: Leaves, batch: GlobalBatch, content: Mapping[str, ContentRequest]
    ) -> dict[str, Tensor]:
        """Role → logits of all samples f32[B], or of the own ones f32[b]."""
        vectors = {} if self.ams is None else self.ams.forward(content)
        partial = self._far.partial(leaves, batch)
        if self.route.scatter:
            mine = None if partial is None else torch.cat(partial, dim=1)
            found, whole = self._near.finish(mine, leaves, self._far.vectors(leaves), batch)
        else:
            found, whole = self._far.finish(partial, leaves, batch)
        number = {name: f for f, name in enumerate(self.fields)}

        def of(role: str) -> Gathered | None:
            wanted = self._gathers[role]
            seen = whole.of(wanted, self.slices[role], number)
            names = wanted.content
            return replace(seen, content={n: vectors[n] for n in names}) if seen and names else seen

        return {
            role: model.finish(part, of(role))
            for (role, model), part in zip(self.models.items(), found, strict=True)
        }

    def _scores(
        self, logits: Mapping[str, Tensor], batch: GlobalBatch
    ) -> Callable[[], tuple[dict[str, F32], F32]]:
        """What tells, on every rank, role → logits f32[B], and labels f32[B]; they travel meanwhile."""
        own = {role: z.detach().cpu().numpy() for role, z in logits.items()}
        if not self.route.scatter:
            return lambda: (own, batch.label)
        return all_gather_scores(own, batch.label, batch.rows, self.collectives)

    def _first_shift(self, label: F32) -> float:
        """Moves every bias by what the first batch's CTR says, and returns by how much."""
        clicks = float(label.sum(dtype=np.float64))
        shift = prior_log_odds(clicks, len(label) - clicks) - prior_log_odds()
        self._move_bias(shift)
        return shift

    @torch.no_grad()
    def _move_bias(self, shift: float) -> None:
        for model in self.models.values():
            model.bias.add_(shift)

    def _agree(self, leaves: Leaves) -> bool:
        """Whether all ranks may learn the batch: all gradients are finite. Sums the gradients of replicated
        parameters over the ranks where each has those of its own samples."""
        against = 0.0 if leaves.finite and self.dense.finite else 1.0
        if self.route.scatter:
            return self.dense.reduce(lambda flat: self.collectives.all_reduce(flat, "networks"), against) == 0
        if self.ams is not None:
            return (
                self.dense.reduce_content(
                    lambda flat: self.collectives.all_reduce(flat, "sub-models"), against
                )
                == 0
            )
        return float(self.collectives.all_reduce(torch.tensor([against]), "check")) == 0

    def _skip(self, shift: float) -> None:
        self._move_bias(-shift)
        self.dense.clear()
        telemetry.SKIPPED_BATCHES.inc()
        LOG.warning(
            "a batch was not learned: its gradients are not finite numbers (look at its dense features)"
        )

    def weights(self) -> dict[str, Tensor]:
        """Copies of this rank's network parameters, "<role>.<name>"; the replicated ones on rank 0 only."""
        return {n: t.cpu().clone() for n, t in self.dense.weights(shared=self.rank == 0).items()}

    def state_dense(self) -> dict[str, Tensor]:
        """`weights` with Adam's state, and the ways of the fields; all ranks' dictionaries put together
        restore any number of ranks."""
        state = {n: t.cpu().clone() for n, t in self.dense.state(shared=self.rank == 0).items()}
        if self.rank == 0 and self.route.scatter and not self._undecided:
            ways = [self.placement.world, *(TRAVELS.index(way) for way in self.route.field_exchange)]
            state[FIELD_EXCHANGE_KEY] = torch.tensor(ways, dtype=torch.int16)
        if self.rank == 0 and self._trained and not self.dense.steps:
            state[BIASES_TRAINED_KEY] = torch.tensor(1)
        return state

    def load_dense(self, state: Mapping[str, Tensor]) -> None:
        """Restores from all ranks' `state_dense` put together; raises MismatchError for another model's.

        With as many ranks as before, fields travel as they did, so that a resumed run has the same bits.
        """
        ways = state[FIELD_EXCHANGE_KEY].tolist() if FIELD_EXCHANGE_KEY in state else []
        if self._undecided and ways and ways[0] == self.placement.world:
            self._build([TRAVELS[way] for way in ways[1:]])
            self._undecided = False
        self._loaded = state if self._undecided else None
        self._trained = BIASES_TRAINED_KEY in state
        self.dense.load(state)

    def start_from(self, weights: Mapping[str, Tensor], *, trained: bool) -> None:
        """Begins with those of its parameters that are named "<role>.<name>", not learned further so far.

        trained: the biases are among them, so that the first batch does not move them.
        """
        self._trained = trained
        self._started = weights if self._undecided else {}
        self.dense.start_from(weights)

    def shared_checksum(self) -> int:
        """64-bit digest of the replicated parameters: equal on all ranks, or the replicas have drifted."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.dense.replicated().items()):
            digest.update(name.encode() + tensor.cpu().numpy().tobytes())
        return int.from_bytes(digest.digest()[:8], "little", signed=True)
