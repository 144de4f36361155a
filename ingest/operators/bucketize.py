"""Bucketing of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import C_TYPES, Expr, Operand, as_expr, mapped, need
from livectr.system.errors import ConfigError


def bucketize(x: Operand, bounds: Sequence[float]) -> Expr:
    """Bucket number: the count of `bounds` that are <= x, int32 in [0, len(bounds)].

    It equals numpy.searchsorted(bounds, x, side="right"): bucket 0 is below the first bound, NaN is in the
    last bucket. Integers are compared with whole-number bounds exactly, else in float64.

    Args:
        x: number or bool, or a list of them.
        bounds: strictly increasing finite numbers.

    Example: `bucketize(users.age, [18, 25, 35, 50])`.
    """
    node = as_expr(x, "bucketize")
    need("bucketize", node, dtypes.FIXED, "a number")
    values = list(bounds)
    if not values or not all(isinstance(b, int | float) and np.isfinite(b) for b in values):
        raise ConfigError(f"bucketize({node}): bounds must be finite numbers, not {bounds!r}")
    if any(low >= high for low, high in pairwise(values)):
        raise ConfigError(f"bucketize({node}): bounds must increase strictly, not {bounds!r}")
    exact = dtypes.element(node.dtype) in ("int64", "int32", "bool") and all(
        isinstance(b, int) and abs(b) < 2**63 for b in values
    )
    dtype = "int64" if exact else "float64"
    table = tuple((int if exact else float)(bound) for bound in values)
    device = Device(
        f"bucketize<{C_TYPES[dtype]}>({{0}}, {{a[0]}}, {{a[1]}})",
        casts=(dtype,),
        arguments=((dtype, table), ("int32", len(table))),
    )
    return mapped("bucketize", (node,), dtype="int32", device=device, params=(tuple(values),))
