"""Every operator against its NumPy reference, on ragged, empty, null and non-ASCII columns."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from livectr.ingest import operators as op
from livectr.ingest.extract.engines import Wanted
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.keys import hash_strings
from livectr.ingest.plan.dag import FeaturePlan
from livectr.system.errors import ConfigError
from tests.ingest.operator_check import ENGINES, OperatorCheck
from tests.ingest.operator_expressions import (
    EXPRESSIONS,
    F32,
    I32,
    I64,
    L64,
    TEXT,
    TS,
)
from tests.ingest.random_columns import batches
from tests.ingest.reference import lower_character
from tests.tiers import examples


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_operator_equals_reference(name: str, engine: Wanted) -> None:
    operator = OperatorCheck(EXPRESSIONS, name, engine)

    @given(batches(operator.roots))
    @examples(40, tried=15)
    def holds(batch: pa.RecordBatch) -> None:
        operator.check(batch)

    holds()


def test_every_operator_is_tested() -> None:
    from tests.ingest.statistics_expressions import EXPRESSIONS as STATISTICS
    from tests.ingest.string_expressions import EXPRESSIONS as TEXT_EXPRESSIONS

    expressions = EXPRESSIONS | TEXT_EXPRESSIONS | STATISTICS
    built = {node.op for nodes in expressions.values() for node in FeaturePlan(_keyed(nodes)).nodes}
    untested = {name for name in op.__all__ if name not in expressions} - {"Operator", "operator"}
    assert not untested, f"add to tests/ingest/operator_expressions.py: {untested}"
    assert built >= set(expressions) - {"dense", "fill_null"}


def _keyed(nodes: list[Expr]) -> dict[str, Expr]:
    return {str(i): node for i, node in enumerate(nodes) if "float" not in node.dtype} | {
        f"f{i}": node > 0 for i, node in enumerate(nodes) if "float" in node.dtype
    }


def one(node: Expr, values: list[Any]) -> Any:
    """Keys of a sparse feature over one column."""
    (base,) = FeaturePlan({"x": node}).roots
    array = pa.array(values, dtypes.arrow_type(base.dtype))
    return Extractor(FeaturePlan({"x": node}))(pa.RecordBatch.from_arrays([array], names=[base.name])).keys


def test_string_key_is_xxh64() -> None:
    vectors = {"": 0xEF46DB3751D8E999, "a": 0xD24EC4F1A98C6E5B, "abc": 0x44BC2CF5AD770999}
    np.testing.assert_array_equal(one(TEXT, list(vectors)).view(np.uint64), list(vectors.values()))


def test_lower_maps_every_promised_character() -> None:
    characters = [chr(c) for c in [*range(0x800), 0x1E9E, 0x2126, 0xFF21, 0x10400]]
    want = hash_strings([lower_character(c) for c in characters])
    np.testing.assert_array_equal(one(op.lower(TEXT), characters), want)


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=9))
@example([b"\xc3", b"\xc3\x84\xc3", b"\x80\x80", b"\xf0\x9f"])
def test_broken_utf8_is_read_within_its_bounds(values: list[bytes]) -> None:
    raw = pa.array(values, pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    extractor = compiled_broken()
    features = extractor(pa.RecordBatch.from_arrays([text], names=[TEXT.name]))
    kept = features.field(0)[1]
    ascii_only = [bytes(b + 32 if 65 <= b <= 90 else b for b in v) if v.isascii() else None for v in values]
    for got, want in zip(kept, ascii_only, strict=True):
        assert want is None or got == hash_strings([want.decode()])[0]
    starts = [max(1, sum((b & 0xC0) != 0x80 for b in v[1:]) + 1) if v else 0 for v in values]
    np.testing.assert_array_equal(np.diff(features.field(1)[0]), starts)


@cache
def compiled_broken() -> Extractor:
    return Extractor(FeaturePlan({"lower": op.lower(TEXT), "grams": op.ngrams(TEXT, 1)}))


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=20), st.integers(1, 9))
@example([b"", b"\x80", b"\x80\x80a", b"\xf0\x9f", "abcdefgh\U0001f600\U0001f600".encode() * 9], 3)
def test_keys_of_grams_are_those_of_the_strings(values: list[bytes], n: int) -> None:
    """Fused with their hash, n-grams give the keys of the strings that the same n-grams are elsewhere."""
    raw = pa.array([*values, None], pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    batch = pa.RecordBatch.from_arrays([text], names=[TEXT.name])
    for fused, apart in compiled_grams(n):
        got, want = fused(batch).field(0), apart(batch).field(0)
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(got[1], want[1])


@cache
def compiled_grams(n: int) -> list[tuple[Extractor, Extractor]]:
    """Plans in which only keys read the n-grams of a text, and plans in which `length` reads them too."""
    plans = []
    for text in (TEXT, op.trim(TEXT)):
        grams = op.ngrams(text, n)
        fused, apart = FeaturePlan({"grams": grams}), FeaturePlan({"grams": grams}, {"n": op.length(grams)})
        assert len(fused.fused) == 1 and not apart.fused
        plans.append((Extractor(fused), Extractor(apart)))
    return plans


def test_text_stays_until_its_grams_are_hashed() -> None:
    """Its column is not given to a node of the keys' layer, which runs before them."""
    text = op.trim(TEXT)
    alone = FeaturePlan({"grams": op.ngrams(text, 3)})
    beside = FeaturePlan({"parts": op.split(op.lower(text), "b"), "grams": op.ngrams(text, 3)})
    batch = pa.RecordBatch.from_arrays([pa.array([" AbcdeFbgh ", "ab", "xyz"])], names=[TEXT.name])
    for got, want in zip(Extractor(beside)(batch).field(1), Extractor(alone)(batch).field(0), strict=True):
        np.testing.assert_array_equal(got, want)


