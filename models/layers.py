"""Shared layers of models: the first layer split by fields, the MLP behind it, first-order weights."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from livectr.models.fused import perceptron, perceptron_and_pairs
from livectr.models.inputs import Columns, Part
from livectr.models.products import affine, product
from livectr.models.symlog import symlog

Activation = Literal["relu", "prelu"]


def generator(seed: int, name: str, part: str = "") -> torch.Generator:
    """Random generator that depends on its arguments only, in every process."""
    digest = hashlib.sha256(f"{seed}\x00{name}\x00{part}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


IMAGE_SCALE = 0.1
"""Scale of the initial first-layer weights of image vectors. An untrained sub-model gives noise, ten times
larger than young vectors of ids. It would drown them, and AdaGrad, which never forgets, would keep the ids'
rates small because of these first large gradients.
"""


DENSE_SCALE = 0.2
"""Scale of the initial weights of dense features. A logarithm of a count is ten, where young vectors of ids
are hundredths: as initial weights teach nothing, they would be noise that drowns the ids.
"""


def glorot(shape: Sequence[int], fan_in: int, fan_out: int, source: torch.Generator) -> Tensor:
    """Tensor uniform in ±√(6 / (fan_in + fan_out)) (Glorot & Bengio 2010)."""
    bound = math.sqrt(6.0 / (fan_in + fan_out))
    return torch.empty(*shape).uniform_(-bound, bound, generator=source)


def kaiming(fan_in: int, fan_out: int, source: torch.Generator) -> nn.Parameter:
    """Shared parameter f32[fan_in, fan_out] uniform in ±√(6 / fan_in): relu keeps the variance (He 2015).

    With `glorot`, each layer would halve what reaches the rows; behind six layers they would not learn.
    """
    bound = math.sqrt(6.0 / fan_in)
    return nn.Parameter(torch.empty(fan_in, fan_out).uniform_(-bound, bound, generator=source))


def matrix(seed: int, name: str, fan_in: int, fan_out: int) -> nn.Parameter:
    """Shared parameter f32[fan_in, fan_out]; its initial values depend on the seed and its name."""
    return nn.Parameter(glorot((fan_in, fan_out), fan_in, fan_out, generator(seed, name)))


def local_stack(
    seed: int, name: str, owners: Sequence[str], *shape: int, fan_in: int, fan_out: int
) -> nn.Parameter:
    """Local parameter f32[owners, *shape]; each owner's initial values depend on seed, name and owner."""
    stacked = torch.empty(len(owners), *shape)
    for i, owner in enumerate(owners):
        stacked[i] = glorot(shape, fan_in, fan_out, generator(seed, name, owner))
    return nn.Parameter(stacked)


