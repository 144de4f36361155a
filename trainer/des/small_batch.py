"""Networks of small batches, without torch: compiled forward pass, gradients and Adam.

A step of torch is a hundred calls, whose cost is the same for four examples and for hundreds. The first
batches of a ramp (`trainer.ramp`) are learned by a few compiled calls instead:

    partial    rows → partial sums of this rank's fields, summed over the ranks by ⊕
    finish     sums → logits
    backward   logits and labels → gradients of the rows
    update     gradients → networks, by the rules of `trainer.des.dense`

The arithmetic is that of torch's step but for the order of sums. So which of both learns a batch depends on
its size and on settings alone: a replay has the same bits.

Models are those of a first order, FM's second order and an MLP with ReLU (LR, FM, DNN, Wide & Deep, DeepFM),
DCN and PNN, in fp32 on a CPU, where every rank finishes all examples
(`trainer.des.field_parallel`; a single rank does). Torch learns other models of the pipeline beside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from livectr.ingest.common_features import Common
from livectr.kernels.network.small_batch import (
    Cross,
    DeepLayers,
    Learned,
    Parameters,
    Rates,
    SmallBatchNetwork,
)
from livectr.models.base import CTRModel
from livectr.models.dcn import DCNModel
from livectr.models.deepfm import DeepFMModel
from livectr.models.dnn import DNNModel
from livectr.models.fm import FMModel
from livectr.models.forward import LayeredModel
from livectr.models.layers import MLP, FieldLinear
from livectr.models.losses import Lesson
from livectr.models.lr import LRModel
from livectr.models.pnn import Outer, PNNModel
from livectr.models.wide_deep import WideDeepModel
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.batch import GlobalBatch
from livectr.trainer.des.dense import DenseAdam
from livectr.trainer.des.field_parallel import FieldParallel
from livectr.trainer.des.partials import OwnerPartials
from livectr.trainer.des.result import in_loss
from livectr.trainer.des.routed import Routed
from livectr.trainer.des.spec import StepSpec

F32 = NDArray[np.float32]

MOST = 64
"""Examples of the largest small batch: Adam's rate is full from there on (`DenseAdam.STEADY`)."""


_COMPILED = (LRModel, FMModel, DNNModel, WideDeepModel, DeepFMModel, DCNModel, PNNModel)


def is_compiled(model: CTRModel) -> bool:
    """Tell if compiled calls learn small batches of a model, on hosts; the same for any number of ranks."""
    return type(model) in _COMPILED


@dataclass(frozen=True)
class Taught:
    """Examples' logits and what they learn from.

    Args:
        logits: role → f32[B].
        shift: role → shift of its bias after these logits.
        label: f32[B].
        lessons: role → targets and weights; None: the labels.
        first: roles whose first order has been learned (`trainer.des.online`).
    """

    logits: Mapping[str, F32]
    shift: Mapping[str, float]
    label: F32
    lessons: Mapping[str, Lesson] | None
    first: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Others:
    """Roles that torch learns in small batches, too.

    Attributes:
        models: role → network.
        strategy: of these roles.
    """

    models: Mapping[str, CTRModel]
    strategy: FieldParallel


