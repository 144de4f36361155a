"""Expressions are hash-consed, immutable and typed; mistakes give a sentence."""

from __future__ import annotations

import gc
import threading

import pytest

from livectr.ingest import operators as op
from livectr.ingest.language.expr import ColumnRef, Expr, column
from livectr.system.errors import ConfigError


def root(name: str, dtype: str) -> Expr:
    return column(ColumnRef("t", name), dtype)


A, B, F, S = root("a", "int64"), root("b", "int32"), root("f", "float32"), root("s", "string")
L, LS, D = root("l", "list<int64>"), root("ls", "list<string>"), root("d", "binary")


def test_equal_expressions_are_one_node() -> None:
    assert op.cross(A, op.bucketize(B, [1, 2])) is op.cross(root("a", "int64"), op.bucketize(B, [1, 2]))
    assert op.bucketize(B, [1, 2]) is not op.bucketize(B, [1, 3])
    assert op.split(S, " ") is not op.split(S, ",")
    assert A + 1 is A + 1
    assert A + 1 is not A + 2
    assert op.hour(A) is not op.hour(A, 1)
    assert op.clip(A, 1, None) is not op.clip(A, None, 1)
    assert op.fill_null(B, 3) is not B
    assert op.fill_null(B, 3) is op.fill_null(B, 3)


def test_building_from_many_threads_gives_one_node() -> None:
    barrier, nodes = threading.Barrier(8), []

    def build() -> None:
        barrier.wait()
        for n in range(200):
            nodes.append((n, A * n + 7))

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(node) for _, node in nodes}) == 200


def test_nodes_that_nobody_holds_are_forgotten() -> None:
    from livectr.ingest.language import expr

    before = len(expr._NODES)
    kept = [A + n for n in range(1000, 1100)]
    assert len(expr._NODES) > before
    del kept
    gc.collect()
    assert len(expr._NODES) <= before


def test_layer_is_the_depth() -> None:
    assert A.layer == 0
    assert op.lower(S).layer == 1
    assert op.cross(op.split(op.lower(S), " "), A).layer == 4  # lower, split, key, cross


def test_integers_are_their_own_key_without_a_node() -> None:
    assert op.key(A) is A
    assert op.key(L) is L
    assert op.key(B).dtype == "int64"


@pytest.mark.parametrize(
    ("node", "dtype"),
    [
        (A + B, "int64"),
        (B + 1, "int32"),
        (B + 2**40, "int64"),
        (F * 2, "float32"),
        (F * 0.5, "float32"),
        (B * 0.5, "float64"),
        (B + F, "float64"),
        (A / B, "float64"),
        (A // B, "int64"),
        ((A > 1) + (B > 1), "int32"),
        (A > 0.5, "bool"),
        (L + A, "list<int64>"),
        (L > 1, "list<bool>"),
        (op.lower(LS), "list<string>"),
        (op.key(LS), "list<int64>"),
        (op.cross(L, A), "list<int64>"),
        (op.cross(A, S), "int64"),
        (op.length(L), "int32"),
        (op.ngrams(D, 2, of="bytes"), "list<string>"),
        (op.where(A > 0, F, 1), "float32"),
        (op.log1p(L), "list<float32>"),
    ],
)
def test_types(node: Expr, dtype: str) -> None:
    assert node.dtype == dtype


def test_nodes_cannot_be_changed_or_used_as_truth_values() -> None:
    with pytest.raises(AttributeError, match="cannot be changed"):
        A.dtype = "int32"
    with pytest.raises(ConfigError, match="has no truth value"):
        bool(A == 1)
    with pytest.raises(ConfigError, match="cannot be iterated"):
        list(A)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: op.log1p(S), "log1p needs a number, but t.s is string"),
        (lambda: op.lower(A), "lower needs a string, but t.a is int64"),
        (lambda: op.split(LS, " "), "split needs a string, but t.ls is list<string>"),
        (lambda: op.split(S, ""), "separator must be a string that is not empty"),
        (lambda: op.hour(B), r"hour needs epoch milliseconds \(int64\), but t.b is int32"),
        (lambda: op.key(F), "key needs an integer, bool or string"),
        (lambda: op.cross(A, F), "cross needs integers, bools or strings"),
        (lambda: op.cross(A), "cross takes 2 to 4 inputs, not 1"),
        (lambda: op.cross(A, A, A, A, A), "cross takes 2 to 4 inputs, not 5"),
        (lambda: op.bucketize(S, [1]), "bucketize needs a number, but t.s is string"),
        (lambda: op.bucketize(A, []), "bounds must be finite numbers"),
        (lambda: op.bucketize(A, [1, 1]), "bounds must increase strictly"),
        (lambda: op.bucketize(A, [float("nan")]), "bounds must be finite numbers"),
        (lambda: op.clip(A, 3, 1), "lo=3 is above hi=1"),
        (lambda: op.clip(A, 0.5, None), "0.5 is not a value of type int64"),
        (lambda: op.normalise(A, 0, 0), "std positive"),
        (lambda: op.ngrams(L, 2), "ngrams needs a string"),
        (lambda: op.ngrams(S, 0), "n must be between 1 and 64"),
        (lambda: op.length(A), "length needs a list or a string, but t.a is int64"),
        (lambda: op.where(A, 1, 2), "where needs a bool condition, but t.a is int64"),
        (lambda: op.where(A > 0, S, A), "where needs two numbers or two strings"),
        (lambda: op.fill_null(A, "x"), "'x' is not a value of type int64"),
        (lambda: op.fill_null(A + 1, 0), "fill_null needs a column"),
        (lambda: L + root("l2", "list<int64>"), "takes one list and scalars"),
        (lambda: A + S, "add needs numbers, but t.s is string"),
        (lambda: S + "x", "add needs numbers, but t.s is string"),
        (lambda: S < 1, "less needs two numbers or two strings"),
        (lambda: A & B, "logical_and needs bools, but t.a is int64"),
        (lambda: op.hour("ts"), r"hour needs epoch milliseconds \(int64\), but 'ts' is string"),
        (lambda: A + "ts", r"'ts' is text where a number is needed; .* write stream\['ts'\]"),
        (
            lambda: op.log1p([1, 2]),  # type: ignore[arg-type]
            "is neither an expression nor a constant",
        ),
        (lambda: A + float("inf"), "inf is not a value of type float64"),
        (lambda: A + 2**63, "is not a value of type int64"),
    ],
)
def test_wrong_expressions_get_a_sentence(build, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message):
        build()
