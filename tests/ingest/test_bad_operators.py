"""A mistake in an operator is reported when the pipeline is loaded, at its line in the user's file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.cli import main
from livectr.ingest import operators as op
from livectr.ingest.extract.engines import explained
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language.expr import ColumnRef, Expr, column
from livectr.ingest.pipeline import load_pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.system.errors import ConfigError, KernelError
from tests.ingest.device_checks import compiles_for_sm_90

HEAD = """\
from livectr.ingest.operators import *
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.language.streams import Stream, labelled
from livectr.models import DeepFM

types = dict(user="int64", small="int32", price="float32", text="string", data="binary", click="bool")
types |= dict(ids="list<int64>", prices="list<float32>", words="list<string>")
log = labelled(Stream("log", key="user", columns=types), label="click")
"""
PIPELINE = 'pipeline = Pipeline(log, sparse={{"x": {}}}, rank=DeepFM(dim=4))\n'

# operator → an expression with a column of the wrong type, that column, its type, what is needed
WRONG: dict[str, tuple[str, str, str, str]] = {
    "Operator": ('Operator("int64 x -> int64", "x")(log.text)', "log.text", "string", "int64 for 'x'"),
    "operator": (
        'operator("int32 x -> int32", "x", name="f")(log.user)',
        "log.user",
        "int64",
        "f needs int32",
    ),
    "age": ("age(log.user, log.small)", "log.small", "int32", "(int64)"),
    "bucketize": ("bucketize(log.text, [1])", "log.text", "string", "a number"),
    "cast": ('cast(log.data, "int64")', "log.data", "binary", "a number, bool or string"),
    "clip": ("clip(log.click, 0, 1)", "log.click", "bool", "a number"),
    "concat": ("concat(log.text, log.user)", "log.user", "int64", "strings"),
    "contains": ("contains(log.user, 'a')", "log.user", "int64", "strings"),
    "contains_item": ("contains_item(log.text, 'a')", "log.text", "string", "a list"),
    "count_of": ("count_of(log.ids, log.text)", "log.text", "string", "one value of its type"),
    "cross": ("cross(log.user, log.price)", "log.price", "float32", "integers, bools or strings"),
    "edit_distance": ("edit_distance(log.text, log.data)", "log.data", "binary", "two strings"),
    "fill_null": ("fill_null(log.ids, 1)", "log.ids", "list<int64>", "a column that is no list"),
    "frequency": ("frequency(log.price)", "log.price", "float32", "an integer, bool or string"),
    "head": ("head(log.text, 2)", "log.text", "string", "a list"),
    "hour": ("hour(log.small)", "log.small", "int32", "(int64)"),
    "item": ("item(log.ids, log.price)", "log.price", "float32", "a whole number as index"),
    "json_field": ('json_field(log.data, "a", "int64")', "log.data", "binary", "(string)"),
    "key": ("key(log.price)", "log.price", "float32", "an integer, bool or string"),
    "keywords": ('keywords(log.words, ["a"])', "log.words", "list<string>", "a string"),
    "largest": ("largest(log.words)", "log.words", "list<string>", "a list of numbers"),
    "length": ("length(log.user)", "log.user", "int64", "a list or a string"),
    "log1p": ("log1p(log.text)", "log.text", "string", "a number"),
    "lookup": ("lookup(log.price, {1: 2})", "log.price", "float32", "whole numbers or strings"),
    "lower": ("lower(log.ids)", "log.ids", "list<int64>", "a string"),
    "mean": ("mean(log.price)", "log.price", "float32", "a list of numbers or bools"),
    "minmax": ("minmax(log.prices)", "log.prices", "list<float32>", "one value per row"),
    "ngrams": ("ngrams(log.ids, 2)", "log.ids", "list<int64>", "a string"),
    "normalise": ("normalise(log.text, 0, 1)", "log.text", "string", "a number"),
    "quantile_bins": ("quantile_bins(log.text, 4)", "log.text", "string", "a number"),
    "smallest": ("smallest(log.user)", "log.user", "int64", "a list of numbers"),
    "split": ('split(log.words, " ")', "log.words", "list<string>", "a string"),
    "starts_with": ('starts_with(log.data, "a")', "log.data", "binary", "strings"),
    "substring": ("substring(log.user, 1)", "log.user", "int64", "a string"),
    "tail": ("tail(log.user, 1)", "log.user", "int64", "a list"),
    "token_overlap": ("token_overlap(log.words, log.text)", "log.text", "string", "two list<string>"),
    "total": ("total(log.words)", "log.words", "list<string>", "a list of numbers or bools"),
    "trim": ("trim(log.data)", "log.data", "binary", "a string"),
    "unique": ("unique(log.text)", "log.text", "string", "a list"),
    "weekday": ("weekday(log.price)", "log.price", "float32", "(int64)"),
    "where": ("where(log.user, 1, 2)", "log.user", "int64", "a bool condition"),
    "word_embedding": ("word_embedding(log.price, ([1], [[1.0]]))", "log.price", "float32", "words"),
    "zscore": ("zscore(log.text)", "log.text", "string", "a number"),
    # not functions, but operators all the same
    "add": ("log.user + log.text", "log.text", "string", "numbers"),
    "less": ("log.user < log.data", "log.data", "binary", "two numbers or two strings"),
    "logical_and": ("log.click & log.user", "log.user", "int64", "bools"),
    "two lists": ("log.ids + log.prices", "log.prices", "list<float32>", "one list and scalars"),
    "sparse": ("log.price", "log.price", "float32", "make it discrete"),
}


def write(path: Path, expression: str, before: str = "") -> Path:
    path.write_text(HEAD + before + PIPELINE.format(expression))
    return path


@pytest.mark.parametrize("name", WRONG)
def test_wrong_types_name_the_expression_and_both_types(tmp_path: Path, name: str) -> None:
    expression, wrong, dtype, needed = WRONG[name]
    file = write(tmp_path / "p.py", expression)
    with pytest.raises(ConfigError) as refused:
        load_pipeline(file)
    said = str(refused.value)
    assert said.startswith(f"{file}:9: ") and "\n" not in said
    assert name in said or name in ("operator", "Operator", "two lists")
    assert f"{wrong} is {dtype}" in said or f"{wrong} ({dtype})" in said
    assert needed in said


def test_every_operator_has_a_wrong_type() -> None:
    assert not (missing := set(op.__all__) - set(WRONG)), f"add to WRONG above: {missing}"


LINES = '''\
first = operator("int64 x -> int64", "x + missing_a", name="first")
second = operator(
    "int64 x -> int64",
    """x / 2
    + missing_b""",
    name="second",
)


@operator("int64 x -> int64", "missing_c")
def third(x): "a docstring"


fourth = Operator("int64 x -> int64", "x +" " missing_d", "fourth")
'''


@pytest.mark.parametrize(
    ("name", "line", "missing"),
    [
        ("first", 9, "missing_a"),
        ("second", 13, "missing_b"),
        ("third", 18, "missing_c"),
        ("fourth", 22, "missing_d"),
    ],
)
def test_the_compilers_message_is_at_the_users_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, line: int, missing: str
) -> None:
    file = write(tmp_path / "p.py", f"{name}(log.user)", LINES)
    assert file.read_text().splitlines()[line - 1].count(missing)
    assert main(["inspect", "--pipeline", str(file)]) == 2
    output = capsys.readouterr().err
    assert output.startswith(f"livectr: operator '{name}' does not compile")
    assert f"{file}:{line}: error: " in output and missing in output and "Traceback" not in output


def test_nvrtcs_message_is_at_the_users_line(tmp_path: Path) -> None:
    plan = load_pipeline(write(tmp_path / "p.py", "second(log.user)", LINES)).plan
    with pytest.raises(KernelError) as refused:
        compiles_for_sm_90(plan)
    said = explained(refused.value)
    assert isinstance(said, ConfigError)
    assert f"{tmp_path / 'p.py'}:13: error: " in str(said) and "missing_b" in str(said)


def test_lines_that_move_do_not_make_another_pipeline(tmp_path: Path) -> None:
    made = 'f = operator("int64 x -> int64", "x / 2", name="f")\n'
    one = load_pipeline(write(tmp_path / "p.py", "f(log.user)", made))
    other = load_pipeline(write(tmp_path / "q.py", "f(log.user)", "\n\n" + made))
    assert one.fingerprint == other.fingerprint


A, B = column(ColumnRef("t", "a"), "int64"), column(ColumnRef("t", "b"), "int64")
C, D = column(ColumnRef("t", "c"), "int32"), column(ColumnRef("t", "d"), "int32")


def _divisions() -> dict[str, Expr]:
    wide = {
        "quotient": "a / b",
        "rest": "a % b",
        "order": "7 + a / b * 3 % 5 - -a/b /* no / % here */",
        "literals": "a / 3 + a % 7 + '/' // %",
    }

    def make(name: str, kind: str, text: str) -> op.Operator:
        return op.operator(f"{kind} a, {kind} b -> {kind}", text, name=name)

    return {name: make(name, "int64", text)(A, B) for name, text in wide.items()} | {
        f"{name} 32": make(name, "int32", text)(C, D) for name, text in wide.items() if name != "order"
    }


PLAN = FeaturePlan(_divisions())
WHOLE64 = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1), st.just(-(2**63)))
WHOLE32 = st.one_of(st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1), st.just(-(2**31)))


def quotient(a: int, b: int, bits: int) -> int:
    whole = 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return wrapped(whole, bits)


def rest(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)


def wrapped(x: int, bits: int) -> int:
    return (x + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


@given(st.lists(st.tuples(WHOLE64, WHOLE64, WHOLE32, WHOLE32), min_size=1, max_size=9))
def test_division_in_a_users_operator_never_traps(rows: list[tuple[int, int, int, int]]) -> None:
    kinds = (pa.int64(), pa.int64(), pa.int32(), pa.int32())
    arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    found = Extractor(PLAN)(pa.RecordBatch.from_arrays(arrays, names=["t.a", "t.b", "t.c", "t.d"]))
    keys = {name: found.field(index)[1].tolist() for index, name in enumerate(PLAN.sparse)}
    assert keys["quotient"] == [quotient(a, b, 64) for a, b, _, _ in rows]
    assert keys["rest"] == [rest(a, b) for a, b, _, _ in rows]
    assert keys["quotient 32"] == [quotient(c, d, 32) for *_, c, d in rows]
    assert keys["rest 32"] == [rest(c, d) for *_, c, d in rows]
    for a, b, order in zip(*zip(*[row[:2] for row in rows], strict=True), keys["order"], strict=True):
        if abs(a) < 2**60:
            assert order == 7 + rest(quotient(a, b, 64) * 3, 5) - quotient(-a, b, 64)
    assert keys["literals"] == [wrapped(quotient(a, 3, 64) + rest(a, 7) + ord("/"), 64) for a, *_ in rows]


def test_floats_are_divided_as_in_cpp() -> None:
    ratio = op.operator("float32 a, int64 b -> float64", "a / b + 1.0 / b", name="ratio")
    plan = FeaturePlan({"x": op.cast(ratio(column(ColumnRef("t", "f"), "float32"), A) * 8, "int64")})
    arrays = [pa.array([1.5, 1.5, -2.0], pa.float32()), pa.array([2, 0, 4])]
    keys = Extractor(plan)(pa.RecordBatch.from_arrays(arrays, names=["t.f", "t.a"])).keys
    np.testing.assert_array_equal(keys, [10, 2**63 - 1, -2])


def test_divisions_compile_for_a_gpu() -> None:
    assert compiles_for_sm_90(PLAN)


@pytest.mark.parametrize("sign", ["/", "%"])
def test_division_in_place_is_refused(sign: str) -> None:
    with pytest.raises(ConfigError, match=f"operator f: write x = x {sign} y in place of x {sign}= y"):
        op.operator("int64 x -> int64", f"x {sign}= 2", name="f")