class SmallBatches:
    """Networks for small batches, which share the parameters with those of torch.

    Args:
        networks: role → network.
        starts: role → first of its values in a row.
        others: roles that have no such network; None: there are none.
        dense: learns the parameters otherwise.
        collectives: of this rank.
        common: dense features that a group shares.
        numbers: the pipeline has dense features.

    Attributes:
        networks, starts, others: see Args.
    """

    def __init__(
        self,
        networks: Mapping[str, SmallBatchNetwork],
        starts: Mapping[str, int],
        others: Others | None,
        dense: DenseAdam,
        collectives: Collectives,
        common: Common,
        *,
        numbers: bool,
    ) -> None:
        self._numbers = numbers
        self.networks, self.starts, self.others = dict(networks), dict(starts), others
        self._dense, self._collectives, self._common = dense, collectives, common
        sizes = [network.partial_size for network in networks.values()]
        self._width = sum(sizes)
        self._at = dict(zip(networks, np.cumsum([0, *sizes]).tolist(), strict=False))

    @staticmethod
    def of(spec: StepSpec, routed: Routed, collectives: Collectives) -> SmallBatches | None:
        """Networks of a step; None: its batches need torch. All ranks decide alike."""
        route, models = routed.route, routed.networks.field_parallel
        if route.scatter or spec.settings.precision != "fp32" or collectives.device.type != "cpu":
            return None
        fields = len(route.field_parallel(spec.rank))
        networks = {
            role: network
            for role, model in models.items()
            if role not in spec.values
            and not spec.gathers[role]
            and (network := _network(model, fields, routed.dense)) is not None
        }
        if not networks:
            return None
        left = {role: model for role, model in models.items() if role not in networks}
        partials = OwnerPartials(route, left, spec.slices, len(spec.dense_names), collectives)
        others = Others(left, FieldParallel(route, partials, collectives)) if left else None
        starts = {role: spec.slices[role].start for role in networks}
        numbers = bool(spec.dense_names)
        return SmallBatches(networks, starts, others, routed.dense, collectives, spec.common, numbers=numbers)

    def forward(self, values: F32, batch: GlobalBatch) -> dict[str, F32]:
        """Role → logits f32[B] of rows f32[B, F, D_model]. Collective."""
        sums = np.empty((len(batch), self._width), np.float32)
        x = self._dense_of(batch)
        for role, network in self.networks.items():
            network.partial(values, self.starts[role], x, sums, self._at[role])
        if self._collectives.world > 1:
            self._collectives.all_reduce(torch.from_numpy(sums), "sum")
        return {role: network.finish(sums, self._at[role]) for role, network in self.networks.items()}

    def _dense_of(self, batch: GlobalBatch) -> F32 | None:
        """Dense features f32[B, D] in the pipeline's order; None where this rank has none."""
        own, common = batch.dense, batch.common
        assert not isinstance(own, Tensor) and not isinstance(common, Tensor)
        if own is None or common is None or not self._common.dense:
            return None if own is None else np.ascontiguousarray(own)
        x = np.empty((len(batch), own.shape[1] + common.shape[1]), np.float32)
        x[:, self._common.dense] = common if batch.group_of is None else common[batch.group_of]
        x[:, [d for d in range(x.shape[1]) if d not in self._common.dense]] = own
        return x

    def backward(self, taught: Taught, values: F32) -> tuple[F32, bool]:
        """Gradient of the rows f32[B, F, D_model], and whether all gradients are finite."""
        of_values, bound = np.empty_like(values) if self.others is None else np.zeros_like(values), 0.0
        for role, network in self.networks.items():
            logits, label, weight = taught.logits[role], taught.label, None
            if taught.lessons is not None:
                lesson = taught.lessons[role]
                logits, label = in_loss(logits, lesson), lesson.target.numpy()
                weight = lesson.factor.numpy()
            bound += network.backward(
                logits,
                taught.shift[role],
                label,
                weight,
                of_values,
                self.starts[role],
                first_learned=role in taught.first,
                pairs_learned=self._dense.models[role].online,
            )
        return of_values, bound <= _LARGEST

    def update(
        self,
        samples: int,
        curvature: Mapping[str, float],
        scaled: frozenset[str],
        *,
        settles: bool = False,
        still: frozenset[str] = frozenset(),
    ) -> None:
        """Learn the networks.

        Args:
            samples: as of `DenseAdam.step`.
            curvature: as of `DenseAdam.step`.
            scaled: roles whose scales have been learned.
            settles: as of `DenseAdam.step`.
            still: as of `DenseAdam.step`.
        """
        step = self._dense.steps + 1
        root = math.sqrt(1 - 0.999**step)
        small, moved = self._dense.small(samples), np.zeros(len(self.networks), np.float32)
        for r, (role, network) in enumerate(self.networks.items()):
            rates = self._dense.rates(role)
            moved[r] = network.update(
                Rates(
                    adam=rates["network"] * small * root / (1 - 0.9**step),
                    epsilon=1e-8 * root,
                    samples=samples,
                    bias=0.0 if role in still else rates["bias"],
                    curvature=curvature[role],
                    scale=0.0 if role in scaled else rates["scale"],
                    number=rates["number"],
                    settles=settles,
                )
            )
        if self._numbers and self._collectives.world > 1:  # one rank has them: a sum with zeros is exact
            self._collectives.all_reduce(torch.from_numpy(moved), "online")
        for role, by in zip(self.networks, moved.tolist(), strict=True):
            self._dense.move_bias(role, by)
        self._dense.updated(roles=None if self.others is None else self.networks)


