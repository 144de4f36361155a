"""First order of a small batch, learned example by example (McMahan et al. 2013, Algorithm 1).

Examples of a user come in bursts, and what one teaches is needed by the next. A step learns a batch at once:
weights from before it score all its examples. The first order, a plain sum of weights in the logit, is cheap
enough to do better:

    z_i = z_i(W) + Σ_k (w_k after the examples before i − w_k before the batch)     k over the keys of i
    g_i = ∂loss(z_i) / ∂z_i,  and FTRL learns w_k from g_i before the next example

z_i(W) are the logits of the step's forward pass. z_i is the score of example i, and its gradient is what the
rest of the model learns from. So the deep part of a model still takes one step a batch.

Examples come in the global sequence, and every rank computes the same:

    prepare   all-gather of the examples' keys and labels; unique keys of each table
    learn     all-gather of w and FTRL's state, of the unique keys that a rank owns; then one pass

The rows get z and n of FTRL. Their gradient is then zero, so that the optimiser step of the batch computes w
from z and n, and leaves both as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from livectr.ingest.common_features import Common, CommonFeatures
from livectr.ingest.plan.features import Features
from livectr.kernels.keys.unique import Unique, unique_segments
from livectr.kernels.online.ftrl import Labels, ftrl_online
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import FTRL
from livectr.models.base import ModelConfig, row_segments
from livectr.models.losses import Lesson
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.placement.placement import FieldPlacement, owners_by_key

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
WIDTH = 4
"""Floats of a row's state: w, z, n, and alpha of the last update."""


@dataclass(frozen=True)
class OnlineBatch:
    """Keys of all B examples, the same on every rank.

    Attributes:
        sequence: i64[B]; sequence[i] is the row, in rank-major order, of the i-th example
        offsets: i32[F·B + 1], field-major, fields by table
        slots: u32[nnz], number of each key among the unique keys
        unique: unique keys of each table
        label: f32[B], rank-major, as the loss takes them
    """

    sequence: I64
    offsets: NDArray[np.int32]
    slots: NDArray[np.uint32]
    unique: Unique
    label: F32


@dataclass(frozen=True)
class Passed:
    """Result of a pass over a batch.

    Attributes:
        before: role → logits f32[B] of the forward pass
        logits: role → logits f32[B], each with what the examples before it have taught
        own: role → own rows u32[n], and their state f32[n, 4]
        bounds: i64[T + 1], of the own rows by table
    """

    before: Mapping[str, F32]
    logits: dict[str, F32]
    own: dict[str, tuple[NDArray[np.uint32], F32]]
    bounds: I64

    def moved(self, logits: Mapping[str, Tensor], start: int) -> dict[str, Tensor]:
        """Logits of all examples, or of the b from `start` on, moved by the pass."""
        moved = {}
        for role, z in logits.items():
            change = self.logits[role] - self.before[role]
            change = change if len(z) == len(change) else change[start : start + len(z)]
            moved[role] = z + torch.from_numpy(change).to(z.device)
        return moved


