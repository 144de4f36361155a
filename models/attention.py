"""Local activation unit of DIN (Zhou et al., KDD 2018): attention pooling of a list of vectors by a query.

    pooled = Σ_b a(v_b, q) v_b                     the weights need not sum to 1
    a = MLP([v_b, q, v_b − q, v_b ∘ q])            with PReLU

The first layer is split, with blocks W_v, W_q, W_d, W_p of its matrix:

    [v, q, v − q, v ∘ q] W = v (W_v + W_d) + (v ∘ q) W_p + q (W_q − W_d)

so that the last term is computed once per example. On a CPU the unit is a fused kernel
(`kernels.network.attention`), whose intermediate results never leave the cache. As matrix products, most of
the time goes into copies of [nnz, H]. The kernel computes in the type of its arguments, whatever
`models.precision` says.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from livectr.kernels.network.attention import AttentionKernel
from livectr.kernels.network.pooling import Unit, VectorList
from livectr.models.inputs import Ragged
from livectr.models.layers import matrix
from livectr.models.ragged import SharedLists, list_sum, per_vector, shared_list


class ActivationUnit(nn.Module):
    """Activation unit a(v, q) of vectors of `dim` float32.

    Hidden layers have `widths` units, with PReLU slopes from ¼.
    """

    def __init__(self, name: str, dim: int, widths: Sequence[int], seed: int) -> None:
        super().__init__()
        pairs = list(itertools.pairwise((4 * dim, *widths, 1)))
        self.weights = nn.ParameterList(matrix(seed, f"{name}.{i}", a, b) for i, (a, b) in enumerate(pairs))
        self.biases = nn.ParameterList(torch.zeros(b) for _, b in pairs)
        self.slopes = nn.ParameterList(torch.full((b,), 0.25) for b in widths)
        self._widths = tuple(widths)
        if widths:
            _kernel(dim, tuple(widths), torch.float32)  # loads the library: no request waits for it
        self._packed: Tensor | None = None

    def forward(self, seen: Ragged, query: Tensor) -> Tensor:
        """Pools lists of vectors by queries.

        Args:
            seen: lists of f32[nnz, K].
            query: f32[B, K].

        Returns:
            Σ a(v, q) v, f32[B, K]; 0 for an empty list.
        """
        if not self.slopes or query.device.type != "cpu":
            return composed(seen, query, list(self.weights), list(self.biases), list(self.slopes))
        learned = torch.is_grad_enabled()
        packed = None if learned else self._packed
        if packed is None:
            packed = _in_turn(self.weights, self.biases, self.slopes)
            if not learned and not any(part.requires_grad for part in self.parameters()):
                self._packed = packed
        return _fused(seen, query, packed, self._widths)

    def compiled(self, query: VectorList | str, project: Tensor | None = None) -> Unit | None:
        """Unit of a compiled function; None: there is no hidden layer.

        Args:
            query: list whose mean is the query, or field whose vector is.
            project: matrix that makes the query of the field's vector.
        """
        if not self._widths:
            return None
        numbers = _in_turn(self.weights, self.biases, self.slopes)
        return Unit(self._widths, _array(numbers), query, _array(project))

    def train(self, mode: bool = True) -> Self:
        """See `nn.Module.train`. Weights may change from here on."""
        self._packed = None
        return super().train(mode)


def composed(
    seen: Ragged,
    query: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    slopes: Sequence[Tensor],
) -> Tensor:
    """Activation unit of torch operations.

    Args:
        seen: lists of f32[nnz, K].
        query: f32[B, K].
        weights: f32[4 K, H₁], f32[H₁, H₂] … f32[H_L, 1].
        biases: f32[H₁] … f32[1].
        slopes: f32[H₁] … f32[H_L].

    Returns:
        f32[B, K].
    """
    of_v, of_q, of_difference, of_product = weights[0].chunk(4)
    v, nnz = seen.values, len(seen.values)
    q = per_vector(query, seen.offsets, nnz)
    of_sample = torch.addmm(biases[0], query, of_q - of_difference)
    x = v @ (of_v + of_difference) + (v * q) @ of_product + per_vector(of_sample, seen.offsets, nnz)
    for slope, weight, bias in zip(slopes, weights[1:], biases[1:], strict=True):
        x = torch.addmm(bias, nn.functional.prelu(x, slope), weight)
    return list_sum(Ragged(x * v, seen.offsets))


def fused(
    seen: Ragged,
    query: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    slopes: Sequence[Tensor],
) -> Tensor:
    """Activation unit as a host kernel, for units with a hidden layer; arguments as of `composed`.

    Arrays are f32 or f64, all alike; first derivatives only. Lists that examples share (`SharedLists`) are
    read once, as are lists that are all equal (`Ragged.same`) where no gradient is wanted. The results have
    the bits of copied lists.
    """
    return _fused(seen, query, _in_turn(weights, biases, slopes), tuple(len(slope) for slope in slopes))


def _in_turn(*parameters: Iterable[Tensor]) -> Tensor:
    """Parameters as the kernel takes them."""
    return torch.cat([tensor.reshape(-1) for tensor in itertools.chain(*parameters)])


def _fused(seen: Ragged, query: Tensor, parameters: Tensor, widths: tuple[int, ...]) -> Tensor:
    """See `fused`; parameters as `_in_turn` gives them, of layers of some widths."""
    once = None if torch.is_grad_enabled() else shared_list(seen)
    if once is not None:
        kernel = _kernel(once.shape[1], widths, once.dtype)
        return torch.from_numpy(kernel.pooled(*map(_array, (parameters, once, query))))
    lists, list_of = (seen.once, seen.list_of) if isinstance(seen, SharedLists) else (seen, None)
    given = parameters, lists.values, query, lists.offsets, list_of
    out: Tensor = _Fused.apply(*given, widths)  # type: ignore[no-untyped-call]
    return out


@functools.cache
def _kernel(dim: int, widths: tuple[int, ...], dtype: torch.dtype) -> AttentionKernel:
    return AttentionKernel(dim, widths, torch.empty(0, dtype=dtype).numpy().dtype)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        parameters: Tensor,
        values: Tensor,
        query: Tensor,
        offsets: Tensor,
        list_of: Tensor | None,
        widths: tuple[int, ...],
    ) -> Tensor:
        ctx.save_for_backward(parameters, values, query, offsets, list_of)
        ctx.kernel = _kernel(values.shape[1], widths, values.dtype)
        arrays = (_array(tensor) for tensor in (parameters, values, offsets, query, list_of))
        return torch.from_numpy(ctx.kernel.forward(*arrays))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        parameters, values, query, offsets, list_of = ctx.saved_tensors
        arrays = (_array(tensor) for tensor in (parameters, values, offsets, query, grad, list_of))
        grad_values, grad_query, grad_parameters = map(torch.from_numpy, ctx.kernel.backward(*arrays))
        return grad_parameters, grad_values, grad_query, None, None, None


def _array(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.detach().numpy()
