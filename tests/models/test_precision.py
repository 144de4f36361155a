"""bf16 products beside fp32 ones: how far apart, where they hold, and that fp32 is untouched."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from models import DeepFM
from models.deepfm import DeepFMModel
from models.precision import Precision, precision

EPSILON = 2.0**-8
"""Between neighbours of bf16; rounding errs by half of it."""

FIELDS = tuple(f"f{i}" for i in range(26))
DENSE = tuple(f"d{i}" for i in range(13))
B = 512

ROUNDS = torch.ops.mkldnn._is_mkldnn_bf16_supported()
"""Whether this CPU has bf16 products; others compute in fp32, whatever is asked."""


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def settings_are_restored() -> Iterator[None]:
    """Every test leaves the process computing as it found it."""
    a, b = random(64, 64), random(64, 64, seed=1)
    before = a @ b
    yield
    assert torch.equal(a @ b, before)


def test_factors_are_rounded_and_sums_are_not() -> None:
    a, b = random(256, 512), random(512, 128, seed=1)
    rounded = a.bfloat16().double() @ b.bfloat16().double()
    with precision("bf16"):
        product = a @ b
    assert product.dtype == torch.float32
    expected = rounded if ROUNDS else a.double() @ b.double()
    torch.testing.assert_close(product.double(), expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(product, a @ b) is not ROUNDS


def test_precisions_nest() -> None:
    a, b = random(64, 64), random(64, 64, seed=1)
    exact = a @ b
    with precision("bf16"):
        product = a @ b
        with precision("fp32"):
            assert torch.equal(a @ b, exact)
        assert torch.equal(a @ b, product)
        assert torch.equal(product, exact) is not ROUNDS


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


def learn(name: Precision, *, bias: float = 0.0) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and by name the gradients of their mean with random weights."""
    model = network(bias=bias)
    values = (0.2 * random(B, len(FIELDS), 17, seed=2)).requires_grad_()
    with precision(name):
        logits = model(values, random(B, len(DENSE), seed=3))
        (logits @ random(B, seed=4)).div(B).backward()
    assert values.grad is not None
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), grads | {"values": values.grad}


def distance(one: Tensor, other: Tensor) -> float:
    """Relative, in the 2-norm."""
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize(("bias", "bound"), [(2.0, EPSILON), (0.0, 2 * EPSILON**0.5)])
def test_a_step_in_bf16_is_near_one_in_fp32(bias: float, bound: float) -> None:
    """Where a relu is near its kink, one in about 1 / EPSILON passes what the other stops, and gradients
    are √EPSILON apart; with all relus open they are as near as products are."""
    (logits, grads), (exact, exact_grads) = learn("bf16", bias=bias), learn("fp32", bias=bias)
    assert distance(logits, exact) < EPSILON
    assert grads.keys() == exact_grads.keys()
    for name, grad in grads.items():
        assert torch.isfinite(grad).all()
        assert distance(grad, exact_grads[name]) < bound, name


def test_fm_and_first_order_stay_fp32() -> None:
    """With an MLP that says nothing, the logits are FM's, to the bit."""
    model = network()
    assert model.linear is not None
    with torch.no_grad():
        model.mlp.weights[-1].zero_()
        model.linear.copy_(random(len(DENSE), seed=5))
    values, dense = random(B, len(FIELDS), 17, seed=2), random(B, len(DENSE), seed=3)
    exact = model(values, dense)
    with precision("bf16"):
        assert torch.equal(model(values, dense), exact)


def test_the_same_bits_again() -> None:
    (logits, grads), (again, grads_again) = learn("bf16"), learn("bf16")
    assert torch.equal(logits, again)
    for name, grad in grads.items():
        assert torch.equal(grad, grads_again[name]), name