_LARGEST = float(np.finfo(np.float32).max)


def _network(model: CTRModel, fields: int, dense: DenseAdam) -> SmallBatchNetwork | None:
    """Network of a model of F fields of this rank; None: it has other layers."""
    if isinstance(model, DCNModel):
        return _crossed(model, dense)
    if isinstance(model, PNNModel):
        return _products(model, dense)
    return _layered(model, fields, dense) if isinstance(model, LayeredModel) else None


def _layered(model: LayeredModel, fields: int, dense: DenseAdam) -> SmallBatchNetwork | None:
    layers = model.forward_layers()
    if layers is None or layers.blocks:
        return None
    first, mlp, wide = layers.first, layers.mlp, layers.wide
    plain = first is None or type(first) is FieldLinear
    if not plain or (first is None) != (mlp is None) or (mlp is not None and mlp.slopes is not None):
        return None
    of_dense = None if wide is None else wide.dense
    parameters = Parameters(
        bias=_learned(model.bias, dense),
        scale=_if_there(None if wide is None else wide.scale, dense),
        of_dense=None if of_dense is None else _centred(of_dense, dense),
        fields=_if_there(None if first is None else first.weight, dense),
        dense=_if_there(None if first is None else first.dense, dense),
        first_bias=_if_there(None if mlp is None else mlp.first_bias, dense),
        layers=() if mlp is None else _layers(mlp, dense),
    )
    here = next((len(p.value) for p in (parameters.of_dense, parameters.dense) if p is not None), 0)
    return SmallBatchNetwork.layered(
        fields=fields, dim=layers.dim, dense=here, pairs=layers.pairs, parameters=parameters, most=MOST
    )


def _crossed(model: DCNModel, dense: DenseAdam) -> SmallBatchNetwork | None:
    cross, numbers = model.cross, None
    if not model.layers:
        return None
    if cross.dense_weight is not None and cross.dense_bias is not None:
        numbers = Cross(_learned(cross.dense_weight, dense), _learned(cross.dense_bias, dense))
    return SmallBatchNetwork.crossed(
        bias=_learned(model.bias, dense),
        deep=_deep(model.first, model.mlp, dense),
        fields=Cross(_learned(cross.weight, dense), _learned(cross.bias, dense)),
        dense=numbers,
        most=MOST,
    )


def _products(model: PNNModel, dense: DenseAdam) -> SmallBatchNetwork:
    product = model.product
    return SmallBatchNetwork.products(
        bias=_learned(model.bias, dense),
        deep=_deep(model.first, model.mlp, dense),
        weight=_learned(product.weight if isinstance(product, Outer) else product.theta, dense),
        outer=isinstance(product, Outer),
        most=MOST,
    )


def _deep(first: FieldLinear, mlp: MLP, dense: DenseAdam) -> DeepLayers:
    return DeepLayers(
        _learned(first.weight, dense),
        _if_there(first.dense, dense),
        _learned(mlp.first_bias, dense),
        _layers(mlp, dense),
    )


def _layers(mlp: MLP, dense: DenseAdam) -> list[tuple[Learned, Learned]]:
    """Layers after the first."""
    each = zip(mlp.weights, mlp.biases, strict=True)
    return [(_learned(weight, dense), _learned(bias, dense)) for weight, bias in each]


def _centred(weight: torch.nn.Parameter, dense: DenseAdam) -> Learned:
    """First order of dense features."""
    return replace(_learned(weight, dense), centre=dense.centre(weight).numpy())


def _if_there(parameter: torch.nn.Parameter | None, dense: DenseAdam) -> Learned | None:
    return None if parameter is None else _learned(parameter, dense)


def _learned(parameter: torch.nn.Parameter, dense: DenseAdam) -> Learned:
    value, mean, square = (tensor.detach().numpy() for tensor in dense.learned(parameter))
    return Learned(value, mean, square)
