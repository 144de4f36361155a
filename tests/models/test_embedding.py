"""Sub-models of content against plain formulas, in both precisions."""

import pytest
import torch

from livectr.models import EmbeddingModel, SubModel, TextProjection, decay, half
from livectr.models.half import half_linear
from livectr.models.precision import Precision, precision


def plain(model: EmbeddingModel, x: torch.Tensor) -> torch.Tensor:
    """Plain formula for a row f32[width] → f32[out]."""
    network = model.network("images", 3)
    w, b, a = ([p.detach() for p in ps] for ps in (network.weights, network.biases, network.slopes))  # type: ignore[union-attr]
    for i in range(len(model.hidden)):
        z = [float(b[i][j] + sum(x[k] * w[i][k, j] for k in range(len(x)))) for j in range(len(b[i]))]
        x = torch.tensor([v if v > 0 else v * float(s) for v, s in zip(z, a[i], strict=True)])
    return x @ w[-1] + b[-1]


def test_layers_and_absent() -> None:
    model = EmbeddingModel(width=6, hidden=(5, 4), out=3)
    network = model.network("images", 3)
    x, known = torch.randn(4, 6).half(), torch.tensor([True, False, True, True])
    x[1] = float("nan")  # is not looked at
    out = network(x, known)
    for row in (0, 2, 3):
        torch.testing.assert_close(out[row], plain(model, x[row].float()))
    assert torch.equal(out[1], network.absent)
    out.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in network.parameters())
    torch.testing.assert_close(network.absent.grad, torch.ones(3))


def test_paper_sizes_and_seeds() -> None:
    network = EmbeddingModel().network("images", 1)
    shapes = [tuple(w.shape) for w in network.weights]  # type: ignore[union-attr]
    assert shapes == [(4096, 256), (256, 64), (64, 12)]
    again, other = (EmbeddingModel().network(name, 1) for name in ("images", "texts"))
    assert torch.equal(again.absent, network.absent) and not torch.equal(other.absent, network.absent)


def test_a_projection() -> None:
    network = TextProjection(width=5, out=2).network("texts", 1)
    assert isinstance(network.weight, torch.Tensor) and isinstance(network.bias, torch.Tensor)
    x = torch.randn(3, 5)
    torch.testing.assert_close(network(x, torch.ones(3, dtype=torch.bool)), x @ network.weight + network.bias)


@pytest.fixture(params=["own", "float16"])
def reduced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products as on this CPU, and in float16, which few CPUs have."""
    if request.param == "float16":
        monkeypatch.setattr(half, "reduced", lambda device: True)


@pytest.mark.usefixtures("reduced")
@pytest.mark.parametrize("name", ["fp32", "bf16"])
@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e5])
def test_products_of_halves(name: Precision, scale: float) -> None:
    """Values and gradients, tiny and large ones too, near those of float64."""
    torch.manual_seed(0)
    x = torch.randn(2500, 64).half()
    weight, bias = torch.randn(64, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    towards = torch.randn(2500, 8) * scale
    with precision(name):
        rounded = half.reduced(x.device)
        out = half_linear(x, weight, bias)
        out.backward(towards)  # type: ignore[no-untyped-call]
    exact = x.double() @ weight.detach().double() + bias.detach().double()
    error = 1e-2 if rounded else (1e-5 if name == "fp32" else 5e-2)
    torch.testing.assert_close(out.double(), exact, rtol=error, atol=10 * error)
    gradient = x.double().t() @ towards.double()
    assert weight.grad is not None and bias.grad is not None
    assert (weight.grad.double() - gradient).norm() <= error * gradient.norm()
    torch.testing.assert_close(bias.grad, towards.sum(0))


@pytest.mark.usefixtures("reduced")
def test_sums_beyond_half_are_not_lost() -> None:
    x, weight = torch.full((2048, 16), 6e4).half(), torch.full((16, 3), 5.0, requires_grad=True)
    with precision("bf16"):
        out = half_linear(x, weight, torch.zeros(3))
        out.backward(torch.ones_like(out))  # type: ignore[no-untyped-call]
    value = float(x[0, 0])
    torch.testing.assert_close(out, torch.full((2048, 3), value * 16 * 5), rtol=1e-2, atol=0)
    torch.testing.assert_close(weight.grad, torch.full((16, 3), 2048 * value), rtol=1e-2, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EmbeddingModel(width=0), "EmbeddingModel: width is 0"),
        (lambda: EmbeddingModel(hidden=()), "EmbeddingModel: hidden is"),
        (lambda: EmbeddingModel(lr=-1.0), "EmbeddingModel: lr is -1"),
        (lambda: TextProjection(schedule=0.9), "TextProjection: schedule is 0.9"),  # type: ignore[arg-type]
    ],
)
def test_settings_are_checked(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_schedules_are_settings() -> None:
    model: SubModel = EmbeddingModel(schedule=decay(0.5, every=10))
    assert model.schedule.factor(10) == 0.5
