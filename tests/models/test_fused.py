"""The fused functions against the plain formulas of their docstrings, values and gradients."""

import itertools

import pytest
import torch
from torch import Tensor

from livectr.models.fused import field_sums, perceptron, perceptron_and_pairs
from livectr.models.library import Library, library

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


@pytest.mark.parametrize("widths", [(5, 1), (5, 4, 1)])
def test_perceptron_and_pairs(widths: tuple[int, ...]) -> None:
    layers = [tensor for a, b in itertools.pairwise(widths) for tensor in (random(a, b), random(b))]
    sums, first_bias = random(B, widths[0] + 1 + K), random(widths[0])

    def plain(sums: Tensor, first_bias: Tensor, *layers: Tensor) -> Tensor:
        deep, first, vectors = sums.split([widths[0], 1, K], 1)  # type: ignore[no-untyped-call]
        pairs = first.squeeze(1) + 0.5 * vectors.square().sum(1)
        return plain_perceptron(deep, first_bias, *layers).squeeze(1) + pairs

    given = (sums, first_bias, *layers)
    torch.testing.assert_close(perceptron_and_pairs(*given), plain(*given))
    assert torch.autograd.gradcheck(perceptron_and_pairs, given)


@pytest.mark.parametrize("products", ["torch", "packed"])
@pytest.mark.parametrize("rows", [1, 264, 1000])
@pytest.mark.parametrize("dense", [0, 3, 20])
def test_sums_of_float32_rows(rows: int, dense: int, products: Library) -> None:
    """The host's kernel, with its own products and with torch's, beside the formulas in float64."""
    shapes = [(rows, 26, 17), (26,), (26, 16, 64), *([(rows, dense), (dense, 64), (dense,)] if dense else [])]
    exact = [random(*shape) for shape in shapes]
    given = [t.detach().float().requires_grad_() for t in exact]
    upstream = random(rows, 64 + 17).detach()
    blank = [None] * (6 - len(shapes))
    expected = plain_sums(*exact, *blank)  # type: ignore[arg-type]
    with library(products):
        out = field_sums(*given, *blank)  # type: ignore[arg-type]
        ours = torch.autograd.grad(out, given, upstream.float())
    wanted = torch.autograd.grad(expected, exact, upstream)
    for a, b in zip((out, *ours), (expected, *wanted), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-3)
