"""Random values of columns, sometimes at the limits of their types."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from livectr.ingest.language import dtypes

TEXTS = [
    "",
    "a",
    "B",
    "aB",
    " ",
    "Ärger, Straße",
    "a b ,c",
    "あ😀 Σß",
    "x" * 70,
    "Nul\0 \\ \"'",
    "ǅ\u0301",
    "12.5",
]
JSONS = [
    '{"a": {"b": "ü", "0": [1.5]}}',
    '{"a": 7}',
    '{"a": [true, 1e3]}',
    "",
    "{",
    "[[]]",
    '{"a": "\\u00e4"}',
]
NUMBERS = ["1e3", " -7.25 ", "0.1", "x", "", "9223372036854775807", "1" * 30, "٣"]


def value(random: Random, name: str, dtype: str) -> Any:
    """Random value of a column, sometimes at the limits of its type."""
    if dtypes.is_list(dtype):
        return [value(random, name, dtypes.element(dtype)) for _ in range(random.choice([0, 1, 1, 2, 3, 9]))]
    if dtype in ("int64", "int32"):
        most = 2 ** (int(dtype[3:]) - 1)
        return random.choice([random.randint(-3, 12), random.randint(-most, most - 1), most - 1, -most])
    if dtype in ("float64", "float32"):
        kind = np.dtype(dtype).type
        drawn = random.choice([random.randint(-3, 70), 0.1, -0.0, 1e-45, 3e38, random.gauss(0, 1e3)])
        return float(kind(drawn))
    if dtype == "bool":
        return random.random() < 0.5
    if dtype == "binary":
        return random.choice([b"", b"\xff\x00\xfe", random.randbytes(9)])
    return random.choice(
        {"extra": JSONS, "profile": JSONS, "numbers": NUMBERS, "code": NUMBERS}.get(name, TEXTS)
    )


def maybe(random: Random, name: str, dtype: str) -> Any:
    return None if random.random() < 0.25 else value(random, name, dtype)
