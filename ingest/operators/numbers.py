"""Logarithm, clipping and normalisation of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import C_TYPES, Expr, Operand, as_expr, mapped, need
from livectr.system.errors import ConfigError


def log1p(x: Operand) -> Expr:
    """Logarithm log(1 + x), computed in float64, as float32.

    Below -1 it is NaN, which a dense feature replaces by 0: clip inputs that may be negative.

    Example: `log1p(clip(ads.price, 0, None))`.
    """
    node = as_expr(x, "log1p")
    need("log1p", node, dtypes.FIXED, "a number")
    return mapped("log1p", (node,), dtype="float32", device=Device("log1p_of({0})", casts=("float64",)))


def clip(x: Operand, lo: float | None, hi: float | None) -> Expr:
    """Clip a number to [lo, hi]; None: no limit. The type of x stays; NaN stays NaN.

    Example: `clip(log.dwell_ms, 0, 60_000)`.
    """
    node = as_expr(x, "clip")
    need("clip", node, dtypes.NUMBERS, "a number")
    dtype = dtypes.element(node.dtype)
    if lo is not None and hi is not None and lo > hi:
        raise ConfigError(f"clip({node}): lo={lo} is above hi={hi}")
    for value, name in ((lo, "lo"), (hi, "hi")):
        if value is not None:
            dtypes.check_value(value, dtype, f"clip({node}): {name}")
    call = "{0}"
    arguments: list[tuple[str, Any]] = []
    for value, name in ((lo, "at_least"), (hi, "at_most")):
        if value is not None:
            call = f"{name}<{C_TYPES[dtype]}>({call}, {{a[{len(arguments)}]}})"
            arguments.append((dtype, dtypes.check_value(value, dtype, "clip")))
    device = Device(call, arguments=tuple(arguments))
    return mapped("clip", (node,), dtype=dtype, device=device, params=(lo, hi))


def normalise(x: Operand, mean: float, std: float) -> Expr:
    """Normalise a number by constants: (x - mean) / std, computed in float64, as float32.

    Example: `normalise(log.position, mean=5.5, std=2.9)`.
    """
    node = as_expr(x, "normalise")
    need("normalise", node, dtypes.FIXED, "a number")
    if not (np.isfinite(mean) and np.isfinite(std) and std > 0):
        raise ConfigError(
            f"normalise({node}): mean must be finite and std positive, not {mean!r} and {std!r}"
        )
    inputs = [node, as_expr(float(mean), "normalise"), as_expr(float(std), "normalise")]
    device = Device("normalise({0}, {1}, {2})", casts=("float64",))
    return mapped("normalise", inputs, dtype="float32", device=device)
