"""Literals of a pipeline file in generated C++: the text is one literal, whatever the value is."""

from __future__ import annotations

import math
import re
import struct

import numpy as np

from livectr.ingest.language import dtypes
from livectr.ingest.language.literals import array, literal
from livectr.system.errors import LiveCTRError

_STRING = re.compile(r'\(Str\{\(const uint8_t\*\)"((?:\\[0-3][0-7]{2})*)", (\d+)\}\)')
_WHOLE = re.compile(r"\((int32_t|int64_t)\)\((?:(-?\d+)ll|\(-9223372036854775807ll - 1\))\)")
_FLOAT = re.compile(r"\(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?f?\)")


def literals(data: bytes) -> None:
    """A value of the type that the first byte names: one literal, from which the value can be read back."""
    if not data:
        return
    kind, content = data[0] % 5, data[1:]
    if kind == 0:
        text = content.decode("utf-8", "surrogateescape")
        for string, dtype in ((text, "string"), (content, "binary")):
            try:
                dtypes.check_value(string, dtype, "a value")
            except LiveCTRError:
                continue
            found = _STRING.fullmatch(literal(string, dtype))
            assert found is not None, literal(string, dtype)
            coded = string.encode() if isinstance(string, str) else string
            octal = bytes(int(three, 8) for three in re.findall(r"\\(\d{3})", found[1]))
            assert octal == coded and int(found[2]) == len(coded)
    elif kind in (1, 2):
        number = int.from_bytes(content[:9], "big", signed=True)
        dtype = "int32" if kind == 1 else "int64"
        try:
            dtypes.check_value(number, dtype, "a value")
        except LiveCTRError:
            return
        found = _WHOLE.fullmatch(literal(number, dtype))
        assert found is not None, literal(number, dtype)
        assert int(found[2] or -(2**63)) == number and found[1] == f"{dtype}_t"
    else:
        dtype, form = ("float32", "<f") if kind == 3 else ("float64", "<d")
        value: float = struct.unpack("<d", content[:8].ljust(8, b"\0"))[0]
        try:
            dtypes.check_value(value, dtype, "a value")
        except LiveCTRError:
            return
        text = literal(value, dtype)
        assert _FLOAT.fullmatch(text), text
        back = np.float32(text[1:-1].removesuffix("f")) if kind == 3 else float(text[1:-1])
        wanted = np.float32(value) if kind == 3 else value
        assert struct.pack(form, back) == struct.pack(form, wanted), (text, value)
        assert not math.isnan(value)
        name, definition = array([value, value], dtype)
        assert re.fullmatch(r"constants_[0-9a-f]{16}", name) and definition.count(text) == 2
