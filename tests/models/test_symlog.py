"""Dense features as networks take them: one map for the host's kernel and torch, scale-free at both ends."""

import numpy as np
import pytest
import torch

from livectr.kernels.network import symlog as host
from livectr.models.symlog import symlog


def numbers() -> torch.Tensor:
    """Numbers f32[n] of all magnitudes and signs, and those around 1."""
    rng = np.random.default_rng(0)
    wide = rng.normal(size=10_000) * np.exp(rng.uniform(-80, 80, 10_000))
    near = 1 + np.arange(-50, 50) * 2**-23
    return torch.from_numpy(np.r_[0.0, wide, near, -near].astype(np.float32))


def test_a_number_beyond_1_is_its_logarithm() -> None:
    x = numbers()
    size = x.double().abs()
    expected = torch.where(size <= 1, size, 1 + size.log()).copysign(x.double())
    torch.testing.assert_close(symlog(x).double(), expected, rtol=1e-7, atol=0)
    torch.testing.assert_close(symlog(x.double()), expected, rtol=1e-12, atol=0)
    assert torch.equal(symlog(x)[size <= 1], x[size <= 1])
    ordered = symlog(x.sort().values)
    assert (ordered.diff() >= 0).all()


def test_torch_has_the_bits_of_the_hosts_kernel() -> None:
    """Torch computes where dense features want a gradient, and on a GPU."""
    x = numbers()
    assert torch.equal(symlog(x.clone().requires_grad_()).detach(), symlog(x))


def test_the_slope_is_continuous() -> None:
    x = torch.tensor([-30.0, -1.001, -0.999, 0.0, 0.999, 1.001, 30.0, 3e5], dtype=torch.float64)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(symlog(x).sum(), x)
    torch.testing.assert_close(slope, (1 / x.detach().abs()).clamp_max(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_that_is_not_finite_stays(dtype: torch.dtype) -> None:
    """A batch with it is not learned: no map may hide it."""
    x = torch.tensor([[np.nan, np.inf], [-np.inf, 1.0]], dtype=dtype)
    torch.testing.assert_close(symlog(x), x, rtol=0, atol=0, equal_nan=True)


def test_rows_that_lie_apart() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(host.symlog(x[:, ::2]), host.symlog(x)[:, ::2])
    assert host.symlog(x[:0]).shape == (0, 4)
