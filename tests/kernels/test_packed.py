"""Products with fp32 and bf16 factors against float64, whatever does not fill a tile, in any layout."""

import os
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.network.packed import Factors, product
from tests.commands import run
from tests.kernels.older_cpu import FEWER, built_for_older, using

F32 = npt.NDArray[np.float32]


def rounded(array: F32) -> F32:
    """To the nearest of 8 bits of mantissa, ties to even."""
    bits = array.view(np.uint32).astype(np.uint64)
    near = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return near.astype(np.uint32).view(np.float32)


def random(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def made(rows: int, columns: int, layout: str, seed: int) -> F32:
    """An array of a layout: plain, turned, or every other column of a wider one."""
    if layout == "turned":
        return random(columns, rows, seed=seed).T
    return (
        random(rows, 2 * columns, seed=seed)[:, ::2]
        if layout == "apart"
        else random(rows, columns, seed=seed)
    )


EDGES = st.integers(0, 70) | st.sampled_from([255, 256, 257, 513])
LAYOUTS = st.sampled_from(["plain", "turned", "apart"])


@given(m=EDGES, n=EDGES, k=EDGES, of_a=LAYOUTS, of_b=LAYOUTS, stored=st.booleans(), add=st.booleans())
def test_bf16_equals_float64(m: int, n: int, k: int, of_a: str, of_b: str, stored: bool, add: bool) -> None:
    a, b, before = made(m, k, of_a, 1), made(k, n, of_b, 2), random(m, n + 3, seed=3)
    factor = rounded(np.ascontiguousarray(a))
    exact = factor.astype(np.float64) @ rounded(np.ascontiguousarray(b)).astype(np.float64)
    out = before.copy()
    given = (factor.view(np.uint32) >> 16).astype(np.uint16) if stored else a
    assert product(given, b, out[:, :n], "bf16", add=add).base is out
    exact += before[:, :n] * add
    np.testing.assert_allclose(out[:, :n], exact, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(out[:, n:], before[:, n:])


@given(m=EDGES, n=EDGES, k=EDGES, of_a=LAYOUTS, of_b=LAYOUTS, add=st.booleans())
def test_fp32_equals_float64(m: int, n: int, k: int, of_a: str, of_b: str, add: bool) -> None:
    a, b, before = made(m, k, of_a, 1), made(k, n, of_b, 2), random(m, n + 3, seed=3)
    out = before.copy()
    assert product(a, b, out[:, :n], "fp32", add=add).base is out
    exact = a.astype(np.float64) @ b.astype(np.float64) + before[:, :n] * add
    np.testing.assert_allclose(out[:, :n], exact, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(out[:, n:], before[:, n:])


@given(m=EDGES, n=EDGES, k=EDGES, of_a=LAYOUTS, add=st.booleans())
def test_float16_equals_its_float32(m: int, n: int, k: int, of_a: str, add: bool) -> None:
    """Features are stored as float16; a product has the bits of that of a float32 copy."""
    halves = (made(m, k, of_a, 1) * 1e-3).astype(np.float16)  # some are below the least normal number
    halves = np.asfortranarray(halves) if of_a == "turned" else halves
    b, out = random(k, n, seed=2), random(m, n, seed=3)
    expected = product(halves.astype(np.float32), b, out.copy(), "fp32", add=add)
    np.testing.assert_array_equal(product(halves, b, out, "fp32", add=add), expected)


def test_every_float16_is_widened() -> None:
    """Factors of one: each number comes back as NumPy widens it."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)[:, None]
    out = product(halves, np.ones((1, 1), np.float32), np.empty((1 << 16, 1), np.float32), "fp32")
    np.testing.assert_array_equal(out, halves.astype(np.float32))


@pytest.mark.parametrize("factors", ["fp32", "bf16"])
def test_what_is_not_finite_stays_so(factors: Factors) -> None:
    a = np.zeros((16, 16), np.float32)
    a[0, 0], a[1, 1], a[2, 2] = np.nan, np.inf, 3.4e38  # the last one is beyond bf16's largest number
    a.view(np.uint32)[3, 3] = 0x7F800001  # a NaN that rounding alone would make infinite
    out = product(a, np.eye(16, dtype=np.float32), np.empty((16, 16), np.float32), factors)
    assert np.isnan(out[0]).any() and np.isnan(out[3]).any()
    assert np.isnan(out[1]).any() and out[1, 1] == np.inf
    assert out[2, 2] == (np.inf if factors == "bf16" else a[2, 2])


@pytest.mark.parametrize("factors", ["fp32", "bf16"])
def test_a_row_is_the_same_beside_any_others(factors: Factors) -> None:
    """Ranks have different rows of a batch."""
    a, b = random(100, 300), random(300, 40, seed=1)
    whole = product(a, b, np.empty((100, 40), np.float32), factors)
    for rows in (slice(0, 1), slice(37, 90), slice(99, 100)):
        some = np.ascontiguousarray(a[rows])
        out = product(some, b, np.empty((len(some), 40), np.float32), factors)
        np.testing.assert_array_equal(out, whole[rows])


def digest(factors: Factors, library: Path | None = None, **environment: str) -> str:
    """Digest of a product that another process computes."""
    program = using(library) + (
        "import hashlib, numpy as np; from livectr.kernels.network.packed import product;"
        "r = np.random.default_rng(0);"
        "a, b = r.standard_normal((500, 300), np.float32), r.standard_normal((300, 70), np.float32);"
        f"out = product(a, b, np.empty((500, 70), np.float32), {factors!r});"
        "halves = np.r_[a.ravel(), 1e-7, np.inf, -0.0].astype(np.float16)[:, None];"
        f"kind = halves if {factors!r} == 'fp32' else halves.astype(np.float32);"
        "one = np.ones((1, 1), np.float32);"
        f"more = product(kind, one, np.empty((len(halves), 1), np.float32), {factors!r});"
        "print(hashlib.sha256(out.tobytes() + more.tobytes()).hexdigest())"
    )
    return run(
        [sys.executable, "-c", program], env={**os.environ, **environment},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


@pytest.mark.parametrize("factors", ["fp32", "bf16"])
def test_the_same_bits_with_any_number_of_threads(factors: Factors) -> None:
    assert digest(factors, LIVECTR_THREADS="1") == digest(factors, LIVECTR_THREADS="3")


@pytest.mark.unsanitized  # compiles a unit again
@pytest.mark.parametrize("fewer", FEWER)
def test_fp32_has_the_same_bits_on_a_cpu_without_avx512(tmp_path: Path, fewer: str) -> None:
    """A run that began on one make of CPU continues with the same sums on another."""
    older = built_for_older(["network/packed.cpp"], tmp_path, fewer)
    assert digest("fp32", older) == digest("fp32")


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        (random(3, 4), random(5, 2), random(3, 2)),
        (random(3, 4), random(4, 2), random(3, 3)),
        (random(3, 4), random(4, 2), random(2, 3).T),
        (random(3, 4).astype(np.float64), random(4, 2), random(3, 2)),
        (random(3, 4), random(4, 2).astype(np.float16), random(3, 2)),
        (np.zeros((3, 4), np.uint16), random(4, 2), random(3, 2)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(a: F32, b: F32, out: F32) -> None:
    with pytest.raises(ValueError, match="no product of"):
        product(a, b, out, "fp32")