class FieldLinear(nn.Module):
    """First layer of a DNN, split by fields (DES eq. 8).

    Its result is Σ_f v_f W_f over the rank's fields, plus the dense block Σ_d s(x_d) U_d (`models.symlog`).
    The bias belongs to the replicated part, because it must be added once, after ⊕.

    Attributes:
        weight: f32[F_local, K, H].
        dense: f32[Dd, H] on the rank of the dense features, else None.
        local_axes: as `CTRModel.local_axes`, of a layer that is the model's attribute `name`.
    """

    weight: nn.Parameter
    dense: nn.Parameter | None

    def __init__(self, name: str, part: Part, *, dim: int, hidden: int, blocks: int = 1) -> None:
        """Builds the layer.

        Args:
            name: the model's attribute that holds the layer.
            part: the rank's share.
            dim: K, float32 values of a vector.
            hidden: H, units.
            blocks: number of networks side by side whose first layers these are; initial values are theirs.
        """
        super().__init__()
        fan_in, fan_out = len(part.fields) * dim + len(part.dense_names), max(1, hidden // blocks)

        def stack(names: Sequence[str], kind: str, *shape: int) -> nn.Parameter:
            owners = [f"{kind}/{owner}" for owner in names]
            return local_stack(part.seed, name, owners, *shape, fan_in=fan_in, fan_out=fan_out)

        self.weight = stack(part.local, "field", dim, hidden)
        self.dense = None
        if part.local_dense:
            self.dense = nn.Parameter(DENSE_SCALE * stack(part.local_dense, "dense", hidden).detach())
        self.local_axes = {f"{name}.weight": part.local, f"{name}.dense": part.local_dense}

    def forward(self, vectors: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Computes the partial product f32[B, H].

        Args:
            vectors: f32[B, F_local, K].
            dense: f32[B, Dd] or None.
            columns: the features that `vectors` and `dense` hold; None: all.
        """
        weight, of_dense = self.blocks(columns)
        out = product(vectors.flatten(1), weight.flatten(0, 1))
        return out if of_dense is None or dense is None else affine(out, symlog(dense), of_dense)

    def blocks(self, columns: Columns | None = None) -> tuple[Tensor, Tensor | None]:
        """Parameters `weight` and `dense`, or their `columns`."""
        if columns is None:
            return self.weight, self.dense
        return select(self.weight, columns.fields), None if self.dense is None else select(
            self.dense, columns.dense
        )


class SubsetLinear(FieldLinear):
    """`FieldLinear` of a subset of features; it gets all of the rank's features and selects its own."""

    field_index: Tensor
    dense_index: Tensor

    def __init__(self, name: str, part: Part, chosen: Part, *, dim: int, hidden: int) -> None:
        """Builds the layer.

        Args:
            name: the model's attribute that holds the layer.
            part: the rank's share.
            chosen: the subset of `part`, in its order.
            dim: K, float32 values of a vector.
            hidden: H, units.
        """
        super().__init__(name, chosen, dim=dim, hidden=hidden)
        #: numbers of its fields and of its dense features among the rank's
        self.chosen = (
            tuple(map(part.local.index, chosen.local)),
            tuple(map(part.dense_names.index, chosen.local_dense)),
        )
        fields, dense = (torch.tensor(at, dtype=torch.long) for at in self.chosen)
        self.register_buffer("field_index", fields, persistent=False)
        self.register_buffer("dense_index", dense, persistent=False)

    def forward(self, vectors: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Computes the partial product.

        Arguments are those of `FieldLinear.forward`, of all the rank's features.
        """
        fields, numbers, own = self.field_index, self.dense_index, None
        if columns is not None:
            at_fields, own_fields = _shared(columns.fields, self.chosen[0])
            at_dense, own_dense = _shared(columns.dense, self.chosen[1])
            fields, numbers = (index_on(at, vectors.device) for at in (at_fields, at_dense))
            own = Columns(own_fields, own_dense)
        chosen = None if dense is None else dense.index_select(1, numbers)
        return super().forward(vectors.index_select(1, fields), chosen, own)


def _shared(columns: tuple[int, ...], own: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Common numbers of `columns` and `own`: their indices in `columns`, and in `own`."""
    both = [number for number in columns if number in own]
    return tuple(map(columns.index, both)), tuple(map(own.index, both))


class MLP(nn.Module):
    """Layers after the first: relu(x + b₁) W₂ + b₂ …, the last layer without activation.

    With "prelu" every unit has a slope below 0, starting at ¼ (He et al. 2015).
    """

    def __init__(self, name: str, sizes: Sequence[int], seed: int, activation: Activation = "relu") -> None:
        super().__init__()
        pairs = list(itertools.pairwise(sizes))
        self.first_bias = nn.Parameter(torch.zeros(sizes[0]))
        self.weights = nn.ParameterList(
            glorot((a, b), a, b, generator(seed, f"{name}.{i}")) for i, (a, b) in enumerate(pairs)
        )
        self.biases = nn.ParameterList(torch.zeros(b) for _, b in pairs)
        self.slopes = (
            nn.ParameterList(torch.full((a,), 0.25) for a, _ in pairs) if activation == "prelu" else None
        )

    def forward(self, first: Tensor) -> Tensor:
        """Applies the other layers: f32[B, sizes[0]] → f32[B, sizes[-1]].

        Args:
            first: aggregated product of the first layer, without bias.
        """
        if self.slopes is not None:
            x = first + self.first_bias
            for slope, weight, bias in zip(self.slopes, self.weights, self.biases, strict=True):
                x = affine(bias, nn.functional.prelu(x, slope), weight)
            return x
        return perceptron(first, self.first_bias, *self._layers())

    def with_pairs(self, sums: Tensor) -> Tensor:
        """Maps the results of `field_sums`, f32[B, sizes[0] + 1 + K], to MLP and FM's pairs, f32[B].

        Activations are relu, and the last layer has one unit.
        """
        return perceptron_and_pairs(sums, self.first_bias, *self._layers())

    def _layers(self) -> Iterator[Tensor]:
        return itertools.chain.from_iterable(zip(self.weights, self.biases, strict=True))


def select(tensor: Tensor, index: Sequence[int]) -> Tensor:
    """Entries of axis 0 by ascending index; a view where the indices are consecutive."""
    first = index[0] if index else 0
    if tuple(index) == tuple(range(first, first + len(index))):
        return tensor[first : first + len(index)]
    return tensor.index_select(0, index_on(tuple(index), tensor.device))


@functools.lru_cache(maxsize=1024)
def index_on(index: tuple[int, ...], device: torch.device) -> Tensor:
    """Index i64[n] of a network on a device, copied there once: each such copy waits for a GPU."""
    with torch.inference_mode(False):  # a later backward pass may save it
        return torch.tensor(index, dtype=torch.long, device=device)


SCALE = "wide.scale"
"""Name of a model's scales of fields in its first order."""
NUMBERS = "wide.dense"
"""Name of a model's weights of dense features in its first order."""


class FirstOrder(nn.Module):
    """First order of a model, Σ_f s_f w_f + Σ_d x_d u_d (DES eq. 3).

    A field's scale s_f is learned from examples before their weights w have seen them. FTRL's weights grow
    with its α, so a learned scale is a learned α: near 1 or above for a field that tells much, small for one
    whose weights are noise. With it, one default α fits logs whose best α are ten times apart.

    Weights u of dense features learn alike at every scale of the feature (`trainer.des.dense`).

    Attributes:
        scale: s, f32[F_local], one at the start.
        dense: u, f32[Dd] on the rank of the dense features, zero at the start; else None.
        local_axes: as `CTRModel.local_axes`, of a layer that is the model's attribute `wide`.
    """

    dense: nn.Parameter | None

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(len(part.local)))
        self.dense = nn.Parameter(torch.zeros(len(part.local_dense))) if part.local_dense else None
        self.local_axes = {SCALE: part.local, NUMBERS: part.local_dense}

    def forward(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Computes the partial sum f32[B, 1].

        Args:
            values: f32[B, F_local, 1 + K], rows [w | v]; K may be 0.
            dense: f32[B, Dd] or None.
            columns: the features that `values` and `dense` hold; None: all.
        """
        scale, of_dense = self.weights(columns)
        first = (values[..., 0] * scale).sum(1, keepdim=True)  # equal rows, equal bits: no product
        return first if of_dense is None or dense is None else first + (dense @ of_dense).unsqueeze(1)

    def weights(self, columns: Columns | None = None) -> tuple[Tensor, Tensor | None]:
        """Parameters `scale` and `dense`, or their `columns`."""
        if columns is None:
            return self.scale, self.dense
        of_dense = None if self.dense is None else select(self.dense, columns.dense)
        return select(self.scale, columns.fields), of_dense
