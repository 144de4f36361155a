"""Operators with running statistics of the stream.

They follow test-then-train: a batch is extracted with the statistics of earlier batches. Then they are
updated with the full global batch, in the global sequence. So no value depends on its own batch or the
future, and any number of ranks gives the same bits. The state is part of checkpoints and published versions;
a server uses the state of the version that it serves.

Inputs are scalars. Values that are not finite, or beyond ±1e150 (whose squares overflow), are ignored.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import Expr, Operand, as_expr, need
from livectr.ingest.language.resources import Array, Statistic
from livectr.ingest.operators.key import key
from livectr.kernels.keys.keys import combine_keys
from livectr.system.errors import ConfigError

F64 = npt.NDArray[np.float64]

MAX_COUNTERS = 1 << 24
"""Most counters of a sketch: 128 MiB, which every checkpoint and every version would hold."""


@dataclass(frozen=True)
class Moments(Statistic):
    """State float64[3]: number of values n, mean, and M2, the sum of squared differences from the mean."""

    def initial(self) -> Array:
        """State of no values: zeros."""
        return np.zeros(3)

    def update(self, state: Array, observed: Array) -> Array:
        """Combine two parts, by Chan, Golub and LeVeque.

        See "Algorithms for Computing the Sample Variance", The American Statistician 37 (1983), (2.1).

        Sums are of differences from the first value, so that equal values have M2 = 0 exactly.
        """
        values = _usable(observed)
        if not len(values):
            return state
        n, mean, m2 = state.tolist()
        m = float(len(values))
        shifted = values - values[0]
        shift = float(shifted.sum()) / m
        m2_here = float(((shifted - shift) ** 2).sum())
        apart = float(values[0]) + shift - mean
        return np.array([n + m, mean + apart * (m / (n + m)), m2 + m2_here + apart**2 * (n * m / (n + m))])


@dataclass(frozen=True)
class Range(Statistic):
    """State float64[2]: minimum and maximum; inf and -inf before the first value."""

    def initial(self) -> Array:
        """State of no values: inf and -inf."""
        return np.array([np.inf, -np.inf])

    def update(self, state: Array, observed: Array) -> Array:
        """Bounds of earlier and new values; a batch without usable values changes nothing."""
        values = _usable(observed)
        if not len(values):
            return state
        return np.array([min(state[0], values.min()), max(state[1], values.max())])


@dataclass(frozen=True)
class Quantiles(Statistic):
    """Quantiles of the first m values; m grows to `fit_rows` by doublings, and then the bounds stay.

    State float64: the number of bounds (0 or n - 1), the bounds, and, until `fit_rows` values were seen, the
    values. The bounds depend on the values seen, not on how batches cut them.
    """

    n: int
    fit_rows: int

    def initial(self) -> Array:
        """State of no values: a 0."""
        return np.zeros(1)

    def update(self, state: Array, observed: Array) -> Array:
        """Collect values, and fit the bounds anew when m has doubled; with `fit_rows` of them, for good."""
        bounds, seen = np.split(state[1:], [int(state[0])])
        if len(bounds) and not len(seen):
            return state
        values = np.concatenate([seen, _usable(observed)])[: self.fit_rows]
        fitted = self._fitted(len(values))
        if fitted and (not len(bounds) or fitted > self._fitted(len(seen))):
            bounds = np.quantile(values[:fitted], np.arange(1, self.n) / self.n)
        kept = values if len(values) < self.fit_rows else values[:0]
        return np.concatenate([[float(len(bounds))], bounds, kept])

    def steady(self, state: Array) -> int:
        """Number of values up to the next fit."""
        bounds, seen = int(state[0]), len(state) - 1 - int(state[0])
        if bounds and not seen:
            return sys.maxsize
        fit = self.fit_rows
        while fit // 2 > seen:
            fit //= 2
        return fit - seen

    def _fitted(self, seen: int) -> int:
        """Values of a fit: the largest of fit_rows, fit_rows // 2, fit_rows // 4, … that were seen.

        It is 0 while that is less than a value for each bucket.
        """
        fitted = self.fit_rows
        while fitted > seen:
            fitted //= 2
        return fitted if fitted >= self.n else 0


@dataclass(frozen=True)
class CountMinSketch(Statistic):
    """Count-min sketch, int64[depth · width], row by row.

    Cormode and Muthukrishnan, "An Improved Data Stream Summary: The Count-Min Sketch and its Applications",
    J. Algorithms 55 (2005), §3. Deviation: rows hash with the mixer of kernels/runtime/hash.cuh, seeded by
    their number, where the paper's bound requires pairwise independent hash functions.
    """

    depth: int
    width: int

    def initial(self) -> Array:
        """Counters of 0."""
        return np.zeros(self.depth * self.width, np.int64)

    def update(self, state: Array, observed: Array) -> Array:
        """Add one to a counter of each row for each value of a batch."""
        counts = state.reshape(self.depth, self.width).copy()
        for row in range(self.depth):
            hashes = combine_keys(np.full(len(observed), row, np.int64), np.ascontiguousarray(observed))
            counts[row] += np.bincount(hashes & (self.width - 1), minlength=self.width)
        return counts.reshape(-1)


def _usable(observed: Array) -> F64:
    """Values as float64, without values that are not finite or whose square overflows."""
    values = observed.astype(np.float64)
    kept: F64 = values[np.abs(values) < 1e150]
    return kept


def _scalar(x: Operand, op: str, allowed: tuple[str, ...], what: str) -> Expr:
    """Node of an operator's argument.

    Raises:
        ConfigError: it is a list, a constant, or has another type.
    """
    node = as_expr(x, op)
    need(op, node, allowed, what)
    if dtypes.is_list(node.dtype):
        raise ConfigError(
            f"{op} needs one value per row, but {node} is {node.dtype}; take its length(), sum or head first"
        )
    if node.op == "constant":
        raise ConfigError(f"{op} learns from a column, but {node} is a constant")
    return node


def zscore(x: Operand) -> Expr:
    """Standard score (x - mean) / standard deviation over all values of earlier batches: float32.

    It uses the population's standard deviation and is computed in float64. It is 0 before the first batch and
    while all values were equal.

    Args:
        x: number or bool, one value per row.

    Example: `zscore(ads.price)`.
    """
    node = _scalar(x, "zscore", dtypes.FIXED, "a number")
    device = Device("zscore_of({0}, {state})", casts=("float64",), statistic=Moments())
    return Expr("zscore", (node,), dtype="float32", device=device)


def minmax(x: Operand) -> Expr:
    """Min-max scaling (x - min) / (max - min) over all values of earlier batches, clipped to [0, 1]: float32.

    It is computed in float64, and is 0 before the first batch and while all values were equal.

    Args:
        x: number or bool, one value per row.

    Example: `minmax(log.position)`.
    """
    node = _scalar(x, "minmax", dtypes.FIXED, "a number")
    device = Device("minmax_of({0}, {state})", casts=("float64",), statistic=Range())
    return Expr("minmax", (node,), dtype="float32", device=device)


def quantile_bins(x: Operand, n: int, fit_rows: int = 10_000) -> Expr:
    """Quantile bucket of a number: int32 in [0, n), buckets of about equally many rows.

    The n - 1 bounds are the quantiles i/n of the first values of training (linear interpolation; Hyndman and
    Fan 1996, type 7). They are fitted as soon as there is a value for each bucket, and again whenever twice
    as many were seen, up to `fit_rows`. Then they are frozen, so that a key keeps its meaning. Before the
    first fit every row is in bucket 0. Comparison is in float64 as by `bucketize`: a bound belongs to the
    bucket above it, NaN to the last bucket. Where the range is known before, `bucketize` with fixed bounds
    has its keys from the first row on.

    Args:
        x: number or bool, one value per row.
        n: number of buckets, 2 to fit_rows.
        fit_rows: values of the last fit; earlier ones take fit_rows // 2, fit_rows // 4, … values.

    Example: `quantile_bins(ads.price, 10)`.
    """
    node = _scalar(x, "quantile_bins", dtypes.FIXED, "a number")
    if not 2 <= n <= fit_rows:
        raise ConfigError(
            f"quantile_bins({node}): n={n} buckets of fit_rows={fit_rows} values; needs 2 <= n <= fit_rows"
        )
    device = Device("quantile_bin({0}, {state})", casts=("float64",), statistic=Quantiles(n, fit_rows))
    return Expr("quantile_bins", (node,), dtype="int32", device=device, params=(n, fit_rows))


def frequency(x: Operand, *, width: int = 1 << 15, depth: int = 4) -> Expr:
    """Count of examples of earlier batches with the same value, clicked or not: int64, by a count-min sketch.

    The count is never too low. After N examples it is too high by more than e/width · N with probability at
    most e^-depth (Cormode and Muthukrishnan 2005, Theorem 1): with the defaults by 83 in a million, with
    probability 1.8 %. The sketch takes 8 · width · depth bytes (1 MiB) in memory, in each checkpoint and in
    each version.

    Args:
        x: integer, bool or string, counted by its key().
        width: counters of a row, a power of two.
        depth: rows of the sketch.

    Example: `log1p(frequency(log.ad_id))`.
    """
    allowed = ("int64", "int32", "bool", *dtypes.TEXTS)
    node = _scalar(x, "frequency", allowed, "an integer, bool or string (bucketize floats)")
    if width < 2 or width & (width - 1) or depth < 1 or depth * width > MAX_COUNTERS:
        raise ConfigError(
            f"frequency({node}): width={width} must be a power of two, depth={depth} at least 1, and their "
            f"product at most {MAX_COUNTERS}"
        )
    device = Device(
        "sketch_count({0}, {state}, {a[0]}, {a[1]})",
        arguments=(("int32", depth), ("int32", width)),
        statistic=CountMinSketch(depth, width),
    )
    return Expr("frequency", (key(node),), dtype="int64", device=device, params=(width, depth))
