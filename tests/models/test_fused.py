"""The fused functions against the plain formulas of their docstrings, values and gradients."""

import itertools

import pytest
import torch
from torch import Tensor

from livectr.models.fused import field_sums, perceptron

B, F, K, DENSE = 6, 3, 4, 2


def random(*shape: int) -> Tensor:
    """float64, as finite differences need; the seed is the shape."""
    source = torch.Generator().manual_seed(sum(n * 31**i for i, n in enumerate(shape)))
    return torch.randn(*shape, generator=source, dtype=torch.float64).requires_grad_()


def plain_sums(
    values: Tensor, scale: Tensor, weight: Tensor, x: Tensor | None, x_weight: Tensor | None, u: Tensor | None
) -> Tensor:
    first, vectors = values[..., 0] @ scale, values[..., 1:]
    products = torch.einsum("bfk,fkh->bh", vectors, weight)
    first = first - 0.5 * vectors.square().sum((1, 2))
    if x is not None and x_weight is not None and u is not None:
        products, first = products + x @ x_weight, first + x @ u
    return torch.cat([products, first[:, None], vectors.sum(1)], 1)


def plain_perceptron(x: Tensor, first_bias: Tensor, *layers: Tensor) -> Tensor:
    x = x + first_bias
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        x = torch.relu(x) @ weight + bias
    return x


@pytest.mark.parametrize("hidden", [0, 5])
@pytest.mark.parametrize("fields", [0, F])
@pytest.mark.parametrize("dense", [False, True])
def test_sums_of_fields(fields: int, hidden: int, dense: bool) -> None:
    values, scale, weight = random(B, fields, 1 + K), random(fields), random(fields, K, hidden)
    numbers = (random(B, DENSE), random(DENSE, hidden), random(DENSE)) if dense else (None, None, None)
    given = (values, scale, weight, *numbers)
    torch.testing.assert_close(field_sums(*given), plain_sums(*given))
    assert torch.autograd.gradcheck(field_sums, given)


def test_sums_of_rows_that_want_no_gradient() -> None:
    """The servers' call, and a table that is not learned."""
    values, scale, weight = random(B, F, 1 + K).detach(), random(F), random(F, K, 5)
    field_sums(values, scale, weight, None, None, None).sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is None and weight.grad is not None
    torch.testing.assert_close(weight.grad, values[..., 1:].sum(0)[..., None].expand(F, K, 5))


@pytest.mark.parametrize("dense", [False, True])
def test_sums_without_the_gradient_of_pairs(dense: bool) -> None:
    """Rows get the products' gradient; the other operands all of theirs."""
    values, scale, weight = random(B, F, 1 + K), random(F), random(F, K, 5)
    numbers = (random(B, DENSE), random(DENSE, 5), random(DENSE)) if dense else (None, None, None)
    given = [t for t in (values, scale, weight, *numbers) if t is not None]
    upstream = random(B, 5 + 1 + K).detach()
    full = torch.autograd.grad(plain_sums(values, scale, weight, *numbers), given, upstream)
    out = field_sums(values, scale, weight, *numbers, pairs=False)
    torch.testing.assert_close(out, plain_sums(values, scale, weight, *numbers))
    ours = torch.autograd.grad(out, given, upstream)
    products = upstream.clone()
    products[:, 5:] = 0.0
    (expected,) = torch.autograd.grad(plain_sums(values, scale, weight, *numbers), [values], products)
    torch.testing.assert_close(ours[0], expected)
    torch.testing.assert_close(ours[1:], full[1:])


@pytest.mark.parametrize("widths", [(5, 1), (5, 4, 1), (5, 4, 3, 2)])
def test_perceptron(widths: tuple[int, ...]) -> None:
    layers = [tensor for a, b in itertools.pairwise(widths) for tensor in (random(a, b), random(b))]
    arguments = (random(B, widths[0]), random(widths[0]), *layers)
    before = arguments[0].detach().clone()
    torch.testing.assert_close(perceptron(*arguments), plain_perceptron(*arguments))
    assert torch.equal(arguments[0], before), "its argument is the caller's"
    assert torch.autograd.gradcheck(perceptron, arguments)
