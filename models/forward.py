"""Layers whose forward pass a compiled function computes, for servers (`kernels.network.forward`).

Most models are a first order, FM's second order, a first layer and an MLP, or some of them. A model that adds
a block to the first layer's product, such as pooled images or interests, names its weight and its inputs. The
plain operations of `partial` and `finish` are the reference.

The partial result of an item's own features (DES's M_j) may be kept and given again. Whether it is kept or
computed with the logits, it is added in the same order, so that logits have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from livectr.kernels.network.forward import F32, ForwardNetwork, Kept, Shape, Sources
from livectr.kernels.network.pooling import Channel, Pooling
from livectr.kernels.request.score import Reads
from livectr.models.base import CTRModel
from livectr.models.inputs import Gathered
from livectr.models.layers import MLP, FieldLinear, FirstOrder, SubsetLinear


@dataclass(frozen=True)
class Block:
    """Block of the first layer besides fields and dense features.

    Args:
        weight: f32[W, H₁]; of a model without an MLP f32[W, 1], of its first order.
        inputs: gathered tensors of B rows → f32[B, W].
        channels: gives the same inputs, one behind the other, as a compiled function pools them; None: torch
            alone computes one of them.
    """

    weight: Tensor
    inputs: Callable[[Gathered], Tensor]
    channels: Callable[[], tuple[Channel, ...] | None]


@dataclass(frozen=True)
class ForwardLayers:
    """Layers of a model that holds all F fields.

    Args:
        first: first layer; None without an MLP.
        mlp: layers after it.
        wide: first order; its weight is the first value of a row, and the vector follows.
        pairs: FM's second order is added; it needs a first order.
        dim: K, number of values of a vector; 0: the model reads none.
        blocks: more blocks of the first layer.
    """

    first: FieldLinear | None = None
    mlp: MLP | None = None
    wide: FirstOrder | None = None
    pairs: bool = False
    dim: int = 0
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True)
class ItemFeatures:
    """Features whose partial result may be kept.

    Args:
        fields: numbers of the fields, ascending.
        dense: numbers of the dense features, ascending.
    """

    fields: tuple[int, ...] = ()
    dense: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.fields or self.dense)


class LayeredModel(CTRModel):
    """Model that may be computed by `CompiledForward`."""

    def forward_layers(self) -> ForwardLayers | None:
        """Layers whose logits are the model's; None: only `partial` and `finish` compute them."""
        return None


class CompiledForward:
    """Forward pass of some layers, with a copy of their parameters.

    Args:
        layers: the layers.
        bias: the logit's.
        fields: F.
        dense: Dd, number of dense features.
        items: features whose partial result may be kept.

    Attributes:
        network: compiled.
        pooling: of the blocks' inputs; None: there are no blocks, or torch alone computes one.
    """

    def __init__(
        self,
        layers: ForwardLayers,
        bias: Tensor,
        fields: int,
        dense: int,
        items: ItemFeatures = ItemFeatures(),
    ) -> None:
        first, mlp, wide = layers.first, layers.mlp, layers.wide
        weight, numbers = _first_layer(first, fields, dense, layers.dim)
        read = first.chosen if isinstance(first, SubsetLinear) else (tuple(range(fields)), ())
        self._fields = frozenset(read[0])
        pooled = [block.channels() for block in layers.blocks]
        self.pooling = _pooling(pooled)
        self._blocks = [
            (block.inputs, [len(block.weight)] if channels is None else [part.width for part in channels])
            for block, channels in zip(layers.blocks, pooled, strict=True)
        ]
        self._items = items
        self._of_items = frozenset(items.fields)
        self._rest = [i for i in range(dense) if i not in items.dense]
        self._offset = int(wide is not None)
        slopes = mlp is not None and mlp.slopes is not None
        sizes = () if mlp is None else (len(mlp.first_bias), *(len(b) for b in mlp.biases))
        sizes_of_dense = len(self._rest), len(items.dense)
        blocks = tuple(chain.from_iterable(widths for _, widths in self._blocks))
        order = [*self._rest, *items.dense]
        self._shape = Shape(
            fields, layers.dim, sizes_of_dense, blocks, sizes, wide is not None, layers.pairs, slopes
        )
        parameters = [bias.reshape(1)]
        if wide is not None:
            of_dense = torch.zeros(dense) if wide.dense is None else wide.dense
            of_blocks = [
                block.weight if mlp is None else torch.zeros(len(block.weight)) for block in layers.blocks
            ]
            parameters += [wide.scale, of_dense[order], *of_blocks]
        if mlp is not None:
            parameters += [weight, numbers[order], *(block.weight for block in layers.blocks), *_in_turn(mlp)]
        self.network = ForwardNetwork(self._shape, [_numbers(p) for p in parameters])

    @property
    def partial_size(self) -> int:
        """S, numbers of an item's partial result."""
        return self.network.partial_size

    def reads(self, own: Sequence[int], shared: Sequence[int], start: int = 0) -> Reads:
        """Inputs that the network reads of a batch.

        Args:
            own: numbers of the rows' own fields. Without an item's field the items are apart: dense numbers
                are without the items', too.
            shared: numbers of the other fields.
            start: as in `logits`.
        """

        def pairs(numbers: Sequence[int], chosen: Set[int]) -> tuple[tuple[int, int], ...]:
            return tuple((place, number) for place, number in enumerate(numbers) if number in chosen)

        apart = bool(self._items) and not self._of_items & {*own, *shared}
        return Reads(
            shared=pairs(shared, self._fields),
            own=pairs(own, self._fields - self._of_items),
            items=pairs(own, self._fields & self._of_items),
            dense=range(len(self._rest)) if apart else self._rest,
            dense_of_items=() if apart else self._items.dense,
            first=start + self._offset,
            has_items=bool(self._items),
        )

    def partials(self, own: tuple[F32, Sequence[int]], dense: F32, start: int = 0) -> F32:
        """Compute the partial results of items f32[B, S].

        Args:
            own: rows f32[B, F_own, D] and the numbers of these fields; those that are not the item's are left
                out.
            dense: the item's dense features, f32[B, Dd_items].
            start: as in `logits`.
        """
        sources = Sources(self._shape)
        sources.add_fields(*own, start + self._offset, self._fields & self._of_items)
        if self._items.dense:
            sources.add(dense, _ITEM_DENSE)
        return self.network.partials(len(dense), sources)

    def logits(
        self,
        own: tuple[F32, Sequence[int]],
        shared: tuple[F32, Sequence[int]],
        dense: F32,
        gathered: Gathered | None,
        start: int = 0,
        kept: Kept | None = None,
    ) -> F32:
        """Compute logits f32[B].

        Args:
            own: rows f32[B, F_own, D] and the numbers of these fields.
            shared: rows f32[1, F_shared, D] of the other fields, and their numbers.
            dense: f32[B, Dd]; with `kept` without the item's.
            gathered: inputs of the blocks, of at least B rows.
            start: index of the model's values on the last axis of rows.
            kept: partial results of the items, whose fields are then not in `own`.
        """
        rows = len(dense)
        if kept is None and self._items:
            kept = Kept.of(self.partials(own, dense[:, self._items.dense], start))
            dense = dense[:, self._rest]
        sources, common = Sources(self._shape), Sources(self._shape)
        sources.add_fields(*own, start + self._offset, self._fields - self._of_items)
        common.add_fields(*shared, start + self._offset, self._fields)
        if self._rest:
            sources.add(dense)
        number = _BLOCKS
        for inputs, widths in self._blocks:
            assert gathered is not None
            for part in torch.split(inputs(gathered)[:rows], widths, dim=1):
                sources.add(part.contiguous().numpy(), number)
                number += 1
        return self.network(rows, sources, common, kept)