class OnlineFirstOrder:
    """First orders of the roles that have one, learned by FTRL.

    Args:
        configs: role → model.
        table_of: table of each field.
        placement: rank of each field.
        common: features that a group shares.
        collectives: of this rank.
        weighted: the loss is fake-negative weighted.
    """

    def __init__(
        self,
        configs: Mapping[str, ModelConfig],
        table_of: Sequence[str],
        placement: FieldPlacement,
        common: Common,
        collectives: Collectives,
        *,
        weighted: bool,
    ) -> None:
        self._configs = configs
        self._segments = {
            role: segment
            for role, config in configs.items()
            for segment in row_segments({role: config}, len(table_of))
            if segment.additive and segment.optimiser.name == FTRL.__name__
        }
        self._hyper = {role: FTRL(**dict(s.optimiser.params)) for role, s in self._segments.items()}
        self._common, self._collectives, self._weighted = common, collectives, weighted
        self._tables = tuple(dict.fromkeys(table_of))
        number = [self._tables.index(table) for table in table_of]
        self._fields = np.argsort(number, kind="stable").tolist()
        self._counts = np.bincount(number, minlength=len(self._tables)).tolist()
        owner = dict(zip(table_of, placement.owner, strict=True))
        self._owner = [None if table in placement.split else owner[table] for table in self._tables]

    def __bool__(self) -> bool:
        """True if a role has a first order that can be learned so."""
        return bool(self._segments)

    def columns(self, slices: Mapping[str, slice]) -> list[int]:
        """Columns of a row that this learns; `slices`: role → its columns."""
        return [slices[role].start + self._column(role) for role in self._segments]

    def _column(self, role: str) -> int:
        first = 0
        for segment in self._configs[role].segments():
            if segment.additive:
                return first
            first += segment.dim
        raise KeyError(role)

    def prepare(
        self, features: Features | CommonFeatures, label: F32, rows: Sequence[int], sequence: I64 | None
    ) -> OnlineBatch:
        """All-gather the keys of a batch. Collective.

        Args:
            features: own b examples.
            label: f32[b].
            rows: examples of each rank.
            sequence: i64[B], see `OnlineBatch`; None: the order of the ranks' examples.
        """
        plain = features.plain(self._common) if isinstance(features, CommonFeatures) else features
        every, labels = self._gather(plain, label, rows)
        if self._fields != sorted(self._fields):
            every = every.select_fields(self._fields)
        per_field = every.offsets[:: every.rows].astype(np.int64)
        bounds = per_field[np.cumsum([0, *self._counts])]
        unique = unique_segments(every.keys, bounds)
        slots = unique.index + np.repeat(unique.bounds[:-1], np.diff(bounds)).astype(np.uint32)
        order = np.arange(every.rows) if sequence is None else sequence
        return OnlineBatch(order, every.offsets, slots, unique, labels)

    def _gather(self, own: Features, label: F32, rows: Sequence[int]) -> tuple[Features, F32]:
        """Features and labels of all ranks."""
        if self._collectives.world == 1:
            return own, label
        fields = len(self._fields)
        lengths = own.lengths if own.rows else np.empty((fields, 0), np.int32)
        packed = np.concatenate([label.view(np.int32), lengths.reshape(-1)])
        parts = self._all_gather(packed, [(1 + fields) * n for n in rows])
        counts = [int(part[n:].sum()) for part, n in zip(parts, rows, strict=True)]
        keys = self._all_gather(own.keys.view(np.int32), [2 * n for n in counts])
        each = []
        for part, own_keys, n in zip(parts, keys, rows, strict=True):
            offsets = np.concatenate([[0], np.cumsum(part[n:])]).astype(np.int32)
            each.append(Features(n, offsets, own_keys.view(np.int64), np.empty((n, 0), np.float32)))
        labels = [part[:n].view(np.float32) for part, n in zip(parts, rows, strict=True)]
        return Features.concat(each), np.concatenate(labels)

    def _all_gather(self, own: NDArray[np.int32], sizes: Sequence[int]) -> list[NDArray[np.int32]]:
        return self._collectives.all_gather_ragged(np.ascontiguousarray(own), sizes, "first order")

    def learn(
        self,
        batch: OnlineBatch,
        tables: FieldTables,
        logits: Mapping[str, F32],
        step: int,
        shift: float,
        lessons: Mapping[str, Lesson] | None = None,
    ) -> Passed:
        """Score and learn a batch; its rows are in the tables and do not change yet. Collective.

        Args:
            batch: from `prepare`.
            tables: own tables.
            logits: role → f32[B], with the weights that the rows have, rank-major.
            step: number of steps before.
            shift: of the biases, after these logits.
            lessons: role → targets and weights of all B examples, rank-major; None: the batch's labels.
        """
        mine, bounds = self._own(batch.unique, tables)
        keys = batch.unique.keys if mine is None else batch.unique.keys[mine]
        found, own = dict(logits), {}
        moved = np.float32(shift)
        for role, segment in self._segments.items():
            rows, values = tables.read_segment(segment.name, bounds, keys)
            state = values if mine is None else self._states(values, mine, batch.unique)
            logit = ftrl_online(
                logits[role] + moved,
                self._labels(batch, None if lessons is None else lessons[role]),
                batch.sequence,
                batch.offsets,
                batch.slots,
                state,
                self._hyper[role].hyper(self._configs[role].schedule.factor(step)),
            )
            found[role], own[role] = logit - moved, (rows, state if mine is None else state[mine])
        return Passed(logits, found, own, bounds)

    def _labels(self, batch: OnlineBatch, lesson: Lesson | None) -> Labels:
        if lesson is None:
            return Labels(batch.label, self._weighted)
        return Labels(lesson.target.numpy(), weight=lesson.weight.numpy())

    def store(self, passed: Passed, tables: FieldTables) -> None:
        """Write what a pass learned into the own rows; a `backward` without their gradients follows."""
        for role, (rows, state) in passed.own.items():
            tables.write_segment(self._segments[role].name, passed.bounds, rows, state)

    def _own(self, unique: Unique, tables: FieldTables) -> tuple[I64 | None, I64]:
        """Numbers of the own unique keys, by table of the front, and the bounds of its tables; None: all."""
        if self._collectives.world == 1 and tables.used == self._tables:
            return None, unique.bounds
        mine = np.flatnonzero(self._owners(unique) == self._collectives.rank)
        table = np.repeat(np.arange(len(self._tables)), np.diff(unique.bounds))[mine]
        place = {name: i for i, name in enumerate(tables.used)}
        at = np.array([place.get(name, -1) for name in self._tables])[table]
        counts = np.bincount(at, minlength=len(tables.used))
        return mine[np.argsort(at, kind="stable")], np.concatenate([[0], np.cumsum(counts)])

    def _owners(self, unique: Unique) -> I64:
        """Rank of each unique key."""
        owners = np.empty(len(unique.keys), np.int64)
        for owner, start, end in zip(self._owner, unique.bounds, unique.bounds[1:], strict=False):
            keys = unique.keys[start:end]
            owners[start:end] = owners_by_key(keys, self._collectives.world) if owner is None else owner
        return owners

    def _states(self, own: F32, mine: I64, unique: Unique) -> F32:
        """States f32[U, 4] of all ranks' unique keys. Collective."""
        owners = self._owners(unique)
        sizes = np.bincount(owners, minlength=self._collectives.world)
        sent = own[np.argsort(mine)].view(np.int32).reshape(-1)
        parts = self._all_gather(sent, [WIDTH * int(n) for n in sizes])
        state = np.empty((len(owners), WIDTH), np.float32)
        for rank, part in enumerate(parts):
            state[owners == rank] = part.view(np.float32).reshape(-1, WIDTH)
        return state
