"""The packed library of fp32 products: the same networks as with torch's, forward and backward."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from livectr.kernels.network import packed
from livectr.models import library as libraries
from livectr.models.half import half_linear
from livectr.models.library import Library, library, packs, rates, suited
from livectr.models.precision import ProductMethod, precision
from livectr.models.products import SMALL, affine, product
from livectr.system.cpu import maker

B, WIDTH, HIDDEN = 512, 128, 64


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def kernel(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty(len(a), b.shape[1])
    packed.product(a.numpy(), b.numpy(), out.numpy(), "fp32")
    return out


def layer(way: Callable[[Tensor, Tensor, Tensor], Tensor], name: Library) -> list[Tensor]:
    """Sums of a layer, and gradients of its weight, its rows and its bias."""
    leaves = [
        t.requires_grad_() for t in (random(WIDTH, HIDDEN, seed=1), random(B, WIDTH), random(HIDDEN, seed=3))
    ]
    with precision("fp32", products=name):
        out = way(*leaves)
        return [out.detach(), *torch.autograd.grad((out * random(B, HIDDEN, seed=2)).sum(), leaves)]


@pytest.mark.parametrize(
    "way",
    [
        lambda w, x, b: affine(b, x, w),
        lambda w, x, b: affine(b.expand(B, HIDDEN), x, w),
        lambda w, x, b: product(x.view(4, B // 4, WIDTH), w).flatten(0, 1) + b,
    ],
)
def test_layers_are_equal_with_either_library(way: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    for one, other in zip(layer(way, "packed"), layer(way, "torch"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_all_three_products_of_a_layer_are_the_kernels() -> None:
    assert B * WIDTH * HIDDEN >= SMALL
    out, of_weight, of_x, of_bias = layer(lambda w, x, b: product(x, w) + 0 * b, "packed")
    weight, x, towards = random(WIDTH, HIDDEN, seed=1), random(B, WIDTH), random(B, HIDDEN, seed=2)
    assert torch.equal(out, kernel(x, weight))
    assert torch.equal(of_weight, kernel(x.t(), towards))
    assert torch.equal(of_x, kernel(towards, weight.t()))
    assert not of_bias.any()


def test_a_first_layer_of_stored_features_is_the_kernels() -> None:
    x, weight = random(B, WIDTH).half(), random(WIDTH, HIDDEN, seed=1)
    with precision("fp32", products="packed"):
        assert torch.equal(half_linear(x, weight, torch.zeros(HIDDEN)), kernel(x.float(), weight))


@pytest.mark.parametrize("shape", [(B, WIDTH, 8), (8, WIDTH, HIDDEN), (32, 32, 32)])
def test_narrow_and_small_products_are_torchs(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, weight = random(m, k), random(k, n, seed=1)
    with library("packed"):
        assert torch.equal(product(x, weight), x @ weight)


@pytest.mark.parametrize("method", ["onednn", "operands"])
def test_bf16_is_not_the_fp32_kernels(method: ProductMethod) -> None:
    """oneDNN rounds what torch multiplies, so torch has to multiply it."""
    x, weight = random(B, WIDTH), random(WIDTH, HIDDEN, seed=1)
    with precision("bf16", method=method):
        exact = product(x, weight)
    with precision("bf16", method=method, products="packed"):
        assert torch.equal(product(x, weight), exact) and not packs()


def test_a_library_is_of_its_thread_and_its_block() -> None:
    seen = []
    with library("packed"):
        other = threading.Thread(target=lambda: seen.append(packs()))
        other.start()
        other.join()
        with library("torch"):
            seen.append(packs())
        seen.append(packs())
    assert [*seen, packs()] == [False, False, True, False]


@pytest.mark.parametrize(
    ("of", "avx512", "expected"),
    [
        ("AuthenticAMD", True, "packed"),
        ("AuthenticAMD", False, "torch"),
        ("GenuineIntel", True, "torch"),
        ("", False, "torch"),
    ],
)
def test_maker_and_instructions_choose(
    of: str, avx512: bool, expected: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "maker", lambda: of)
    monkeypatch.setattr(packed, "native", lambda _: avx512)
    assert suited.__wrapped__() == expected


def test_this_cpu_is_named_and_both_libraries_are_measured() -> None:
    assert suited() == ("packed" if maker() == "AuthenticAMD" and packed.native("fp32") else "torch")
    measured = rates(rows=256, times=2)
    assert set(measured) == {"torch", "packed"} and all(rate > 0 for rate in measured.values())
