"""Rows that share columns have the features of rows with copies, bit for bit, within limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from livectr.ingest.extract import engines
from livectr.ingest.extract.engines import Wanted
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.sharing import SharedFeatures
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef
from livectr.ingest.limits import FeatureLimits
from livectr.ingest.operators import cross, split
from livectr.ingest.plan.dag import FeaturePlan
from livectr.serving.errors import RequestError
from livectr.serving.limits import RequestLimits
from livectr.serving.request.features import RequestFeatures
from livectr.serving.request.lookup_rows import LookupRows
from livectr.serving.request.parse import GivenColumns
from livectr.serving.version.reader import Reader
from tests.ingest.operator_check import ENGINES, without_users_operators
from tests.ingest.random_values import maybe
from tests.ingest.written_out import written_out
from tests.serving.every_operator import impressions, log, pipeline

Columns = dict[str, pa.Array]


def _of_requests(plan: FeaturePlan) -> FeaturePlan:
    """The plan's features that read columns of impressions alone."""

    def reads(node: Any) -> bool:
        if node.is_root:
            return isinstance(node.ref, ColumnRef) and node.ref.source == impressions.topic
        return all(map(reads, node.inputs))

    return FeaturePlan(*({n: e for n, e in part.items() if reads(e)} for part in (plan.sparse, plan.dense)))


WHOLE = _of_requests(pipeline.plan)
PLANS: dict[Wanted, FeaturePlan] = {"calls": without_users_operators(WHOLE), "fused": WHOLE}
SMALL = FeaturePlan({"words": split(log.query, " "), "tags": log.l64, "cross": cross(log.l64, log.i64)})
NO_LIMITS = FeatureLimits()


@pytest.fixture
def features(redis_url: str) -> Iterator[Callable[..., RequestFeatures]]:
    """Makes the features of a plan, whose requests read nothing of Redis."""
    reader = Reader(redis_url, "livectr", pipeline.fingerprint)

    def made(plan: FeaturePlan, limits: FeatureLimits = NO_LIMITS) -> RequestFeatures:
        found = RequestFeatures(pipeline, plan, reader, LookupRows(reader), RequestLimits())
        found._limits = limits
        return found

    yield made
    reader.close()


def extracted(features: RequestFeatures, context: Columns, candidates: Columns, rows: int) -> SharedFeatures:
    columns = GivenColumns(rows, context, candidates, 0)
    return features.extract(columns, Statistics(pipeline.plan), "row {}".format).features


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(6))
def test_features_are_those_of_columns_that_are_written_out(
    seed: int,
    engine: Wanted,
    features: Callable[..., RequestFeatures],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "default", engine)
    random, rows, plan = Random(seed), [1, 2, 511, 513, 1300, 40][seed], PLANS[engine]
    names = dict.fromkeys(root.ref.column for root in plan.roots)
    shared = {name for name in names if random.random() < [0.5, 1.0, 0.8, 0.2, 0.5, 0.0][seed]}
    parts: tuple[Columns, Columns] = {}, {}
    whole = {}
    for name in names:
        dtype = impressions.columns[name]
        count = 1 if name in shared else rows
        values = [maybe(random, name, dtype) for _ in range(count)]
        array = pa.array(values, dtypes.arrow_type(dtype))
        parts[name not in shared][name] = array
        whole[name] = pa.concat_arrays([array] * rows) if name in shared else array
    batch = pa.RecordBatch.from_pydict({root.name: whole[root.ref.column] for root in plan.roots})
    want = Extractor(plan, engine=engine)(batch)
    assert not want.failed.any()
    computes = features(plan)
    for _ in range(2):  # memory of the first request is used again
        found = extracted(computes, *parts, rows)
        got = written_out(found)
        np.testing.assert_array_equal(got.offsets, want.offsets)
        np.testing.assert_array_equal(got.keys, want.keys)
        np.testing.assert_array_equal(got.dense.view(np.uint32), want.dense.view(np.uint32))
    if seed == 1:
        assert len(found.shared_fields) == len(plan.sparse)
    if seed == 5:
        assert not found.shared_fields


def parts(words: str, tags: list[int], ads: int) -> tuple[Columns, Columns]:
    context = {"query": pa.array([words]), "l64": pa.array([tags], pa.list_(pa.int64()))}
    return context, {"i64": pa.array(np.arange(ads))}


def test_a_shared_value_is_there_once_however_many_rows_share_it(
    features: Callable[..., RequestFeatures],
) -> None:
    plan = FeaturePlan({"words": split(log.query, " "), "tags": log.l64, "ad": log.i64})
    found = extracted(features(plan), *parts("ab " * 20_000, list(range(60_000)), 10_000), 10_000)
    assert found.shared_fields == (0, 1) and found.own_fields == (2,)
    assert (len(found.shared.keys), len(found.own.keys)) == (20_000 + 60_000, 10_000)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (FeatureLimits(values=39_999), "too many values in lists"),
        (FeatureLimits(pool_bytes=50_000), "too many values in lists"),
        (FeatureLimits(read=39_999), "times candidates, are too large"),
    ],
)
def test_what_rows_give_together_is_limited(
    limits: FeatureLimits, text: str, features: Callable[..., RequestFeatures]
) -> None:
    given = parts("a b", [1, 2, 3, 4], 10_000)
    enough = FeatureLimits(values=40_000, pool_bytes=1 << 20, read=4 * 10_000)
    whole, less = features(SMALL, enough), features(SMALL, replace(limits))
    for _ in range(2):
        assert len(extracted(whole, *given, 10_000).own.keys) == 40_000
        with pytest.raises(RequestError, match=text):
            extracted(less, *given, 10_000)


def test_a_row_with_too_many_values_is_named(features: Callable[..., RequestFeatures]) -> None:
    computes = features(SMALL)
    with pytest.raises(RequestError, match="context: cannot be scored"):
        extracted(computes, *parts("a " * 70_000, [1], 3), 3)
    words = {"query": pa.array(["a", "a " * 70_000, "b"])}
    context, candidates = parts("", [1], 3)
    del context["query"]
    with pytest.raises(RequestError, match="row 1: cannot be scored"):
        extracted(computes, context, candidates | words, 3)
    assert extracted(computes, *parts("a ", [1], 3), 3).own.rows == 3