_ITEM_DENSE, _BLOCKS = 1, 2
"""Numbers of the sources besides fields: dense features of items, and the first input of the first block."""


def compiled_forward(
    model: CTRModel, fields: int, dense: int, items: ItemFeatures = ItemFeatures()
) -> CompiledForward | None:
    """Compile the forward pass of a model of F fields and Dd dense features; None: it has other layers.

    Args:
        model: its weights are copied.
        fields: F, number of sparse fields.
        dense: Dd, number of dense features.
        items: features whose partial result may be kept.
    """
    layers = model.forward_layers() if isinstance(model, LayeredModel) else None
    return None if layers is None else CompiledForward(layers, model.bias, fields, dense, items)


def _pooling(blocks: Sequence[tuple[Channel, ...] | None]) -> Pooling | None:
    """Compiled pooling of the channels of blocks; None: there are none, or torch alone computes one."""
    known = [channels for channels in blocks if channels is not None]
    if not known or len(known) < len(blocks):
        return None
    return Pooling([*chain.from_iterable(known)])


def _first_layer(first: FieldLinear | None, fields: int, dense: int, dim: int) -> tuple[Tensor, Tensor]:
    """Weights f32[F, K, H₁] of fields and f32[Dd, H₁] of dense features; zeros where the layer has none."""
    if first is None:
        return torch.empty(fields, dim, 0), torch.empty(dense, 0)
    hidden = first.weight.shape[2]
    if not isinstance(first, SubsetLinear):
        return first.weight, torch.zeros(dense, hidden) if first.dense is None else first.dense
    weight, numbers = torch.zeros(fields, dim, hidden), torch.zeros(dense, hidden)
    weight[list(first.chosen[0])] = first.weight.detach()
    if first.dense is not None:
        numbers[list(first.chosen[1])] = first.dense.detach()
    return weight, numbers


def _in_turn(mlp: MLP) -> list[Tensor]:
    """Parameters of an MLP, layer after layer."""
    slopes = [] if mlp.slopes is None else [[s] for s in mlp.slopes]
    out = [mlp.first_bias, *(slopes[0] if slopes else [])]
    for number, (weight, bias) in enumerate(zip(mlp.weights, mlp.biases, strict=True), start=1):
        out += [weight, bias, *(slopes[number] if number < len(slopes) else [])]
    return out


def _numbers(parameter: Tensor) -> F32:
    array: F32 = parameter.detach().numpy()
    return array
