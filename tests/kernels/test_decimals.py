"""Decimal text to float64 against Python's float(), which rounds correctly (David Gay's code)."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from livectr.kernels.runtime.compiler import compile_host

SOURCE = """
#include "operators/decimals.cuh"
extern "C" void parse(const uint8_t* data, const int32_t* offsets, int64_t n, double* floats,
                      int64_t* wholes) {
    for (int64_t i = 0; i < n; ++i) {
        const Str s{data + offsets[i], offsets[i + 1] - offsets[i]};
        const Decimal d = read_decimal(s);
        floats[i] = d.valid ? double_of(d, s) : 0;
        wholes[i] = whole_of(d);
    }
}
"""


@cache
def _parse() -> Any:
    return compile_host(SOURCE, name="decimals").parse


def parse(texts: list[str]) -> tuple[Any, Any]:
    """(float64[n], int64[n])"""
    raw = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, raw)]).astype(np.int32)
    floats, wholes = np.empty(len(raw)), np.empty(len(raw), np.int64)
    data = np.frombuffer(b"".join(raw), np.uint8)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (data, offsets, floats, wholes)]
    _parse()(*pointers[:2], ctypes.c_int64(len(raw)), *pointers[2:])
    return floats, wholes


def same_floats(texts: list[str]) -> None:
    got = parse(texts)[0].view(np.int64)
    want = np.array([float(text) for text in texts]).view(np.int64)
    wrong = [texts[index] for index in np.flatnonzero(got != want)[:5]]
    assert not wrong


def random_double(rng: random.Random) -> float:
    value: float = struct.unpack("<d", rng.randbytes(8))[0]
    return value if abs(value) < float("inf") else 1.0


def half_way(value: float) -> str:
    """All the digits of the number in the middle of a float and the next one."""
    after = float(np.nextafter(value, np.inf))
    middle = (Fraction(value) + Fraction(after)) / 2
    twos = middle.denominator.bit_length() - 1
    digits = str(middle.numerator * 5**twos).rjust(twos + 1, "0")
    return f"{digits[: len(digits) - twos]}.{digits[len(digits) - twos :]}" if twos else digits


def _texts(kind: str, rng: random.Random) -> Iterator[str]:
    for _ in range(20_000 if kind != "half-way" else 300):
        value = abs(random_double(rng))
        if kind == "shortest":
            yield repr(value)
        elif kind == "digits":
            yield f"{value:.{rng.randint(0, 40)}e}"
        elif kind == "short":
            yield f"{rng.randint(-(10 ** rng.randint(1, 25)), 10**9)}e{rng.randint(-345, 310)}"
        elif kind == "plain":
            yield f"-{rng.randint(0, 10**9)}.{rng.randint(0, 10**9):0{rng.randint(1, 30)}}"
        elif kind == "subnormal":
            yield f"{rng.random() * 10 ** rng.randint(0, 14):.{rng.randint(1, 25)}f}e-{rng.randint(310, 325)}"
        else:
            text = half_way(value if rng.random() < 0.7 else rng.random() * 2.0**-1022)
            text += "" if "." in text else ".0"
            yield from (text, text + "0001", "0" * 9 + text + "000")
            if text[-1] > "0":
                yield text[:-1] + str(int(text[-1]) - 1) + "99999"


@pytest.mark.parametrize("kind", ["shortest", "digits", "short", "plain", "subnormal", "half-way"])
def test_nearest_float64(kind: str) -> None:
    same_floats(list(_texts(kind, random.Random(kind))))


def test_limits() -> None:
    largest, least = half_way(1.7976931348623155e308), half_way(0.0)
    near = ["1.7976931348623157e308", "1.7976931348623158e308", "1.7976931348623159e308", "1.8e308", "1e309"]
    near += [
        "4.9e-324",
        "2.5e-324",
        "2.4e-324",
        "2.4703282292062327e-324",
        "2.4703282292062328e-324",
        "1e-400",
    ]
    near += [
        "2.2250738585072011e-308",
        "2.2250738585072014e-308",
        "9007199254740993",
        "9007199254740993.00000001",
    ]
    near += [
        "1e22",
        "1e23",
        "8.5e22",
        "9007199254740991e22",
        "0",
        "-0",
        "0e999999999999999999999",
        "1e-999999999999",
    ]
    near += [
        "0." + "0" * 400 + "1e401",
        "1" + "0" * 400 + "e-400",
        "1" * 700 + "e-600",
        "9" * 5000,
        "1e99999999999",
    ]
    near += [largest, least, least + "0001", "-" + least]
    same_floats(near)


def test_whole_numbers_are_exact() -> None:
    cases = {"9223372036854775807": 2**63 - 1, "-9223372036854775808": -(2**63), "9223372036854775808": 0}
    cases |= {"-9223372036854775809": 0, "92233720368547758070e-1": 2**63 - 1, "1e18": 10**18, "1e19": 0}
    cases |= {"12.0": 12, "1.5e1": 15, "1.5": 0, "1e-1": 0, "10e-1": 1, "007": 7, "-0": 0, "1e400": 0, "": 0}
    cases |= {"1." + "0" * 50: 1, "9007199254740993.000": 9007199254740993, "99999999999999999999": 0}
    np.testing.assert_array_equal(parse(list(cases))[1], list(cases.values()))


@pytest.mark.parametrize(
    "text",
    ["", "-", ".", "e5", "1e", "1e+", "1 2", "0x1", "1_0", "nan", "inf", "--1", "1.2.3", "1f", "1\x00", "٣"],
)
def test_what_is_no_number_is_0(text: str) -> None:
    assert parse([text])[0][0] == 0 and parse([text])[1][0] == 0
