"""Features of requests, from columns where they were parsed: equal to those of whole batches."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from livectr.client.clients import column_of
from livectr.ingest.extract.statistics import Statistics
from livectr.protos import livectr_pb2 as pb
from livectr.serving.errors import RefusedError
from livectr.serving.request.features import RequestFeatures
from livectr.serving.request.lookup_rows import LookupRows
from livectr.serving.request.parse import GivenColumns, RequestSchema
from livectr.serving.version.reader import Reader
from livectr.system.errors import InternalError
from livectr.trainer.publish.values import Values
from tests.ingest.written_out import written_out
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import HISTORY, NOW_MS, World, publication
from tests.serving.publication import Publication

STATISTICS = Statistics(pipeline.plan)
"""The plan has none."""
SCHEMA = RequestSchema(pipeline, pipeline.plan.roots)
HISTORIES = {user: [100 + user, 120, 100 + 2 * user] for user in range(1, 10)}


@pytest.fixture
def published(redis_url: str, world: World) -> Publication:
    """Version of the world, with histories of some users; one of them has a time in the future."""
    made = publication(redis_url)
    world.publish(made)
    for user, items in HISTORIES.items():
        made.history(HISTORY, user, [*items, 149], [*([NOW_MS - 5] * len(items)), NOW_MS + 1])
    return made


@pytest.fixture
def features(redis_url: str, published: Publication) -> Iterator[RequestFeatures]:
    reader = Reader(redis_url, "livectr", pipeline.fingerprint)
    yield RequestFeatures(pipeline, pipeline.plan, reader, LookupRows(reader), item_column="ad_id")
    reader.close()


class Drawn:
    """Random request: a known or unknown user, columns that may be in either part or absent."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        n = int(rng.choice([1, 2, 40, 600]))
        self.user, self.ads = int(rng.integers(1, 22)), rng.integers(98, 152, n).tolist()
        self.positions = rng.integers(0, 5, n).tolist()
        self.query = [None, "Hello Wörld", "a b " * 40][int(rng.integers(3))]
        self.tags = ["x", "é", ""][: int(rng.integers(4))] * int(rng.integers(1, 30))
        context: dict[str, Any] = {"user_id": self.user, "ts": NOW_MS}
        candidates: dict[str, list[Any]] = {"ad_id": self.ads}
        if self.query is not None:
            context["query"] = self.query
        elif rng.integers(2):
            candidates["query"] = [None] * n
        if rng.integers(2):
            candidates["tags"] = [self.tags] * n
        else:
            context["tags"] = self.tags
        if rng.integers(2):
            context["position"] = self.positions[0]
            self.positions = self.positions[:1] * n
        else:
            candidates["position"] = self.positions
        kinds = pipeline.log.impressions.columns
        self.raw = pb.RankRequest(
            context=[column_of(name, [value], kinds[name]) for name, value in context.items()],
            candidates=[column_of(name, values, kinds[name]) for name, values in candidates.items()],
        ).SerializeToString()

    def columns(self, world: World) -> pa.RecordBatch:
        """Columns of the whole batch, as the trainer joins them."""
        history = HISTORIES.get(self.user, [])
        return world.columns(
            self.user, self.ads, self.positions, history=history, query=self.query, tags=self.tags
        )


def check(drawn: Drawn, features: RequestFeatures, world: World) -> None:
    found = features.extract(SCHEMA.reader.read(drawn.raw).columns, STATISTICS, str)
    got, want = written_out(found.features), world.extract(drawn.columns(world))
    assert found.complete
    np.testing.assert_array_equal(got.offsets, want.offsets)
    np.testing.assert_array_equal(got.keys, want.keys)
    assert got.dense.tobytes() == want.dense.tobytes() and not got.failed.any()


def test_random_requests_have_the_features_of_whole_batches(features: RequestFeatures, world: World) -> None:
    for seed in range(150):
        check(Drawn(seed), features, world)


def test_threads_share_memory_that_no_other_call_has(features: RequestFeatures, world: World) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: check(Drawn(seed), features, world), range(200, 280)))


def test_a_request_keeps_what_its_call_points_to(features: RequestFeatures, world: World) -> None:
    """Clients choose the columns of their candidates, and what is known of old choices is forgotten."""
    run = features.begin(SCHEMA.reader.read(Drawn(3).raw), STATISTICS, str)
    split = weakref.ref(run.split)
    features._splits.clear()
    gc.collect()
    assert split() is run.split


def test_columns_of_several_requests_have_the_features_of_one(
    features: RequestFeatures, world: World
) -> None:
    """As a request for recommendations, whose items come from the catalogue."""
    drawn = Drawn(3)
    parsed = SCHEMA.reader.read(drawn.raw).columns
    made = GivenColumns(parsed.size, parsed.context, parsed.candidates, parsed.now_ms)
    for columns in (parsed, made):
        got = written_out(features.extract(columns, STATISTICS, str).features)
        want = world.extract(drawn.columns(world))
        np.testing.assert_array_equal(got.keys, want.keys)


def test_a_column_of_another_length_is_refused(features: RequestFeatures) -> None:
    columns = GivenColumns(3, {}, {"ad_id": pa.array([100])}, NOW_MS)
    with pytest.raises(InternalError, match="do not fit"):
        features.extract(columns, STATISTICS, str)


def test_a_history_with_a_piece_of_a_pair_is_refused(
    features: RequestFeatures, published: Publication
) -> None:
    drawn = Drawn(1)
    user = np.array([drawn.user])
    names = published.store.space.histories(HISTORY, user)
    published.store.rows.write_values(Values(user, names, [b"17 bytes, no pair"]))
    with pytest.raises(RefusedError, match="no trainer wrote"):
        features.extract(SCHEMA.reader.read(drawn.raw).columns, STATISTICS, str)
