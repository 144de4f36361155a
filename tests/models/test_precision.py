"""bf16 products beside fp32 ones: how far apart, where they hold, and that fp32 is untouched."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from livectr.kernels.network.packed import native
from livectr.models import DeepFM, products
from livectr.models.deepfm import DeepFMModel
from livectr.models.half import half_linear
from livectr.models.precision import Precision, ProductMethod, arithmetic_name, measured_method, precision
from livectr.models.products import affine, product
from tests.models.rounding import is_rounded, random

EPSILON = 2.0**-8
"""Between neighbours of bf16; rounding errs by half of it."""

FIELDS = tuple(f"f{i}" for i in range(26))
DENSE = tuple(f"d{i}" for i in range(13))
B = 512

METHODS: tuple[ProductMethod, ...] = ("fp32", "onednn", "operands")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def settings_are_restored() -> Iterator[None]:
    """Every test leaves the process computing as it found it."""
    a, b = random(64, 64), random(64, 64, seed=1)
    before = a @ b
    yield
    assert torch.equal(a @ b, before)


def test_factors_are_rounded_and_sums_are_not() -> None:
    """By operands on any CPU, by oneDNN where it has an effect, and by default as `arithmetic_name` says."""
    assert is_rounded("operands") and not is_rounded("fp32")
    assert is_rounded("onednn") is (measured_method() == "onednn")
    assert is_rounded(None) is (arithmetic_name("bf16", CPU) != "fp32")


def test_each_way_has_a_name() -> None:
    assert arithmetic_name("fp32", CPU) == "fp32" and arithmetic_name("bf16", torch.device("cuda")) == "tf32"
    names = {"fp32": "fp32", "onednn": "bf16 (oneDNN)", "operands": "bf16 operands"}
    assert arithmetic_name("bf16", CPU) == names[measured_method()]
    assert measured_method() != "fp32" or not native("bf16")


def test_a_cpu_without_bf16_says_so() -> None:
    """A CPU with AVX2 alone loads its level's kernels, and oneDNN chooses without newer instructions."""
    program = (
        "from livectr.system.cpu import level; from livectr.kernels.runtime import library;"
        # one unit of the library: the others take long
        "packed = [unit for unit in library._units() if unit.name == 'network/packed.cpp'];"
        "library._units, library.own_levels = lambda: packed, lambda: [level('x86-64-v3')];"
        "import torch; from tests.models.rounding import is_rounded;"
        "from livectr.models.precision import arithmetic_name;"
        "print(arithmetic_name('bf16', torch.device('cpu')), is_rounded(None), is_rounded('operands'))"
    )
    old = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **old}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["fp32", "False", "True"]


@pytest.mark.parametrize("method", [None, *METHODS])
def test_precisions_nest(method: ProductMethod | None) -> None:
    a, b = random(64, 64), random(64, 64, seed=1)
    exact = product(a, b)
    with precision("bf16", method=method):
        out = product(a, b)
        with precision("fp32"):
            assert torch.equal(product(a, b), exact)
        assert torch.equal(product(a, b), out)
    assert torch.equal(product(a, b), exact)


@pytest.mark.parametrize("rows", [5, 64])
def test_layers_have_gradients(rows: int) -> None:
    """Products with and without a bias, lists of vectors too; narrow products stay fp32."""
    weight, x, towards = random(24, 32, seed=1), random(3, rows, 24), random(3, rows, 32, seed=2)
    bias = random(32, seed=3)
    found = []
    for method in ("fp32", "operands"):
        leaves = [t.clone().requires_grad_() for t in (weight, x, bias)]
        with precision("bf16", method=method):
            out = product(leaves[1], leaves[0]).flatten(0, 1)
            out = out + affine(leaves[2], leaves[1].flatten(0, 1), leaves[0])
            found.append([out.detach(), *torch.autograd.grad((out * towards.flatten(0, 1)).sum(), leaves)])
    for one, exact in zip(*found, strict=True):
        assert distance(one, exact) < EPSILON
    assert torch.equal(found[0][0], found[1][0]) is (3 * rows < 16)


