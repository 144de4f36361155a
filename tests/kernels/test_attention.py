"""The activation unit's kernel against torch's operations, whatever widths do not fill a register."""

from __future__ import annotations

import os
import sys

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.network import attention
from livectr.kernels.network.attention import AttentionKernel
from livectr.models.attention import _kernel
from livectr.models.inputs import Ragged
from tests.commands import run
from tests.kernels.attention_unit import both, inputs, unit

SHAPES = [(12, (32, 16)), (5, (7,)), (16, (80, 40)), (1, (1, 3, 2)), (33, (20, 17))]


@pytest.mark.parametrize(("dim", "widths"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_torch_with_all_gradients(dim: int, widths: tuple[int, ...], dtype: torch.dtype) -> None:
    lengths = [0, 3, 16, 17, 1, 0, 50, 4] * 20  # shorter and longer than a tile, more samples than blocks
    rtol, atol = (1e-4, 2e-3) if dtype == torch.float32 else (None, None)
    ours, theirs = both(unit(dim, widths, dtype), lengths, dim, dtype)
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


@given(
    st.integers(1, 40),
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.lists(st.integers(0, 70), min_size=1, max_size=6),
)
def test_any_widths(dim: int, widths: list[int], lengths: list[int]) -> None:
    """Both sum the same products, at most some thousand, in another order: errors of float64 stay below
    1e-11 of the largest number.
    """
    ours, theirs = both(unit(dim, tuple(widths), torch.float64), lengths, dim, torch.float64)
    for got, wanted in zip(ours, theirs, strict=True):
        largest = float(wanted.abs().max()) if wanted.numel() else 0.0
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11 * max(largest, 1.0))


def test_a_unit_of_new_widths_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    AttentionKernel(2, (3,), np.float32)
    monkeypatch.setenv("CXX", "/nowhere/c++")
    for dtype in (np.float32, np.float64):
        kernel = AttentionKernel(9, (11, 2), dtype)
        p, v = np.ones(kernel.parameters, dtype), np.ones((3, 9), dtype)
        assert kernel.forward(p, v, np.array([0, 3]), v[:1]).shape == (1, 9)


def test_a_unit_loads_its_kernel_when_it_is_made() -> None:
    """So that no request waits for the library."""
    _kernel.cache_clear()
    attention._library.cache_clear()
    unit(13, (2, 5), torch.float32)
    assert attention._library.cache_info().currsize == 1


@given(st.lists(st.integers(0, 40), min_size=1, max_size=70))
def test_any_lists(lengths: list[int]) -> None:
    torch.testing.assert_close(*both(unit(5, (7,), torch.float64), lengths, 5, torch.float64))


def test_what_is_not_finite_stays_with_its_sample() -> None:
    built = unit(5, (7,), torch.float32)
    values, offsets, query = inputs([3, 3, 3], 5, torch.float32)
    values[4, 2] = float("nan")
    with torch.no_grad():
        out = built(Ragged(values, offsets), query)
    assert out.isnan().all(1).tolist() == [False, True, False]


def test_arrays_that_do_not_fit_are_told() -> None:
    kernel = AttentionKernel(2, (3,), np.float32)
    p, v = np.zeros(kernel.parameters, np.float32), np.zeros((4, 2), np.float32)
    assert kernel.parameters == 4 * 2 * 3 + 3 + 3 + 1 + 3
    for offsets in ([0, 5], [-1, 2], [0, 3, 2], [0]):
        with pytest.raises(ValueError, match=r"offsets must rise|expected shape"):
            kernel.forward(p, v, np.array(offsets), np.zeros((len(offsets) - 1 or 1, 2), np.float32))
    with pytest.raises(ValueError, match="expected shape"):
        kernel.forward(p[1:], v, np.array([0, 4]), v[:1])
    with pytest.raises(ValueError, match="expected shape"):
        kernel.backward(p, v, np.array([0, 4]), v[:1], v[:2])
    for list_of in ([-1], [1]):
        with pytest.raises(ValueError, match="list_of must be from 0 to 0"):
            kernel.forward(p, v, np.array([0, 4]), v[:1], np.array(list_of))
    for dim, widths, dtype in ((2, (), np.float32), (0, (3,), np.float32), (2, (3,), np.float16)):
        with pytest.raises(ValueError, match="no unit of"):
            AttentionKernel(dim, widths, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("widths", [(32, 16), (6,), (33, 17, 9), (1,)])
@pytest.mark.parametrize("dim", [1, 12, 20])
def test_a_shared_list_has_the_bits_of_its_copies(
    dim: int, widths: tuple[int, ...], dtype: npt.DTypeLike
) -> None:
    rng, samples = np.random.default_rng(dim), 70
    kernel = AttentionKernel(dim, widths, dtype)
    p, query = (rng.normal(size=shape).astype(dtype) for shape in (kernel.parameters, (samples, dim)))
    for length in (0, 1, 15, 16, 17, 32, 33, 100):
        values = rng.normal(size=(length, dim)).astype(dtype)
        each = kernel.forward(p, np.tile(values, (samples, 1)), np.arange(samples + 1) * length, query)
        shared = kernel.forward(p, values, np.array([0, length]), query, np.zeros(samples, np.int64))
        np.testing.assert_array_equal(shared, each)
        np.testing.assert_array_equal(kernel.pooled(p, values, query), each)


@pytest.mark.parametrize("learned", [True, False])
def test_a_unit_computes_with_its_newest_weights(learned: bool) -> None:
    """It packs weights that are no longer learned once, until it is told that they may change."""
    built = unit(5, (7,), torch.float32).eval().requires_grad_(learned)
    values, offsets, query = inputs([3, 2], 5, torch.float32)
    with torch.no_grad():
        before = built(Ragged(values, offsets), query)
        built.weights[-1].mul_(2)
        built.biases[-1].mul_(2)
        if not learned:
            built.eval()
        torch.testing.assert_close(built(Ragged(values, offsets), query), 2 * before)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=9).flatmap(
        lambda lengths: st.tuples(
            st.just(lengths), st.lists(st.integers(0, len(lengths) - 1), min_size=0, max_size=150)
        )
    )
)
def test_lists_of_groups_equal_their_copies(drawn: tuple[list[int], list[int]]) -> None:
    """A list may have no sample; its vectors have no gradient."""
    lengths, list_of = np.array(drawn[0]), np.array(drawn[1], np.int64)
    rng, dim = np.random.default_rng(1), 5
    kernel = AttentionKernel(dim, (7, 3), np.float64)
    offsets = np.r_[0, lengths.cumsum()]
    p, values = rng.normal(size=kernel.parameters), rng.normal(size=(offsets[-1], dim))
    query, grad = rng.normal(size=(2, len(list_of), dim))
    copied = np.concatenate([np.arange(0), *(np.arange(*offsets[at : at + 2]) for at in list_of)])
    each = values[copied], np.r_[0, lengths[list_of].cumsum()], query
    out = kernel.forward(p, values, offsets, query, list_of)
    np.testing.assert_array_equal(out, kernel.forward(p, *each))
    of_copies, *others = kernel.backward(p, *each, grad)
    of_values, *shared = kernel.backward(p, values, offsets, query, grad, list_of)
    summed = np.zeros_like(values)
    np.add.at(summed, copied, of_copies)
    for ours, theirs in zip([of_values, *shared], [summed, *others], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_the_same_bits_for_any_number_of_threads() -> None:
    script = (
        "import torch\n"
        "from hashlib import sha256\n"
        "from tests.kernels.attention_unit import both, unit\n"
        "for dim, widths in ((12, (32, 16)), (33, (20, 17, 3)), (5, (7,))):\n"
        "    found, _ = both(unit(dim, widths, torch.float32), [5, 0, 40, 70] * 60, dim, torch.float32)\n"
        "    print([sha256(one.numpy().tobytes()).hexdigest() for one in found])\n"
    )
    said = {
        run(
            [sys.executable, "-c", script],
            env={**os.environ, "LIVECTR_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "5")
    }
    assert len(said) == 1