def test_text_with_too_many_grams_cannot_be_extracted() -> None:
    features = compiled_grams(2)[0][0](
        pa.RecordBatch.from_arrays([pa.array(["abc", "a" * 65538, "a" * 65537])], names=[TEXT.name])
    )
    assert features.failed.tolist() == [False, True, False]
    assert np.diff(features.field(0)[0]).tolist() == [2, 0, 65536]


class TestUserOperator:
    @pytest.mark.full
    def test_scalar_and_list(self) -> None:
        minute = op.operator("int64 ts -> int32", "(ts / 60000) % 60", name="minute")
        np.testing.assert_array_equal(one(minute(TS), [0, 61_000, 3_600_000 * 5 + 120_000]), [0, 1, 2])
        np.testing.assert_array_equal(one(minute(L64), [[60_000], [], [0, 120_000]]), [1, 0, 2])

    def test_as_decorator(self) -> None:
        @op.operator("string s, int64 k -> int64", "s.size * k")
        def scaled(s: object, k: object) -> None:
            """Bytes of s, k times."""

        assert scaled.__doc__ == "Bytes of s, k times." and scaled.name == "scaled"
        np.testing.assert_array_equal(one(scaled(TEXT, 3), ["", "ä", "abc"]), [0, 6, 9])

    def test_equal_operators_give_one_node(self) -> None:
        def make(text: str) -> Expr:
            return op.operator("int64 x -> int64", text, name="f")(I64)

        assert make("x + 1") is make("x + 1") and make("x + 1") is not make("x + 2")

    def test_widens_but_never_narrows(self) -> None:
        twice = op.operator("int64 x -> int64", "x * 2", name="twice")
        np.testing.assert_array_equal(one(twice(I32), [1, None]), [2, 0])
        with pytest.raises(ConfigError, match=r"twice needs int64 for 'x', but t.f32 is float32"):
            twice(F32)

    def test_compiler_text_names_the_operator_and_its_line(self) -> None:
        wrong = op.operator("int64 x -> int64", "x +\n missing_name", name="wrong")
        with pytest.raises(
            ConfigError, match=rf"operator 'wrong' does not compile(.|\n)*{__file__}:\d+: error.*missing_name"
        ):
            one(wrong(I64), [1])

    @pytest.mark.parametrize(
        ("signature", "text", "message"),
        [
            ("int64 -> int64", "1", "is not a signature"),
            ("int64 x", "x", "is not a signature"),
            ("int16 x -> int64", "x", "type 'int16' is not one of"),
            ("int64 x -> string", "x", "type 'string' is not one of"),
            ("int64 x -> int64", " ", "the expression is empty"),
        ],
    )
    def test_bad_declarations(self, signature: str, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            op.operator(signature, text, name="f")

    def test_bad_name(self) -> None:
        with pytest.raises(ConfigError, match="the name 'a b' is not an identifier"):
            op.operator("int64 x -> int64", "x", name="a b")

    def test_argument_count(self) -> None:
        with pytest.raises(ConfigError, match="f takes 1 arguments"):
            op.operator("int64 x -> int64", "x", name="f")(I64, I64)