def test_stored_halves_are_rounded() -> None:
    """A first layer on float16 features, by operands: near that of float64, gradients too."""
    x, towards = random(200, 64).half(), random(200, 32, seed=2)
    weight, bias = random(64, 32, seed=1).requires_grad_(), random(32, seed=3).requires_grad_()
    with precision("bf16", method="operands"):
        out = half_linear(x, weight, bias)
        assert out.grad_fn is not None
        kept = [t.dtype for t in out.grad_fn.saved_tensors if t.shape == x.shape]  # type: ignore[attr-defined]
        assert kept == [torch.bfloat16]
        of_weight, of_bias = torch.autograd.grad((out * towards).sum(), (weight, bias))
    rounded = x.bfloat16().double()
    exact = rounded @ weight.detach().bfloat16().double() + bias.detach()
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-4)
    of_exact = rounded.t() @ towards.bfloat16().double()
    torch.testing.assert_close(of_weight.double(), of_exact, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(of_bias, towards.sum(0))


def test_an_exception_ends_it() -> None:
    with pytest.raises(ZeroDivisionError), precision("bf16"):
        raise ZeroDivisionError


def test_unknown_precision_is_named() -> None:
    with pytest.raises(ValueError, match="'fp16', but must be one of fp32, bf16"), precision("fp16"):  # type: ignore[arg-type]
        pass


def network(*, bias: float = 0.0) -> DeepFMModel:
    """A DeepFM as wide as workload P's, its relus open where the bias is large."""
    model = DeepFM(dim=16, hidden=(256, 128)).build(FIELDS, FIELDS, DENSE, True, seed=1)
    assert isinstance(model, DeepFMModel)
    with torch.no_grad():
        model.mlp.first_bias.fill_(bias)
        model.mlp.biases[0].fill_(5 * bias)
    return model


def learn(
    name: Precision, *, bias: float = 0.0, method: ProductMethod | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and by name the gradients of their mean with random weights."""
    model = network(bias=bias)
    values = (0.2 * random(B, len(FIELDS), 17, seed=2)).requires_grad_()
    with precision(name, method=method):
        logits = model(values, random(B, len(DENSE), seed=3))
        (logits @ random(B, seed=4)).div(B).backward()
    assert values.grad is not None
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), grads | {"values": values.grad}


def distance(one: Tensor, other: Tensor) -> float:
    """Relative, in the 2-norm."""
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("method", [None, *METHODS])
@pytest.mark.parametrize(("bias", "bound"), [(2.0, EPSILON), (0.0, 2 * EPSILON**0.5)])
def test_a_step_in_bf16_is_near_one_in_fp32(bias: float, bound: float, method: ProductMethod | None) -> None:
    """Gradients are √EPSILON apart where relus are near their kink: one in about 1 / EPSILON passes in one
    precision only. With all relus open they are as near as products are.
    """
    (logits, grads), (exact, exact_grads) = learn("bf16", bias=bias, method=method), learn("fp32", bias=bias)
    assert distance(logits, exact) < EPSILON
    assert grads.keys() == exact_grads.keys()
    for name, grad in grads.items():
        assert torch.isfinite(grad).all()
        assert distance(grad, exact_grads[name]) < bound, name


def test_fm_and_first_order_stay_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an MLP that says nothing, the logits are FM's, to the bit."""
    monkeypatch.setattr(products, "SMALL", 0)
    model = network()
    assert model.wide.dense is not None
    with torch.no_grad():
        model.mlp.weights[-1].zero_()
        model.wide.dense.copy_(random(len(DENSE), seed=5))
    values, dense = random(B, len(FIELDS), 17, seed=2), random(B, len(DENSE), seed=3)
    for method in METHODS:
        with precision("fp32", products="packed" if method == "operands" else "torch"):
            exact = model(values, dense)
        with precision("bf16", method=method):
            assert torch.equal(model(values, dense), exact)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_bits_again(method: ProductMethod) -> None:
    (logits, grads), (again, grads_again) = learn("bf16", method=method), learn("bf16", method=method)
    assert torch.equal(logits, again)
    for name, grad in grads.items():
        assert torch.equal(grad, grads_again[name]), name
