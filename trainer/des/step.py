"""One synchronous training step over N ranks: keys → rows → partials → logits → gradients.

    keys        all-to-all: every rank gets its own fields' keys of all B examples      des/exchange.py
    rows        its tables give the embedding rows, leaves of the autograd graph        des/reading.py
    partials    sub-operators M_j(W_i, X_i) of its fields, f32[B, S]                    des/partials.py
                ⊕ sums them over the ranks: R = ⊕ r_i (DES eq. 1)                       des/strategy.py
    logits      the rest of the network 𝓕(f_1, …, f_m), f32 for each example            models/
    gradients   back to the rows and networks, which then learn                         des/dense.py

These are the lines of DES Algorithm 1 (§3.2.2). ⊕ has two strategies (`StepSettings.aggregate`); both equal
the model of one process:

    allreduce       field-parallel: every rank finishes all B examples and computes the same loss. Replicated
                    parameters get equal gradients, and backward needs no collective (the paper)
    reducescatter   sample-parallel: every rank finishes its own b examples. Gradients of partial results go
                    back to the owners of the fields; those of replicated parameters are all-reduced

The loss of a role is binary cross entropy, or what `label_join(delayed=…)` asks for (models.losses), plus
the model's auxiliary loss (`CTRModel.finish_with_loss`). A caller may give targets and weights (`Lesson`).
Rows learn from the loss' *sum* over the batch: a key's gradient is that of its examples, whatever B is, as
the per-coordinate rates of FTRL and AdaGrad expect. Networks learn from its *mean*, as is usual with Adam.

The first batch, once scored, moves the biases to its own CTR before it is learned (`trainer.des.biases`).
First and second order of a small batch are learned example by example (`trainer.des.online`).

A batch whose gradients are not finite is scored, counted and not learned: no table and no network changes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from livectr.ingest.common_features import FEW, AnyFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.kernels.network.small_steps import Lessons, OpenBlock
from livectr.kernels.table.from_zero import FromZero, start_at_zero
from livectr.models.base import CTRModel, ModelConfig
from livectr.models.configs import model_configs
from livectr.models.layers import index_on
from livectr.models.losses import LATE, LOSSES, Lesson, Loss, weighted_cross_entropy
from livectr.models.multi_task import TaskModel, TrunkModel
from livectr.models.precision import arithmetic_name, precision
from livectr.system.errors import ConfigError
from livectr.trainer import telemetry
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.content.ams import ContentRequest, Features16, ams_of
from livectr.trainer.des.batch import GlobalBatch, PreparedBatch
from livectr.trainer.des.biases import (
    BIASES_TRAINED_KEY,
    ENOUGH,
    SURE_KEY,
    first_shift,
    fitted_shift,
    inertia,
    move_biases,
)
from livectr.trainer.des.dense import DenseAdam, Squares
from livectr.trainer.des.exchange_choice import ExchangeChoice, exchange_state, gather_state, saved_exchange
from livectr.trainer.des.from_zero import from_zero_state, saved_from_zero
from livectr.trainer.des.online import OnlineOrders
from livectr.trainer.des.reading import Leaves
from livectr.trainer.des.result import StepResult, curvatures, in_loss, in_loss_by, loss_of, own_lessons
from livectr.trainer.des.route import Route, gathers_of
from livectr.trainer.des.routed import Routed
from livectr.trainer.des.skipped import Skipped
from livectr.trainer.des.small_batch import MOST, Others, SmallBatches, Taught
from livectr.trainer.des.small_blocks import SmallBlocks
from livectr.trainer.des.spec import StepSpec
from livectr.trainer.des.strategy import Strategy
from livectr.trainer.des.values import ValueHeads
from livectr.trainer.host_copies import HostCopies, to_device
from livectr.trainer.placement.placement import FieldPlacement
from livectr.trainer.step_settings import FieldExchange, StepSettings
from livectr.trainer.tables.rank_tables import RankTables, Tier

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
LOG = logging.getLogger(__name__)

Teach = Callable[[Mapping[str, Tensor]], Mapping[str, Lesson]]
"""Function of the logits f32[B] of every role, from before a batch is learned; returns role → lesson of the B
rows, all rank-major."""
TeachPart = Callable[[Mapping[str, Tensor], slice], Mapping[str, Lesson]]
"""`Teach` of a batch of a block, the slice of its rows."""


class DesStep:
    """A rank's tables, networks and optimizers, and the step that trains them with the other ranks.

    Args:
        pipeline: fields, models and table policies.
        seed: of initial rows and parameters.
        collectives: of this rank; None: of a single rank.
        settings: how a step is run.
        tier: SSD below DRAM, GPU above it, or both; None: all rows in DRAM.
        placement: rank of each field; None: tables round-robin.
        content: name → raw features of the pipeline's content.
        models: role → configuration; None: the models of the pipeline.

    Raises:
        ConfigError: the pipeline, its models or these settings do not fit each other.

    Attributes:
        spec: models, fields, rows and settings.
        storage: host tables of this rank, with their tiers
        tables: name → host table of this rank; read it after `storage.flush`. Of a table that is
            split by key, it has this rank's keys
        precision: arithmetic of the networks' products, a name of `models.precision.arithmetic_name`
        ams: content that models read; None where they read none
        choice: decides the exchange of every field
        routed: networks, optimizer and collectives for this exchange
        small: compiled networks of batches of at most `small_batch.MOST` examples; None: torch's step learns
            these, too
        blocks: steps of many small batches in one call; None: they are learned one by one
        copies: of logits and checks from the networks' device, and the waits for them
        skipped: batches in a row, up to the newest, that were not learned
        ended: long stretches of such batches that a learned batch has ended; `trainer.unlearned` takes them
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        seed: int,
        collectives: Collectives | None = None,
        settings: StepSettings = StepSettings(),  # noqa: B008, frozen
        tier: Tier = None,
        placement: FieldPlacement | None = None,
        content: Mapping[str, Features16] = {},
        models: Mapping[str, ModelConfig] | None = None,
    ) -> None:
        self.collectives = self._ahead = collectives or Collectives()
        self.rank, self.device = self.collectives.rank, self.collectives.device
        self.copies = HostCopies(self.device)
        given = pipeline.example_weights, pipeline.shown
        taught = any(each is not None for each in given) or bool(pipeline.targets)
        self._loss: Loss = weighted_cross_entropy if taught else LOSSES[pipeline.log.delayed]
        late_labels = bool(pipeline.log.late_labels)
        self._late = late_labels or LOSSES[pipeline.log.delayed] is weighted_cross_entropy
        self._again = bool(pipeline.log.more_labels) and not self._late
        self._labels = (0.0, 1.0, LATE) if pipeline.log.provisional else (0.0, 1.0)
        self.precision = arithmetic_name(settings.precision, self.device)
        configs = model_configs(pipeline) if models is None else models
        spec = StepSpec.of(
            pipeline, configs, placement, settings, seed=seed, rank=self.rank, world=self.collectives.world
        )
        self.spec = spec
        names = tuple(dict.fromkeys(spec.table_of[f] for f in spec.held))
        self.storage = RankTables(names, spec.layout, seed, tier, pipeline.table_policies, self.device)
        self.tables = self.storage.tables
        self.front = self.storage.front([(spec.fields[f], spec.table_of[f]) for f in spec.held])
        self._values = ValueHeads(spec.values)
        self._online = OnlineOrders(
            {role: config for role, config in spec.configs.items() if role not in self._values},
            dict(zip(spec.fields, spec.table_of, strict=True)),
            spec.placement,
            len(spec.fields) + len(spec.dense_names),
            spec.common,
            self.collectives,
            exact=spec.layout.values == "fp32",
            settles=self._late,
        )
        self.skipped = Skipped()
        self.ended: list[Skipped] = []
        self._biases_trained = False
        self._sure = dict.fromkeys(spec.configs, 0)
        self._from_zero: frozenset[FromZero] = frozenset()
        try:
            content_fields = gathers_of(spec.configs, spec.fields).content
            self.ams = ams_of(
                pipeline.content,
                content,
                {f: name for f, name in enumerate(spec.fields) if name in content_fields},
                seed,
                self.collectives,
                scatter=settings.aggregate == "reducescatter",
                common=spec.common,
            )
            self.choice = ExchangeChoice(spec, self.collectives.world)
            self._route_by(self.choice.first())
        except ValueError as error:
            raise ConfigError(f"Pipeline: {error}") from None
        self.choice.begun(self.route)

    @property
    def models(self) -> dict[str, CTRModel]:
        """Role → network of this rank's field-parallel fields, with `finish`."""
        return self.routed.networks.field_parallel

    @property
    def dense(self) -> DenseAdam:
        """Optimizer of the networks."""
        return self.routed.dense

    @property
    def route(self) -> Route:
        """Exchange of each field."""
        return self.routed.route

    def _route_by(self, field_exchange: Sequence[FieldExchange] | None) -> None:
        """Build networks, optimizer and collectives for this exchange of every field."""
        self.routed = Routed.build(
            self.spec, self.storage, self.ams, self.copies, self.collectives, self._ahead, field_exchange
        )
        self._online.attach(self.routed.dense)
        on_host = self.storage.cache is None
        self.small = SmallBatches.of(self.spec, self.routed, self.collectives) if on_host else None
        self.blocks = SmallBlocks.of(self.spec, self.routed, self.small, self._online)

    def _choose(self, features: AnyFeatures) -> None:
        """Route by the exchange that a batch chooses, and keep what the networks have learned. Collective."""
        chosen = self.choice.by_batch(self.routed, features)
        if chosen is not None:
            learned = gather_state(self.collectives, self.state_dense())
            self._route_by(chosen)
            self.choice.decided(chosen)
            self.dense.load(learned)

    # ── a step ──

    def step(self, features: AnyFeatures, label: F32) -> StepResult:
        """Score and then learn the batch that all ranks' examples make. Collective.

        Args:
            features: own b examples with all F fields, grouped by user or not, on the host or a device. b may
                be 0: every rank calls.
            label: f32[b] in {0, 1}; `models.losses.LATE` is a late positive, if the pipeline has them.
        """
        return self.learn(self.prepare(features, label))

    def run_ahead(self) -> None:
        """Give `prepare` connections of its own: another thread may call it beside `learn`. Collective.

        It may not with tables on SSD, nor while `choice.undecided`.
        """
        self._ahead = self.collectives.apart()
        self.routed.exchange.collectives = self._online.ahead = self._ahead
        if self.ams is not None:
            self.ams.ahead = self._ahead

    def prepare(self, features: AnyFeatures, label: F32, sequence: I64 | None = None) -> PreparedBatch:
        """Send keys to their ranks and start to read rows that are not in memory; first half of `step`.

        The `learn` of an earlier batch may follow. Collective.

        Args:
            features: see `step`.
            label: see `step`.
            sequence: i64[B]; sequence[i] is the row, in rank-major order, of the i-th example in the global
                sequence. None: the order of the rows.
        """
        self._check(label)
        if self.choice.undecided:
            self._choose(features)
        content = {} if self.ams is None else self.ams.prepare(features)  # first: a thread reads meanwhile
        routed, storage = self.routed, self.storage
        batch = routed.exchange(features, label)
        prefetched = None if storage.tiers is None else storage.prefetch(routed.reading.keys(batch))
        online = None
        if self._online and storage.cache is None and 0 < len(batch) <= self.spec.settings.online:
            online = self._online.prepare(features, label, batch.rows, sequence)
        return PreparedBatch(batch, prefetched, content, online)

    def _check(self, label: F32) -> None:
        """Raise ValueError for a label that the pipeline does not have."""
        if len(wrong := label[~np.isin(label, self._labels)]):
            raise ValueError(f"labels must be 0 or 1, not {wrong[0]}")

    def prefetch(self, prepared: PreparedBatch) -> None:
        """Find a batch's keys on the GPU and bring its cold rows there, while the batch before it is learned.

        The `learn` of that batch follows. Changes no result; not collective.
        """
        self.routed.reading.prefetch(prepared.batch)

    def learn(self, prepared: PreparedBatch, teach: Teach | None = None) -> StepResult:
        """Score and learn a prepared batch; second half of `step`, in the order of `prepare`. Collective.

        Args:
            prepared: batch of `prepare`.
            teach: gives targets and weights in place of the labels; None: the pipeline's loss of the labels.
        """
        if not len(prepared.batch):
            return StepResult.empty(self.models, prepared.batch.rows)
        self.storage.promote(prepared.prefetched)
        if self.small is not None and len(prepared.batch) <= MOST:
            if self.small.others is None:
                return self._learn_small(self.small, prepared, prepared.batch, teach)
            with precision("fp32", products=self.spec.settings.library):
                return self._learn(prepared, prepared.batch, teach, self.small)
        settings = self.spec.settings
        with precision(settings.precision, products=settings.library):
            return self._learn(prepared, prepared.batch, teach)

    def takes_block(self, features: AnyFeatures, bounds: I64) -> bool:
        """Tell if `learn_block` learns these; False: `step` has to learn each batch.

        Args:
            features: see `learn_block`.
            bounds: see `learn_block`.
        """
        begun = (self.dense.steps or self._biases_trained) and not (self._again and 0 in self._sure.values())
        if self.blocks is None or not isinstance(features, Features) or not begun:
            return False
        return self.blocks.constant(len(bounds) - 1)

    def learn_block(
        self, features: AnyFeatures, label: F32, bounds: I64, teach: TeachPart | None = None
    ) -> StepResult | None:
        """Score and learn batches one after the other, by compiled calls; None: `step` has to learn each.

        Args:
            features: n examples.
            label: f32[n], as of `prepare`.
            bounds: int64[P + 1], bounds of the batches.
            teach: see `learn`; without it, all batches are learned in one call.
        """
        blocks = self.blocks
        if blocks is None or not self.takes_block(features, bounds):
            return None
        if teach is None and self._loss is weighted_cross_entropy:
            raise TypeError("this loss needs lessons")
        assert isinstance(features, Features)
        self._check(label)
        if not len(label):
            return StepResult.empty(self.models, (0,))
        self._set_rates()
        scores = np.empty((len(blocks.roles), len(label)), np.float32)
        logits, none = dict(zip(blocks.roles, scores, strict=True)), dict.fromkeys(blocks.roles, 0.0)
        block, part = blocks.open(features, label, bounds, scores), 0
        while part < len(bounds) - 1:
            if teach is not None:
                self._learn_part(blocks, block, part, teach, logits)
                part += 1
                continue
            following, learned = blocks.learn(block, part)
            if learned:
                self._end_stretch()
            if learned < np.count_nonzero(np.diff(bounds[part : following + 1])):  # the last is not finite
                self._skip(
                    none,
                    {role: z[slice(*bounds[following - 1 : following + 1])] for role, z in logits.items()},
                )
            part = following
        target = np.minimum(label, np.float32(1))
        return StepResult(logits, target, loss_of(logits, target, none), (len(label),))

    def _learn_part(
        self, blocks: SmallBlocks, block: OpenBlock, part: int, teach: TeachPart, logits: Mapping[str, F32]
    ) -> None:
        """`_learn_small` of a batch of a block; its scores come into `logits`."""
        rows = slice(*block.bounds[part : part + 2].tolist())
        if rows.start == rows.stop:
            return
        before = dict(zip(blocks.roles, block.score(part), strict=True))
        lessons = self._lessons(before, lambda scored: teach(scored, rows))
        shift, sure = self._shifts(lambda: (before, block.label[rows]), lessons, frozenset())
        held = self._inertia(lessons, sure)
        learned = blocks.teach(
            block,
            part,
            Lessons(
                np.stack([lessons[role].target.numpy() for role in blocks.roles]),
                np.stack([lessons[role].factor.numpy() for role in blocks.roles]),
                np.stack([in_loss_by(lessons[role], shift[role]) for role in blocks.roles]),
                np.array([held[role] for role in blocks.roles]),
                self._late,
            ),
        )
        if learned:
            self._sure = sure
            self._end_stretch()
        else:
            self._skip(shift, {role: z[rows] for role, z in logits.items()})

    @property
    def together(self) -> int:
        """Number of examples that a block may have: they take some tens of milliseconds."""
        return FEW if self.blocks is None else self.blocks.most

    def _learn(
        self,
        prepared: PreparedBatch,
        batch: GlobalBatch,
        teach: Teach | None,
        small: SmallBatches | None = None,
    ) -> StepResult:
        """Learn a batch by torch; roles of which `small` has networks, by compiled calls."""
        self._set_rates()
        reading, strategy, dense = self.routed.reading, self.routed.strategy, self.routed.dense
        others = None if small is None else small.others
        models = self.models if others is None else others.models
        leaves = reading.forward(batch)  # 1 keys → rows
        # 2 rows → partials → logits, of all examples or of own examples
        label = to_device(batch.label, self.device)
        self._online.announce(prepared.online)
        logits, losses = self._forward(leaves, batch, prepared.content, label, others)
        scored, roles = self.copies.begin(*logits.values()), tuple(logits)
        values = np.empty(0, np.float32) if small is None else reading.values(leaves, batch)
        compiled = {} if small is None else small.forward(values, batch)

        def every() -> dict[str, F32]:
            found = compiled | dict(zip(roles, scored(), strict=True))
            return {role: found[role] for role in self.models}

        scores = strategy.scores(every, batch)
        # 3 logits → gradients
        lessons = self._lessons(scores()[0], teach) if teach is not None else None
        begun: dict[str, float] = {}
        if self._values and lessons is not None:
            values_of = {role: int(np.count_nonzero(lessons[role].weight)) for role in self.spec.values}
            lessons, begun = self._values.begin(lessons, self.models, self._sure)
        passed, online = None, prepared.online
        still = self._online.with_bias if online is not None else frozenset[str]()
        shift, sure = self._shifts(scores, lessons, still, begun)
        if self._values and lessons is not None:
            sure |= {role: self._sure[role] + count for role, count in values_of.items()}
        if online is not None:
            passed = self._online.learn(online, reading.host, scores()[0], dense.steps, shift, lessons)
            logits = passed.moved(logits, sum(batch.rows[: self.rank]))
        own = own_lessons(lessons or {}, batch.rows, self.rank, len(label), self.device)
        losses += [
            self._values.losses.get(role, self._loss)(z + shift[role], own.get(role, label))
            for role, z in logits.items()
        ]
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        # 4 gradients → rows by the sum, networks by the mean, if they are finite on all ranks
        sums, largest = torch.stack([*leaves.sums(), *dense.sums()]), self._largest(batch, models)
        squares: dict[str, Squares] = {}
        if passed is not None:
            squares = self._squares(batch, models, passed.logits, scores()[1], lessons, still)
        sent = []
        if largest is not None and self.route.scatter:  # else they are of all examples
            sent = [torch.cat([largest, *(of_role.by_feature for of_role in squares.values())])]
        finite, *shares = self.copies.begin(torch.isfinite(sums).all(), *sent)()  # the wait for logits, too
        reduced = strategy.reduce_gradients(dense)
        before, labels = scores()
        all_logits = before if passed is None else passed.logits
        first = self._online.roles if passed is not None else frozenset[str]()
        sound = bool(finite)
        if small is not None:
            gradient, whole = small.backward(Taught(all_logits, shift, labels, lessons, first), values)
            reading.add(leaves, gradient, batch)
            sound &= whole
        learned, most = self._agree(sound, *shares)
        if learned:
            if passed is not None:
                self._online.store(passed, reading.host)
                leaves.clear(self._online.columns(self.spec.slices))
            reading.backward(leaves)  # while the networks' gradients are summed
        reduced()
        if learned:
            if passed is not None:
                self._online.store_dense(passed)
            if most is not None and largest is not None:
                width = len(largest)
                largest = to_device(most[:, :width].max(0), self.device)
                summed = np.split(most[:, width:].sum(0), len(squares)) if squares else ()
                squares = {
                    role: replace(of_role, by_feature=to_device(part, self.device))
                    for (role, of_role), part in zip(squares.items(), summed, strict=True)
                }
            curvature = self._curvatures(all_logits, shift, lessons, sure)
            if small is not None:
                small.update(len(batch), curvature, first, settles=self._late, still=still)
            moved = dense.step(
                len(batch), curvature, largest, settles=self._late, still=still, squares=squares
            )
            self._move_biases(moved, still & models.keys())
            self._sure = sure
            self._end_stretch()
        else:
            self._skip(shift, all_logits)
        self.storage.evict()
        measured = {role: z for role, z in all_logits.items() if role not in self._values}
        return StepResult(all_logits, labels, loss_of(measured, labels, shift), batch.rows)

    def _learn_small(
        self, small: SmallBatches, prepared: PreparedBatch, batch: GlobalBatch, teach: Teach | None
    ) -> StepResult:
        """`_learn` of a small batch, by compiled calls."""
        if teach is None and self._loss is weighted_cross_entropy:
            raise TypeError("this loss needs lessons")  # else LATE would teach a positive
        self._set_rates()
        reading, online = self.routed.reading, prepared.online
        values = reading.read(batch)  # 1 keys → rows
        self._online.announce(online)
        before = small.forward(values, batch)  # 2 rows → partials → logits
        label = np.minimum(batch.label, np.float32(1))
        # 3 logits → gradients
        lessons = self._lessons(before, teach) if teach is not None else None
        still = self._online.with_bias if online is not None else frozenset[str]()
        shift, sure = self._shifts(lambda: (before, label), lessons, still)
        passed, logits = None, before
        if online is not None:
            passed = self._online.learn(online, reading.host, before, self.dense.steps, shift, lessons)
            logits = passed.logits
        first = self._online.roles if online is not None else frozenset()
        gradient, finite = small.backward(Taught(logits, shift, label, lessons, first), values)
        # 4 gradients → rows by the sum, networks by the mean, if they are finite on all ranks
        if self.collectives.world > 1:
            finite, _ = self._agree(finite)
        if finite:
            if passed is not None:
                self._online.store(passed, reading.host)
            reading.learn(gradient, batch)
            if passed is not None:
                self._online.store_dense(passed)
            curvature = self._curvatures(logits, shift, lessons, sure)
            small.update(len(batch), curvature, first, settles=self._late, still=still)
            self._sure = sure
            self._end_stretch()
        else:
            self._skip(shift, logits)
        self.storage.evict()
        return StepResult(logits, label, loss_of(logits, label, shift), batch.rows)

    def _largest(self, batch: GlobalBatch, roles: Collection[str]) -> Tensor | None:
        """Largest |x| f32[Dd] of this rank's dense features; None: no first order of these roles has them."""
        if not self.dense.has_numbers(roles):
            return None
        common, width = self.spec.common.dense, len(self.spec.dense_names)
        own = tuple(d for d in range(width) if d not in common)
        found = torch.zeros(width, device=self.device)
        for places, x in ((common, batch.common), (own, batch.dense)):
            if x is not None and x.shape[0] and places:
                part = x if isinstance(x, Tensor) else to_device(x, self.device)
                most = torch.linalg.vector_norm(part, math.inf, dim=0)
                whole = len(places) == width
                found = most if whole else found.index_copy(0, index_on(places, self.device), most)
        return found

    def _squares(
        self,
        batch: GlobalBatch,
        models: Collection[str],
        logits: Mapping[str, F32],
        label: F32,
        lessons: Mapping[str, Lesson] | None,
        still: frozenset[str],
    ) -> dict[str, Squares]:
        """Squared gradients of those of the roles `still` that have weights of dense features on this rank.

        `by_feature` is of own examples where a rank finishes only these.
        """
        found: dict[str, Squares] = {}
        own = slice(sum(batch.rows[: self.rank]), sum(batch.rows[: self.rank + 1]))
        rows, group_of = (own, batch.own_group_of) if self.route.scatter else (slice(None), batch.group_of)
        common, width = self.spec.common.dense, len(self.spec.dense_names)
        places = common, tuple(d for d in range(width) if d not in common)
        for role in models:
            if role not in still or not self.dense.has_numbers({role}):
                continue
            lesson = None if lessons is None else lessons[role]
            z = logits[role] if lesson is None else in_loss(logits[role], lesson)
            target = label if lesson is None else np.minimum(lesson.target.numpy(), np.float32(1))
            slope = (1 / (1 + np.exp(-z)) - target) * (1 if lesson is None else lesson.factor.numpy())
            square = np.square(slope, dtype=np.float32)
            by_feature = torch.zeros(width, device=self.device)
            for at, x, group in zip(places, (batch.common, batch.dense), (group_of, None), strict=True):
                if x is not None and x.shape[0] and at:
                    of_rows = square[rows]
                    weight = of_rows if group is None else np.bincount(group, of_rows, len(x))
                    part = x if isinstance(x, Tensor) else to_device(x, self.device)
                    summed = to_device(weight.astype(np.float32), self.device) @ part
                    by_feature = by_feature.index_copy(0, index_on(at, self.device), summed)
            found[role] = Squares(float(square.sum()), by_feature)
        return found

    def _move_biases(self, moved: Mapping[str, Tensor], roles: Collection[str]) -> None:
        """Take back from biases what dense features have moved the mean of all logits by. Collective."""
        if not self.spec.dense_names or not roles:
            return
        order = [role for role in self.models if role in roles]
        changes = torch.stack([moved.get(role, torch.zeros((), device=self.device)) for role in order])
        if self.collectives.world > 1 and not self.route.scatter:  # one rank has them: the sum is exact
            self.collectives.all_reduce(changes, "online")
        for role, by in zip(order, changes.tolist(), strict=True):
            self.dense.move_bias(role, by)

    def _agree(self, finite: bool, largest: F32 | None = None) -> tuple[bool, F32 | None]:
        """True if gradients are finite on all ranks; what every rank has sent, f32[N, ·]. Collective."""
        world, width = self.collectives.world, 0 if largest is None else len(largest)
        if world == 1:
            return finite, None
        flags = np.zeros(1 + world * width, np.float32)
        flags[0] = not finite
        each = flags[1:].reshape(world, width)
        each[self.rank] = () if largest is None else largest  # a sum with zeros gathers
        agreed = self.collectives.all_reduce(torch.from_numpy(flags), "check").numpy()
        return bool(agreed[0] == 0), agreed[1:].reshape(world, width) if width else None

    @staticmethod
    def _lessons(logits: Mapping[str, F32], teach: Teach) -> Mapping[str, Lesson]:
        return teach({role: torch.from_numpy(z) for role, z in logits.items()})

    def _curvatures(
        self,
        logits: Mapping[str, F32],
        shift: Mapping[str, float],
        lessons: Mapping[str, Lesson] | None,
        sure: Mapping[str, int],
    ) -> dict[str, float]:
        """Curvature of each role for its bias (`DenseAdam.step`); lessons add their `inertia`."""
        rates = {role: z for role, z in logits.items() if role not in self._values}
        found, held = curvatures(rates, shift, lessons), self._inertia(lessons, sure)
        if self._values and lessons is not None:
            found |= self._values.curvatures(logits, shift, lessons)
        return {role: curvature + held[role] for role, curvature in found.items()}

    def _inertia(self, lessons: Mapping[str, Lesson] | None, sure: Mapping[str, int]) -> dict[str, float]:
        """Role → `inertia` of its bias, for a batch with lessons."""
        found = dict.fromkeys(self.models, 0.0)
        for role in (lessons or {}).keys() - self.spec.values.keys() if self._late else ():
            found[role] = inertia(self.dense.bias_squares(role), self._sure[role], sure[role])
        return found

    def _shifts(
        self,
        scores: Callable[[], tuple[dict[str, F32], F32]],
        lessons: Mapping[str, Lesson] | None,
        still: frozenset[str],
        begun: Mapping[str, float] = MappingProxyType({}),
    ) -> tuple[dict[str, float], dict[str, int]]:
        """Move the biases before a batch is learned; returns role → shift, and role → sure labels so far.

        still: roles whose bias learns the batch example by example, from the first label on.
        begun: role → shift of the heads of values that begin.
        """
        still = still | self.spec.values.keys()
        shift, sure = dict.fromkeys(self.models, 0.0), dict(self._sure)
        first = not (self.dense.steps or self._biases_trained)
        if first:
            label = scores()[1]
            shift |= {r: self._first_shift(label, (lessons or {}).get(r)) for r in shift if r not in still}
        for role, lesson in (lessons or {}).items() if self._again else ():
            # Labels beside the click come later: a role's bias waits for its own first ones.
            count = int(np.count_nonzero(lesson.weight.numpy()))
            if not first and count and not sure[role] and role not in still:
                shift[role] = self._first_shift(scores()[1], lesson)
            sure[role] += count
        for role, lesson in (lessons or {}).items() if self._late else ():
            if role in self._values:
                continue
            moved, count = fitted_shift(self.models[role].bias.item(), lesson, sure[role])
            shift[role] = shift[role] if first else moved
            sure[role] += count
        shift |= begun
        if first or begun or (lessons and (self._late or self._again)):
            move_biases(self.models, shift)
        return shift, sure

    def _first_shift(self, label: F32, lesson: Lesson | None) -> float:
        """Shift of a role's bias by the first batch."""
        if lesson is None:
            return first_shift(label)
        counts = lesson.counts
        if self._late:  # targets of late labels are what a model makes of them
            return first_shift(label, None if counts is None else counts.numpy())
        if not (lesson.weight == 1).all():
            counts = lesson.weight if counts is None else counts * lesson.weight
        return first_shift(lesson.target.numpy(), None if counts is None else counts.numpy())

    def _set_rates(self) -> None:
        """Set every role's learning rates by its schedule and the number of steps."""
        for role, config in self.spec.configs.items():
            factor = config.schedule.factor(self.dense.steps)
            self.dense.set_rate(role, factor)
            self.storage.set_rate(factor, f"{role}.")
        for name, content in ({} if self.ams is None else self.ams.contents).items():
            self.dense.set_rate(f"content.{name}", content.config.schedule.factor(self.dense.steps))

    def _forward(
        self,
        leaves: Leaves,
        batch: GlobalBatch,
        content: Mapping[str, ContentRequest],
        label: Tensor,
        others: Others | None = None,
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Role → logits f32 of all B or of own b examples; auxiliary losses f32[] of these. Collective.

        others: the roles; None: all.
        """
        strategy: Strategy = self.routed.strategy if others is None else others.strategy
        models = self.models if others is None else others.models
        aggregated, inputs = strategy.aggregate(leaves, batch)
        vectors = {} if self.ams is None else self.ams.forward(content)  # last: a thread reads meanwhile
        number, logits, losses = {name: f for f, name in enumerate(self.spec.fields)}, {}, []
        towers: dict[str, list[Tensor]] = {}
        for (role, model), part in zip(models.items(), aggregated, strict=True):
            gathered = inputs.of_role(self.spec.gathers[role], self.spec.slices[role], number, vectors)
            if isinstance(model, TrunkModel):
                towers[role] = model.inputs(part)
                logits[role] = model.logits(towers[role])
                continue
            if isinstance(model, TaskModel):
                logits[role] = model.logits(towers[model.trunk])
                continue
            logits[role], loss = model.finish_with_loss(part, gathered, label)
            losses += [] if loss is None else [loss]
        return logits, losses

    def _end_stretch(self) -> None:
        """Count no batch as skipped: the newest was learned."""
        if self.skipped.long:
            self.ended.append(self.skipped)
        self.skipped = Skipped()

    def _skip(self, shift: Mapping[str, float], logits: Mapping[str, F32]) -> None:
        move_biases(self.models, {role: -moved for role, moved in shift.items()})
        self.dense.clear()
        self.skipped = self.skipped.and_one(logits.values())
        telemetry.SKIPPED_BATCHES.inc()
        LOG.warning(
            "a batch was not learned: its gradients are not finite numbers (look at its dense features)"
        )

    # ── tables, and state for checkpoints ──

    def weights(self) -> dict[str, Tensor]:
        """Copies of this rank's network parameters by "<role>.<name>"; replicated: on rank 0 alone."""
        return {n: t.cpu().clone() for n, t in self.dense.weights(shared=self.rank == 0).items()}

    def state_dense(self) -> dict[str, Tensor]:
        """`weights` with Adam's state and the field exchange.

        The merged dictionaries of all ranks restore any number of ranks.
        """
        state = {n: t.cpu().clone() for n, t in self.dense.state(shared=self.rank == 0).items()}
        if self.rank == 0 and self.route.scatter and not self.choice.undecided:
            state |= exchange_state(self.route.field_exchange, self.spec.placement.world)
        if self.rank == 0 and self._biases_trained and not self.dense.steps:
            state[BIASES_TRAINED_KEY] = torch.tensor(1)
        if self.rank == 0 and (self._late or self._again or self._values):
            state |= {SURE_KEY + role: torch.tensor(seen) for role, seen in self._sure.items()}
        return state | (from_zero_state(self._from_zero) if self.rank == 0 else {})

    def load_dense(self, state: Mapping[str, Tensor]) -> None:
        """Restore from the merged `state_dense` of all ranks.

        With as many ranks as before, the saved field exchange is used: a resumed run has the same bits. Where
        it does not fit the placement, since a table is split by key now, a batch chooses.

        Raises:
            MismatchError: the state belongs to another model.
        """
        used = None if self.choice.undecided else self.route.field_exchange
        if (saved := saved_exchange(state, self.collectives, used)) is not None:
            self._route_by(saved)
            self.choice.restored(self.route, saved)
        self._biases_trained = BIASES_TRAINED_KEY in state
        known = {role: 0 if role in self._values else ENOUGH for role in self._sure}
        self._sure = {role: int(state.get(SURE_KEY + role, known[role])) for role in self._sure}
        self._from_zero = saved_from_zero(state)
        start_at_zero(self.tables, self._from_zero)
        self.dense.load(state)

    @property
    def from_zero(self) -> frozenset[FromZero]:
        """Tables whose new rows begin at zero (trainer.des.from_zero), of all ranks."""
        return self._from_zero

    def start_from(self, weights: Mapping[str, Tensor], *, trained: bool) -> None:
        """Begin with the weights of another run.

        Args:
            weights: by "<role>.<name>"; other parameters keep their initial values.
            trained: the biases are among them, so that the first batch does not move them.
        """
        self._biases_trained = trained
        self.dense.start_from(weights)
        if trained:
            new = {role for role in self.spec.values if f"{role}.bias" not in weights}
            self._sure = {role: 0 if role in new else ENOUGH for role in self._sure}
            self.dense.trust_biases()
