"""Python constants as C++ literals, exact to the bit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from livectr.ingest.language.expr import C_TYPES


def literal(value: Any, dtype: str) -> str:
    """C++ expression of a scalar of type `dtype`."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in ("int32", "int64"):
        text = f"{value}ll" if value != -(2**63) else "(-9223372036854775807ll - 1)"
        return f"({C_TYPES[dtype]})({text})"
    if dtype == "float32":
        return f"({float(np.float32(value))!r}f)"
    if dtype == "float64":
        return f"({float(value)!r})"
    data = value.encode() if isinstance(value, str) else value
    # Octal escapes end after three digits; hexadecimal escapes would include following digits.
    text = "".join(f"\\{byte:03o}" for byte in data)
    return f'(Str{{(const uint8_t*)"{text}", {len(data)}}})'


def array(values: Sequence[Any], dtype: str) -> tuple[str, str]:
    """(name, definition) of a constant array; equal arrays have equal names."""
    body = ", ".join(literal(value, dtype) for value in values)
    name = f"constants_{hashlib.sha256(f'{dtype}:{body}'.encode()).hexdigest()[:16]}"
    return name, f"static __device__ const {C_TYPES[dtype]} {name}[] = {{{body}}};\n"
