"""Operators with running statistics: what the stream has shown so far, as a feature.

"So far" is test-then-train: a batch is extracted with the statistics of the batches before it, and they are
updated with the whole global batch afterwards, in the global sequence. So no value knows its own batch or the
future, and any number of ranks has the same bits. The state belongs to the checkpoint and to every published
version; a server uses that of the version that it serves.

Only scalars. Values that are not finite, or beyond ±1e150 (whose squares overflow), are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Device, Expr, Operand, as_expr, need
from livectr.ingest.language.resources import Array, Statistic
from livectr.ingest.operators.key import key
from livectr.kernels.errors import ConfigError
from livectr.kernels.keys.keys import combine_keys

F64 = npt.NDArray[np.float64]

MAX_COUNTERS = 1 << 24
"""Counters of a sketch: 128 MiB, which every checkpoint and every version would carry."""


@dataclass(frozen=True)
class Moments(Statistic):
    """float64[3]: number of values n, mean, and M2, the sum of squared differences from the mean."""

    def initial(self) -> Array:
        return np.zeros(3)

    def update(self, state: Array, observed: Array) -> Array:
        """Two parts put together: Chan, Golub, LeVeque, "Algorithms for Computing the Sample Variance",
        The American Statistician 37 (1983), (2.1). Sums are of differences from the first value, so that
        equal values have M2 = 0 exactly."""
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
    """float64[2]: the least and the greatest value; inf and -inf before the first."""

    def initial(self) -> Array:
        return np.array([np.inf, -np.inf])

    def update(self, state: Array, observed: Array) -> Array:
        values = _usable(observed)
        if not len(values):
            return state
        return np.array([min(state[0], values.min()), max(state[1], values.max())])


@dataclass(frozen=True)
class Quantiles(Statistic):
    """float64: 0 and the values so far, while fewer than `fit_rows` were seen; then n - 1 and the n - 1
    bounds, which never change again."""

    n: int
    fit_rows: int

    def initial(self) -> Array:
        return np.zeros(1)

    def update(self, state: Array, observed: Array) -> Array:
        if state[0]:
            return state
        values = np.concatenate([state[1:], _usable(observed)])[: self.fit_rows]
        if len(values) < self.fit_rows:
            return np.concatenate([[0.0], values])
        return np.concatenate([[self.n - 1.0], np.quantile(values, np.arange(1, self.n) / self.n)])


@dataclass(frozen=True)
class CountMinSketch(Statistic):
    """int64[depth · width], row by row: counters of Cormode and Muthukrishnan, "An Improved Data Stream
    Summary: The Count-Min Sketch and its Applications", J. Algorithms 55 (2005), §3.

    Deviation: rows hash with the mixer of kernels/runtime/hash.cuh, seeded by their number, where the
    paper's bound asks for pairwise independent hash functions.
    """

    depth: int
    width: int

    def initial(self) -> Array:
        return np.zeros(self.depth * self.width, np.int64)

    def update(self, state: Array, observed: Array) -> Array:
        counts = state.reshape(self.depth, self.width).copy()
        for row in range(self.depth):
            hashes = combine_keys(np.full(len(observed), row, np.int64), np.ascontiguousarray(observed))
            counts[row] += np.bincount(hashes & (self.width - 1), minlength=self.width)
        return counts.reshape(-1)


def _usable(observed: Array) -> F64:
    """As float64, without what is not finite or has no square."""
    values = observed.astype(np.float64)
    kept: F64 = values[np.abs(values) < 1e150]
    return kept


def _scalar(x: Operand, op: str, allowed: tuple[str, ...], what: str) -> Expr:
    """The node of an operator's argument. Raises ConfigError for a list, a constant, or another type."""
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
    """(x - mean) / standard deviation (of the population) of all values in earlier batches, computed in
    float64, as float32. 0 before the first batch and while all values were equal.

    Example: `zscore(ads.price)`.
    """
    node = _scalar(x, "zscore", dtypes.FIXED, "a number")
    device = Device("zscore_of((double)({0}), {state})", statistic=Moments())
    return Expr("zscore", (node,), dtype="float32", device=device)


def minmax(x: Operand) -> Expr:
    """(x - min) / (max - min) over all values in earlier batches, clipped to [0, 1], computed in float64, as
    float32. 0 before the first batch and while all values were equal.

    Example: `minmax(log.position)`.
    """
    node = _scalar(x, "minmax", dtypes.FIXED, "a number")
    device = Device("minmax_of((double)({0}), {state})", statistic=Range())
    return Expr("minmax", (node,), dtype="float32", device=device)


def quantile_bins(x: Operand, n: int, fit_rows: int = 10_000) -> Expr:
    """The n-quantile that x falls into: int32 in [0, n), in buckets of about equally many rows.

    The n - 1 bounds are the quantiles i/n (interpolated linearly; Hyndman and Fan 1996, type 7) of the first
    `fit_rows` values of training. Then they are frozen, so that a key keeps its meaning; until then every row
    is in bucket 0. Compared in float64 as by `bucketize`: a bound belongs to the bucket above
    it, NaN is in the last one.

    Example: `quantile_bins(ads.price, 10)`.
    """
    node = _scalar(x, "quantile_bins", dtypes.FIXED, "a number")
    if not 2 <= n <= fit_rows:
        raise ConfigError(
            f"quantile_bins({node}): n={n} buckets of fit_rows={fit_rows} values; needs 2 <= n <= fit_rows"
        )
    device = Device("quantile_bin((double)({0}), {state})", statistic=Quantiles(n, fit_rows))
    return Expr("quantile_bins", (node,), dtype="int32", device=device, params=(n, fit_rows))


def frequency(x: Operand, *, width: int = 1 << 15, depth: int = 4) -> Expr:
    """How many examples of earlier batches had this value, clicked or not: int64, by a count-min sketch.

    Never too low. After N examples it is too high by more than e/width · N with probability e^-depth at most
    (Cormode and Muthukrishnan 2005, Theorem 1): with the defaults by 83 in a million, with probability 1.8 %.
    The sketch takes 8 · width · depth bytes (1 MiB) in memory, in each checkpoint and in each version.

    x is an integer, bool or string, counted by its key(). width is a power of two.

    Example: `log1p(frequency(log.ad_id))`.
    """
    allowed = ("int64", "int32", "bool", *dtypes.TEXTS)
    node = _scalar(x, "frequency", allowed, "an integer, bool or string (bucketize floats)")
    if width < 2 or width & (width - 1) or depth < 1 or depth * width > MAX_COUNTERS:
        raise ConfigError(
            f"frequency({node}): width={width} must be a power of two, depth={depth} at least 1, and their "
            f"product at most {MAX_COUNTERS}"
        )
    call = f"sketch_count<{depth}, {width}>({{0}}, {{state}})"
    device = Device(call, statistic=CountMinSketch(depth, width))
    return Expr("frequency", (key(node),), dtype="int64", device=device, params=(width, depth))
