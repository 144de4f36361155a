"""First and second order and bias of a small batch, learned example by example.

Examples of a user come in bursts, and what one teaches is needed by the next. A step learns a batch at once:
weights from before it score all its examples. The first order, a plain sum of weights in the logit, and FM's
second order are cheap enough to do better:

    z_i = z_i(W, V) + Σ_k s_f (w_k now − w_k before the batch) + FM(v now) − FM(v before the batch)
    g_i = ∂loss(z_i) / ∂z_i; FTRL learns w_k (McMahan et al. 2013, Algorithm 1), AdaGrad v_k
          (Duchi et al. 2011) from the gradient of example i, before the next example; k over the keys of i,
          s_f: scale of the key's field (`models.layers.FirstOrder`)

z_i(W, V) are the logits of the step's forward pass. z_i is the score of example i, and its gradient is what
the rest of the model learns from. So the deep part of a model still takes one step a batch. The vectors that
it shares with FM learn from both: their gradient in the batch is the deep part's alone (`CTRModel.online`).

The bias learns in the same pass. An example moves the weights of all its keys the same way, and most examples
have the common ones among them. So the mean of all logits would move with the label of every example, F times
as far as one weight: first rows are ranked by when they came. So b takes back what the weights have moved the
mean by, as if a key's indicator were less by its mean, and learns the mean alone:

    b ← b − Σ_k r_k s_f Δw_k − Δ,   r_k = n_k / (s_f² (N + FEW)),   N ← N + g²
    Δ = sgn(g) · max(ln(1 + |g| / (PRIOR + N)), RATE |g| / √(1 + N))

r_k, of the squared gradients n_k and N before the example, is the share of the examples that have key k. As
E[g²] = p (1 − p), N is the curvature of all examples so far, and the first Δ moves b to the mean's posterior
given PRIOR clicks, first labels included. The second follows a log that drifts. With late labels the bias is
learned once a batch, as `trainer.des.biases` has it.

The bias alone learns from what all examples have. Of a key's gradient g_k = g s_f, FTRL's z_k gets

    g_k (1 − β r_k / (β + (1 − r_k) √n_k)),   n_k with g_k² added

so that w_k moves as by AdaGrad for its indicator less the mean, 1 − r_k, whose squared gradients sum up to
(1 − r_k)² n_k. Else the first keys of a log take from the bias what it gets back when others come, and keys
that have stopped drift with it.

Examples come in the global sequence, and every rank computes the same:

    prepare   all-gather of the examples' keys and labels; unique keys of each table
    learn     all-gather of w, v and their optimisers' states, of a rank's own unique keys; then one pass

The rows get FTRL's z and n, v and AdaGrad's sums. The gradient of w is then zero, so that the optimiser step
of the batch computes w from z and n, and leaves both as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from livectr.ingest.common_features import AnyFeatures, Common, CommonFeatures
from livectr.ingest.plan.features import Features
from livectr.kernels.keys.unique import Unique, unique_segments
from livectr.kernels.online.examples import Labels, Learned, Occurrences, Scale, learn_examples
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import FTRL, AdaGrad
from livectr.kernels.table.rows import optimiser
from livectr.models.base import ModelConfig
from livectr.models.losses import Lesson
from livectr.models.roles import row_segments
from livectr.models.segments import SegmentSpec
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.dense import DenseAdam
from livectr.trainer.des.result import in_loss_by
from livectr.trainer.placement.placement import FieldPlacement, owners_by_key

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class OnlineBatch:
    """Keys of all B examples, the same on every rank.

    Attributes:
        occurrences: of rows in rank-major order, fields by table; its sequence is that of the examples
        unique: unique keys of each table
        label: f32[B], rank-major, as the loss takes them
    """

    occurrences: Occurrences
    unique: Unique
    label: F32


@dataclass(frozen=True)
class Passed:
    """Result of a pass over a batch.

    Attributes:
        before: role → logits f32[B] of the forward pass
        logits: role → logits f32[B], each with what the examples before it have taught
        own: segment → own rows u32[n], their values and state f32[n, dim + S]
        bounds: i64[T + 1], of the own rows by table
        scales: role → scales f32[F, 2] of all fields, fields by table
        biases: role → bias and its sum of squares f32[2]; without late labels
    """

    before: Mapping[str, F32]
    logits: dict[str, F32]
    own: dict[str, tuple[NDArray[np.uint32], F32]]
    bounds: I64
    scales: dict[str, F32]
    biases: dict[str, F32]

    def moved(self, logits: Mapping[str, Tensor], start: int) -> dict[str, Tensor]:
        """Logits of all examples, or of the b from `start` on, moved by the pass."""
        moved = {}
        for role, z in logits.items():
            change = self.logits[role] - self.before[role]
            change = change if len(z) == len(change) else change[start : start + len(z)]
            moved[role] = z + torch.from_numpy(change).to(z.device)
        return moved


@dataclass(frozen=True)
class Orders:
    """Segments of a role that are learned example by example.

    Args:
        first: weights w.
        second: vectors v of FM's second order; None: AdaGrad learns no second order.
    """

    first: SegmentSpec
    second: SegmentSpec | None

    @staticmethod
    def of(segments: Sequence[SegmentSpec], *, exact: bool) -> Orders | None:
        """Orders among a model's segments; None: no first order that FTRL learns.

        Args:
            segments: of the model.
            exact: rows hold float32. Others would round every vector once more.
        """
        first = [s for s in segments if s.order == 1 and type(optimiser(s.optimiser)) is FTRL]
        second = [s for s in segments if s.order == 2 and type(optimiser(s.optimiser)) is AdaGrad and exact]
        return Orders(first[0], second[0] if second else None) if first else None


class OnlineOrders:
    """First and second orders of the roles that have them.

    Args:
        configs: role → model.
        table_of: field → table.
        placement: rank of each field.
        features: F, number of fields and dense features.
        common: features that a group shares.
        collectives: of this rank.
        exact: rows hold float32.
        settles: labels come late: scales settle, as of `DenseAdam.step`, and biases are learned by batch.

    Attributes:
        ahead: collectives of `prepare`
    """

    def __init__(
        self,
        configs: Mapping[str, ModelConfig],
        table_of: Mapping[str, str],
        placement: FieldPlacement,
        features: int,
        common: Common,
        collectives: Collectives,
        *,
        exact: bool,
        settles: bool = False,
    ) -> None:
        self._settles = settles
        self._configs = configs
        found = {
            role: Orders.of(row_segments({role: config}, features), exact=exact)
            for role, config in configs.items()
        }
        self._orders = {role: orders for role, orders in found.items() if orders is not None}
        self._common, self._collectives = common, collectives
        self.ahead = collectives
        self._place = {name: number for number, name in enumerate(table_of)}
        self._tables = tuple(dict.fromkeys(table_of.values()))
        number = [self._tables.index(table) for table in table_of.values()]
        self._fields: list[int] = np.argsort(number, kind="stable").tolist()
        self._counts = np.bincount(number, minlength=len(self._tables)).tolist()
        owner = dict(zip(table_of.values(), placement.owner, strict=True))
        self._owner = [None if table in placement.split else owner[table] for table in self._tables]

    def __bool__(self) -> bool:
        """True if a role has a first order that can be learned so."""
        return bool(self._orders)

    def attach(self, dense: DenseAdam) -> None:
        """Name the rank's networks and what learns them."""
        self._dense = dense
        self._scales_of = {
            role: [
                (part, np.array([self._place[f] for f in part.fields], int)) for part in dense.scales(role)
            ]
            for role in self._orders
        }

    def announce(self, batch: OnlineBatch | None) -> None:
        """Tell the rank's networks whether the next batch is learned so; None: it is learned as a whole."""
        for models in (self._dense.models, self._dense.sample_parallel):
            for role, model in models.items():
                orders = self._orders.get(role)
                model.online = batch is not None and orders is not None and orders.second is not None

    @property
    def by_table(self) -> list[int]:
        """Numbers of the fields, sorted by table."""
        return self._fields

    def segments(self, role: str) -> tuple[SegmentSpec | None, SegmentSpec | None]:
        """Segments of a role's first and second order; None: it is not learned example by example."""
        orders = self._orders.get(role)
        return (None, None) if orders is None else (orders.first, orders.second)

    @property
    def roles(self) -> frozenset[str]:
        """Roles whose first order is learned example by example."""
        return frozenset(self._orders)

    @property
    def with_bias(self) -> frozenset[str]:
        """Roles whose bias is learned so, too."""
        return frozenset() if self._settles else self.roles

    def columns(self, slices: Mapping[str, slice]) -> list[int]:
        """Columns of a row with first orders; `slices`: role → its columns."""
        return [slices[role].start + self._column(role) for role in self._orders]

    def _column(self, role: str) -> int:
        first = 0
        for segment in self._configs[role].segments():
            if segment.order == 1:
                return first
            first += segment.dim
        raise KeyError(role)

    def prepare(
        self, features: AnyFeatures, label: F32, rows: Sequence[int], sequence: I64 | None
    ) -> OnlineBatch:
        """All-gather the keys of a batch. Collective.

        Args:
            features: own b examples.
            label: f32[b].
            rows: examples of each rank.
            sequence: i64[B]; sequence[i] is the row, in rank-major order, of the i-th example. None: the
                order of the rows.
        """
        ids = features.ids()
        plain = ids.plain(self._common) if isinstance(ids, CommonFeatures) else ids
        every, labels = self._gather(plain, label, rows)
        if self._fields != sorted(self._fields):
            every = every.select_fields(self._fields)
        per_field = every.offsets[:: every.rows].astype(np.int64)
        bounds = per_field[np.cumsum([0, *self._counts])]
        unique = unique_segments(every.keys, bounds)
        slots = unique.index + np.repeat(unique.bounds[:-1], np.diff(bounds)).astype(np.uint32)
        order = np.arange(every.rows) if sequence is None else sequence
        return OnlineBatch(Occurrences(order, every.offsets, slots), unique, labels)

    def _gather(self, own: Features, label: F32, rows: Sequence[int]) -> tuple[Features, F32]:
        """Features and labels of all ranks."""
        if self._collectives.world == 1:
            return own, label
        fields = len(self._fields)
        lengths = own.lengths if own.rows else np.empty((fields, 0), np.int32)
        packed = np.concatenate([label.view(np.int32), lengths.reshape(-1)])
        parts = self.ahead.all_gather_ragged(packed, [(1 + fields) * n for n in rows], "online")
        counts = [int(part[n:].sum()) for part, n in zip(parts, rows, strict=True)]
        own_keys = np.ascontiguousarray(own.keys.view(np.int32))
        keys = self.ahead.all_gather_ragged(own_keys, [2 * n for n in counts], "online")
        each = []
        for part, found, n in zip(parts, keys, rows, strict=True):
            offsets = np.concatenate([[0], np.cumsum(part[n:])]).astype(np.int32)
            each.append(Features(n, offsets, found.view(np.int64), np.empty((n, 0), np.float32)))
        labels = [part[:n].view(np.float32) for part, n in zip(parts, rows, strict=True)]
        return Features.concat(each), np.concatenate(labels)

    def _all_gather(self, own: NDArray[np.int32], sizes: Sequence[int]) -> list[NDArray[np.int32]]:
        return self._collectives.all_gather_ragged(np.ascontiguousarray(own), sizes, "online")

    def learn(
        self,
        batch: OnlineBatch,
        tables: FieldTables,
        logits: Mapping[str, F32],
        step: int,
        shift: Mapping[str, float],
        lessons: Mapping[str, Lesson] | None = None,
    ) -> Passed:
        """Score and learn a batch; its rows are in the tables and do not change yet. Collective.

        Args:
            batch: from `prepare`.
            tables: own tables.
            logits: role → f32[B], with the weights that the rows have, rank-major.
            step: number of steps before.
            shift: role → shift of its bias, after these logits.
            lessons: role → targets and weights of all B examples, rank-major; None: the batch's labels.
        """
        mine, bounds = self._own(batch.unique, tables)
        keys = batch.unique.keys if mine is None else batch.unique.keys[mine]
        found, own = dict(logits), {}
        scales, biases = self._scales(), {} if self._settles else self._biases()
        for role, orders in self._orders.items():
            factor = self._configs[role].schedule.factor(step)
            learned, rows = [], []
            for segment in (orders.first, orders.second):
                if segment is None:
                    continue
                at, values = tables.read_segment(segment.name, bounds, keys)
                state = values if mine is None else self._states(values, mine, batch.unique)
                learned.append(Learned(state, optimiser(segment.optimiser).hyper(factor)))
                rows.append((segment.name, at))
            lesson = None if lessons is None else lessons[role]
            moved = np.float32(shift[role]) if lesson is None else in_loss_by(lesson, shift[role])
            labels = self._labels(batch, lesson)
            found[role] = (
                learn_examples(
                    logits[role] + moved,
                    labels,
                    batch.occurrences,
                    scales[role],
                    *learned,
                    bias=biases.get(role),
                )
                - moved
            )
            for (name, at), part in zip(rows, learned, strict=True):
                own[name] = at, part.state if mine is None else part.state[mine]
        states = {role: scale.state for role, scale in scales.items()}
        return Passed(logits, found, own, bounds, states, biases)

    def _biases(self) -> dict[str, F32]:
        """Role → its bias and sum of squares, the same on every rank."""
        found = {}
        for role in self._orders:
            bias, _, square = self._dense.learned(self._dense.models[role].bias)
            found[role] = np.array([bias.item(), square.item()], np.float32)
        return found

    def _scales(self) -> dict[str, Scale]:
        """Role → scales of all fields, fields by table. Collective."""
        states = np.zeros((len(self._orders), len(self._place), 2), np.float32)
        for role, of_role in zip(self._orders, states, strict=True):
            for part, places in self._scales_of[role]:
                if self._collectives.rank == 0 or not part.everywhere:
                    of_role[places, 0] = part.scale.numpy(force=True)
                    of_role[places, 1] = part.squares.numpy(force=True)
        if self._collectives.world > 1:
            sizes = [states.size] * self._collectives.world
            parts = self._all_gather(states.reshape(-1).view(np.int32), sizes)
            states = np.sum([part.view(np.float32).reshape(states.shape) for part in parts], 0)
        states = np.ascontiguousarray(states[:, self._fields])
        each = zip(self._orders, states, strict=True)
        return {role: Scale(s, DenseAdam.SCALE_RATE, self._settles) for role, s in each}

    def _labels(self, batch: OnlineBatch, lesson: Lesson | None) -> Labels:
        if lesson is None:
            return Labels(batch.label)
        return Labels(lesson.target.numpy(), weight=lesson.factor.numpy())

    def store(self, passed: Passed, tables: FieldTables) -> None:
        """Write what a pass learned into the own rows; a `backward` without their gradients follows."""
        for name, (rows, state) in passed.own.items():
            tables.write_segment(name, passed.bounds, rows, state)

    def store_dense(self, passed: Passed) -> None:
        """Write what a pass learned into scales and biases, once the scales' gradients are summed.

        The scales' gradients are forgotten; those of biases are for `DenseAdam.step`, which leaves them out.
        """
        for role, (value, square) in passed.biases.items():
            bias, _, squares = self._dense.learned(self._dense.models[role].bias)
            bias.fill_(float(value))
            squares.fill_(float(square))
        for role, states in passed.scales.items():
            ordered = np.empty_like(states)
            ordered[self._fields] = states
            for part, places in self._scales_of[role]:
                found = torch.from_numpy(ordered[places])
                part.scale.copy_(found[:, 0])
                part.squares.copy_(found[:, 1])
            self._dense.leave_scales(role)

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
        """Values and states f32[U, width] of all ranks' unique keys, from those of the own. Collective."""
        owners = self._owners(unique)
        sizes = np.bincount(owners, minlength=self._collectives.world)
        sent, width = own[np.argsort(mine)].view(np.int32).reshape(-1), own.shape[1]
        parts = self._all_gather(sent, [width * int(n) for n in sizes])
        state = np.empty((len(owners), width), np.float32)
        for rank, part in enumerate(parts):
            state[owners == rank] = part.view(np.float32).reshape(-1, width)
        return state
