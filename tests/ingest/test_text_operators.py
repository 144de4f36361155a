"""String operators against their references: ragged, empty, null, non-ASCII and broken values."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest import operators as op
from livectr.ingest.extract.engines import Wanted
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.keys import hash_strings
from livectr.ingest.plan.dag import FeaturePlan
from livectr.system.errors import ConfigError
from tests.ingest.device_checks import compiles_for_sm_90
from tests.ingest.operator_check import ENGINES, OperatorCheck, plan_of
from tests.ingest.operator_expressions import BOOL, I64, LF, LTEXT, TEXT, root
from tests.ingest.random_columns import batches
from tests.ingest.reference import evaluate
from tests.ingest.reference_text import levenshtein
from tests.ingest.string_expressions import (
    EXPRESSIONS,
    JSON,
    LJSON,
    LNUMERIC,
    NUMERIC,
    TITLE,
)
from tests.tiers import examples, few

_SPACE = st.sampled_from(["", "", "", " ", "\n", "\t\r "])
_STRINGS = st.sampled_from(
    [
        '""',
        '"a"',
        '"ä 😀"',
        r'"\u00e4\ud83d\ude00\ud83d"',
        r'"\ud83dx\ude00\ud83d\ud83d\ude00"',
        r'"\"\\\/\b\f\n\r\t"',
        '"' + "long enough for steps of eight " * 2 + '"',
        r'"1234567\"12345678é\n"',
        '"\x1f"',
        r'"\x"',
        r'"\u12g4"',
    ]
)
_NUMBERS = st.from_regex(
    r"-?[0-9]{1,22}(\.[0-9]{1,22})?([eE][+-]?[0-9]{1,3})?", fullmatch=True, alphabet="0123456789.eE+-"
)
_SCALARS = st.one_of(
    _STRINGS, _NUMBERS, st.sampled_from(["true", "false", "null", "0", "7", "-1.5e1", "NaN", "tru", "01"])
)
_KEYS = st.sampled_from(
    ['"a"', '"a"', '"b"', '"0"', '"1"', r'"\u0061"', '"ä"', r'"\u00e4"', '"a.b"', '""', r'"\"']
)


def _containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def joined(parts: list[str], space: str) -> str:
        return f"{space},{space}".join(parts) + space

    member = st.builds("{}{}:{}{}".format, _KEYS, _SPACE, _SPACE, inner)
    objects = st.builds(
        lambda parts, space: "{" + space + joined(parts, space) + "}", st.lists(member, max_size=4), _SPACE
    )
    arrays = st.builds(
        lambda parts, space: "[" + space + joined(parts, space) + "]", st.lists(inner, max_size=3), _SPACE
    )
    return st.one_of(objects, objects, arrays)


_DOCUMENTS = st.recursive(_SCALARS, _containers, max_leaves=12)


@st.composite
def json_texts(draw: st.DrawFn) -> str:
    text = draw(_DOCUMENTS)
    if draw(st.integers(0, 3)) == 0:  # break it
        at = draw(st.integers(0, len(text)))
        return (
            text[:at]
            + draw(st.sampled_from(["", "}", "]", ",", '"', " ", "\\", "0"]))
            + text[at + draw(st.integers(0, 2)) :]
        )
    return text


NUMERIC_TEXTS = st.one_of(
    st.from_regex(r"[ \t]?[+-]?[0-9]{0,22}(\.[0-9]{0,22})?([eE][+-]?[0-9]{0,3})?[ \n]?", fullmatch=True),
    st.integers(-(2**63) - 2, 2**63 + 2).map(str),
    st.integers(-(2**31) - 2, 2**31 + 2).map(lambda number: f" {number}.000"),
    st.floats().map(repr),
    st.sampled_from(["1e3", "1_0", "0x10", "٣", "+5", "5.", ".5", ".", "", "1 2", "-0"]),
)
VALUES = {
    node.name: texts
    for node, texts in (
        (JSON, json_texts()),
        (LJSON, json_texts()),
        (NUMERIC, NUMERIC_TEXTS),
        (LNUMERIC, NUMERIC_TEXTS),
        (TITLE, st.text(st.sampled_from("aB zÄあ"), max_size=90)),
    )
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_operator_equals_reference(name: str, engine: Wanted) -> None:
    operator = OperatorCheck(EXPRESSIONS, name, engine)

    @given(batches(operator.roots, VALUES))
    @examples(60, tried=15)
    def holds(batch: pa.RecordBatch) -> None:
        operator.check(batch)

    holds()


@pytest.mark.parametrize("name", few(EXPRESSIONS, "trim"))
def test_device_code_compiles_for_sm_90(name: str) -> None:
    assert compiles_for_sm_90(plan_of(EXPRESSIONS[name]))


def run(node: Expr, **values: list[Any]) -> Any:
    """The sparse field's (offsets, keys), or the dense number, over columns t.<name>."""
    sparse, dense = ({}, {"x": node}) if "float" in node.dtype else ({"x": node}, {})
    names = {root.name: root for root in FeaturePlan(sparse, dense).roots}
    arrays = [pa.array(v, dtypes.arrow_type(names[f"t.{name}"].dtype)) for name, v in values.items()]
    batch = pa.RecordBatch.from_arrays(arrays, names=[f"t.{name}" for name in values])
    features = Extractor(FeaturePlan(sparse, dense))(batch)
    return features.dense[:, 0] if dense else features.field(0)


