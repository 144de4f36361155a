"""The fused functions against the plain formulas of their docstrings, values and gradients."""

import itertools
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from livectr.kernels.network import layers as host
from livectr.kernels.network import packed
from livectr.models import fused, products
from livectr.models.fused import field_sums, perceptron, perceptron_and_pairs
from livectr.models.library import Library, library
from livectr.models.precision import Precision, ProductMethod, precision

B, F, K, DENSE = 6, 3, 4, 2


def random(*shape: int) -> Tensor:
    """float64, as finite differences need; the seed is the shape."""
    source = torch.Generator().manual_seed(sum(n * 31**i for i, n in enumerate(shape)))
    return torch.randn(*shape, generator=source, dtype=torch.float64).requires_grad_()


def numbers_of(rows: int) -> Tensor:
    """Dense features, some beyond ±1."""
    return (5 * random(rows, DENSE).detach()).requires_grad_()


def plain_sums(
    values: Tensor, scale: Tensor, weight: Tensor, x: Tensor | None, x_weight: Tensor | None, u: Tensor | None
) -> Tensor:
    first, vectors = values[..., 0] @ scale, values[..., 1:]
    products = torch.einsum("bfk,fkh->bh", vectors, weight)
    first = first - 0.5 * vectors.square().sum((1, 2))
    if x is not None and x_weight is not None and u is not None:
        far = x.abs() > 1
        s = torch.where(far, x.sign() * (1 + torch.where(far, x.abs(), 1).log()), x)
        products, first = products + s @ x_weight, first + x @ u
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
    numbers = (numbers_of(B), random(DENSE, hidden), random(DENSE)) if dense else (None, None, None)
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
    numbers = (numbers_of(B), random(DENSE, 5), random(DENSE)) if dense else (None, None, None)
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


@pytest.mark.parametrize("name", ["fp32", "bf16"])
@pytest.mark.parametrize("rows", [530, 1057])
@pytest.mark.parametrize("widths", [(80, 64, 1), (64, 128, 3, 70, 2), (64, 65), (70, 70, 70, 1)])
def test_layers_of_float32_rows(
    rows: int, widths: tuple[int, ...], name: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's kernel beside torch's operations: wide and narrow layers, with pairs and without."""
    monkeypatch.setattr(products, "SMALL", 0)
    pairs = widths[-1] == 1
    layers = [tensor for a, b in itertools.pairwise(widths) for tensor in (random(a, b), random(b))]
    given = [random(rows, widths[0] + (1 + K) * pairs), random(widths[0]), *layers]
    given = [t.detach().float().requires_grad_() for t in given]
    upstream = random(*([rows] if pairs else [rows, widths[-1]])).detach().float()
    ours = perceptron_and_pairs if pairs else perceptron
    # where oneDNN rounds (AMX), its products are the measured method, and the kernel would not be called
    method: ProductMethod | None = "operands" if name == "bf16" and packed.native("bf16") else None

    def results() -> list[Tensor]:
        with precision(name, method=method, products="packed"):
            out = ours(*given)
            return [out, *torch.autograd.grad(out, given, upstream)]

    with patch.object(host, "backward", wraps=host.backward) as called:
        found = results()
    called.assert_called_once()
    monkeypatch.setattr(fused, "_kinds", lambda *given: None)
    for a, b in zip(found, results(), strict=True):
        assert a.shape == b.shape
        # a narrow layer adds in another order: its last bit may round a factor of the next layer otherwise
        least = (1e-5 if name == "fp32" else 1e-2) * float(b.detach().abs().max())
        torch.testing.assert_close(a, b, rtol=1e-4, atol=least)


@pytest.mark.parametrize("widths", [(64, 64, 1), (64, 64, 20)])
def test_layers_pass_what_is_not_finite_on(widths: tuple[int, ...]) -> None:
    """A step with it is skipped: no activation may hide it."""
    layers = [tensor for a, b in itertools.pairwise(widths) for tensor in (random(a, b), random(b))]
    x, first_bias, *layers = (
        t.detach().float().requires_grad_() for t in (random(600, 64), random(64), *layers)
    )
    with torch.no_grad():
        x[7, 3] = torch.nan
    with precision("fp32", products="packed"):
        out = perceptron(x, first_bias, *layers)
        of_x, of_bias, of_weight, *_ = torch.autograd.grad(out.sum(), [x, first_bias, *layers])
    assert out[7].isnan().all() and out[:7].isfinite().all() and out[8:].isfinite().all()
    assert not of_weight.isfinite().all() and of_bias.isfinite().all() and of_x.isfinite().all()


@pytest.mark.parametrize("products", ["torch", "packed"])
@pytest.mark.parametrize("rows", [1, 264, 1000])
@pytest.mark.parametrize("dense", [0, 3, 20])
def test_sums_of_float32_rows(rows: int, dense: int, products: Library) -> None:
    """The host's kernel, with its own products and with torch's, beside the formulas in float64."""
    shapes = [(rows, 26, 17), (26,), (26, 16, 64), *([(rows, dense), (dense, 64), (dense,)] if dense else [])]
    exact = [random(*shape) for shape in shapes]
    if dense:
        exact[3] = (5 * exact[3].detach()).requires_grad_()
    given = [t.detach().float().requires_grad_() for t in exact]
    upstream = random(rows, 64 + 17).detach()
    blank = [None] * (6 - len(shapes))
    expected = plain_sums(*exact, *blank)
    with library(products):
        out = field_sums(*given, *blank)
        ours = torch.autograd.grad(out, given, upstream.float())
    wanted = torch.autograd.grad(expected, exact, upstream)
    for a, b in zip((out, *ours), (expected, *wanted), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-3)