class TestJsonField:
    def test_nested_members_and_indexes(self) -> None:
        text = json.dumps({"device": {"os": "ios", "sizes": [[1, 2], {"w": 640.5}]}, "ok": True}, indent=2)
        assert run(op.json_field(JSON, "device.os", "string"), json=[text])[1] == hash_strings(["ios"])
        assert run(op.json_field(JSON, "device.sizes.0.1", "int64"), json=[text])[1] == [2]
        assert run(op.json_field(JSON, "device.sizes.1.w", "float32"), json=[text]) == [640.5]
        assert run(op.json_field(JSON, "ok", "bool"), json=[text])[1] == [1]
        assert run(op.json_field(JSON, "device.sizes.2", "int64"), json=[text])[1] == [0]

    def test_last_of_equal_keys_counts_on_every_level(self) -> None:
        texts = [
            '{"a": {"b": 1}, "a": {}}',
            '{"a": {"b": 1, "b": 2}}',
            '{"a": 3, "a": {"b": 4}}',
            '{"a":{"b":5},"a":6}',
        ]
        assert run(op.json_field(JSON, "a.b", "int64"), json=texts)[1].tolist() == [0, 2, 4, 0]

    def test_depth_is_bounded(self) -> None:
        def nested(levels: int) -> str:
            return '{"b": ' + "[" * (levels - 1) + "]" * (levels - 1) + ', "a": 1}'

        texts = [nested(64), nested(65), nested(100_000), "[" * 1_000_000, '{"a":' * 70 + "1" + "}" * 70]
        assert run(op.json_field(JSON, "a", "int64"), json=texts)[1].tolist() == [1, 0, 0, 0, 0]
        path = ".".join("a" * 64)
        assert run(op.json_field(JSON, path, "int64"), json=['{"a":' * 64 + "9" + "}" * 64])[1].tolist() == [
            9
        ]

    def test_bytes_that_are_no_characters_are_read_within_bounds(self) -> None:
        whole = json.dumps({"a": "x\n" * 9, "b": [1.5e3, None, {"a": "é"}]}).encode()
        cut = [whole[:size] for size in range(len(whole))] + [bytes([b]) * 9 for b in range(256)]
        raw = pa.array(cut, pa.binary())
        text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
        batch = pa.RecordBatch.from_arrays([text], names=[JSON.name])
        node = op.json_field(JSON, "a", "string")
        keys = Extractor(FeaturePlan({"x": node}))(batch).field(0)[1]
        assert (keys == hash_strings([""])[0]).all()


class TestKeywords:
    def test_many_words_in_one_string_come_once_and_sorted(self) -> None:
        rng = random.Random(5)
        words = list({"".join(rng.choices("abc", k=rng.randint(1, 5))) for _ in range(300)})
        texts = ["".join(rng.choices("abc", k=size)) for size in (0, 1, 40, 400, 4000)]
        offsets, keys = run(op.keywords(TEXT, words), text=texts)
        for text, begin, end in zip(texts, offsets[:-1], offsets[1:], strict=True):
            assert keys[begin:end].tolist() == [i for i, word in enumerate(words) if word in text]
        assert np.diff(offsets)[-1] > 100

    def test_dictionary_of_100_000_words(self) -> None:
        rng = random.Random(7)
        syllables = ["ka", "to", "mi", "ра", "あ", "lo", "ne", "schu", "x"]
        words = list(
            dict.fromkeys("".join(rng.choices(syllables, k=rng.randint(4, 9))) for _ in range(130_000))
        )[:100_000]
        texts = [" ".join(rng.choices(words, k=3)) + "kato" for _ in range(200)]
        node = op.keywords(TEXT, words)
        offsets, keys = run(node, text=texts)
        index = {word: i for i, word in enumerate(words)}
        longest = max(map(len, words))
        for text, begin, end in zip(texts, offsets[:-1], offsets[1:], strict=True):
            pieces = {text[i : i + size] for i in range(len(text)) for size in range(1, longest + 1)}
            assert keys[begin:end].tolist() == sorted(index[piece] for piece in pieces if piece in index)
        assert len(str(node)) < 100


class TestEditDistance:
    @pytest.mark.parametrize(
        "sizes",
        [
            (0, 0),
            (0, 5),
            (63, 64),
            (64, 64),
            (65, 64),
            (65, 200),
            (128, 129),
            (256, 256),
            (256, 5000),
            (300, 300),
            (257, 1000),
        ],
    )
    def test_around_the_blocks(self, sizes: tuple[int, int]) -> None:
        rng = random.Random(str(sizes))
        texts, titles = ["".join(rng.choices("abä", k=sizes[0])) for _ in range(6)], []
        for text in texts:
            mutated = [c for c in text if rng.random() > 0.1] + rng.choices("abあ", k=sizes[1])
            titles.append("".join(mutated[: sizes[1]]))
        got = run(op.edit_distance(TEXT, TITLE), text=texts, title=titles)[1]
        assert got.tolist() == [levenshtein(a[:256], b[:256]) for a, b in zip(texts, titles, strict=True)]


def test_references_agree_with_hand_made_values() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["kitten", " 1.50 "])], names=[TEXT.name])
    assert evaluate(op.edit_distance(TEXT, "sitting"), batch).values[0] == 3
    assert evaluate(op.cast(TEXT, "float64"), batch).values.tolist() == [0, 1.5]
    assert evaluate(op.substring(TEXT, -3, 2), batch).values.tolist() == ["te", "50"]
    assert evaluate(op.keywords(TEXT, ["it", "t", "x"]), batch).values.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: op.json_field(I64, "a", "int64"),
            r"json_field needs JSON text \(string\), but t.i64 is int64",
        ),
        (lambda: op.json_field(JSON, "a..b", "int64"), "the path must be names with single dots"),
        (lambda: op.json_field(JSON, "a", "binary"), "the type 'binary' is not one of int64, "),
        (
            lambda: op.cast(root("data", "binary"), "int64"),
            "cast needs a number, bool or string, but t.data is binary",
        ),
        (lambda: op.cast(TEXT, "bool"), "cast cannot make bool of t.text, which is string: compare it"),
        (
            lambda: op.cast(LF, "string"),
            "cast cannot make string of t.lf, which is list<float32>: make it a whole",
        ),
        (lambda: op.cast(TEXT, "binary"), "'binary' is not one of"),
        (lambda: op.trim(I64), "trim needs a string, but t.i64 is int64"),
        (lambda: op.substring(BOOL, 0), "substring needs a string, but t.bool is bool"),
        (lambda: op.substring(TEXT, 0.5), "start must be a whole number"),  # type: ignore[arg-type]
        (lambda: op.substring(TEXT, 0, -1), "length must not be negative"),
        (lambda: op.contains(TEXT, I64), "contains needs strings, but t.i64 is int64"),
        (lambda: op.starts_with(LTEXT, LTEXT), "starts_with takes one list and scalars"),
        (lambda: op.concat(TEXT), "concat takes 2 to 8 strings, not 1"),
        (lambda: op.concat(TEXT, I64), r"concat needs strings .*, but t.i64 is int64"),
        (lambda: op.keywords(LTEXT, ["a"]), "keywords needs a string, but t.ltext is list<string>"),
        (lambda: op.keywords(TEXT, []), "words must be strings, at least one"),
        (lambda: op.keywords(TEXT, "abc"), "words must be strings, at least one, not 'abc'"),
        (lambda: op.keywords(TEXT, ["a", ""]), "word 1 is empty"),
        (lambda: op.keywords(TEXT, ["a", "b", "a"]), "words 0 and 2 are both 'a'"),
        (lambda: op.edit_distance(TEXT, I64), "edit_distance needs two strings, but t.i64 is int64"),
        (lambda: op.token_overlap(TEXT, LTEXT), "token_overlap needs two list<string>, but t.text is string"),
    ],
)
def test_mistakes_name_the_expression_and_its_type(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
