"""Columns that a request leaves out have the values of nulls in training; numbers must fit their types."""

from __future__ import annotations

import numpy as np
import pytest

from livectr.client.clients import column_of
from livectr.ingest import operators as op
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.language.streams import Stream, label_join, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Pipeline
from livectr.models import DeepFM
from livectr.serving.errors import RequestError
from livectr.serving.request.features import RequestFeatures
from livectr.serving.request.lookup_rows import LookupRows
from livectr.serving.request.parse import RequestSchema
from livectr.serving.version.reader import Reader
from livectr.store.layout import encode_history, encode_lookup_row
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.values import Values
from tests.ingest.written_out import written_out
from tests.serving.parsed import array_of, parsed
from tests.serving.publication import seal_values

KINDS = {
    "request_id": "int64",
    "user_id": "int64",
    "ts": "int64",
    "shop": "int64",
    "pos": "int32",
    "n": "int64",
}
shown = Stream("shown", key="user_id", time="ts", columns=KINDS, fill={"user_id": 4, "shop": 9})
clicks = Stream("clicks", key="user_id", time="ts", columns=KINDS)
shops = Table("shops", key="shop", columns={"shop": "int64", "rank": "int32"})
log = label_join(shown, clicks, on="request_id", window="1m").lookup(shops)
pipeline = Pipeline(
    log,
    sparse={
        "shop": op.fill_null(log.shop, -1),
        "rank": shops.rank,
        "pos": op.fill_null(log.pos, 3),
        "n": log.n,
        "n filled": op.fill_null(log.n, 5),
        "history": recent(clicks.shop, n=2, within="1h"),
    },
    rank=DeepFM(dim=4),
)


@pytest.mark.parametrize("null", [False, True])
def test_a_key_of_the_user_and_of_a_look_up_may_be_absent(redis_url: str, null: bool) -> None:
    """Or null, which the stream's fill replaces."""
    store = RedisStore(redis_url, "livectr")
    reader = Reader(redis_url, "livectr", pipeline.fingerprint)
    store.fence.take(store.manifest_text())
    seal_values(store, pipeline.fingerprint)
    shop, user = np.array([9]), np.array([4])
    store.rows.write_values(
        Values(shop, store.space.lookup_rows("shops", shop), [encode_lookup_row([9, 77])])
    )
    root = pipeline.history_roots[0].name
    history = encode_history(np.array([31, 32]), np.array([500, 600]))
    store.rows.write_values(Values(user, store.space.histories(root, user), [history]))
    schema = RequestSchema(pipeline, pipeline.plan.roots)
    optional = {name for name, spec in schema.columns.items() if not spec.required}
    assert optional == {"user_id", "shop", "pos", "ts"}  # n is also used as it is
    context = [column_of("user_id", [None], "int64")] if null else []
    shop_of = [column_of("shop", [None, None], "int64")] if null else []
    columns = parsed(schema, [*context, column_of("ts", [1_000])], [column_of("n", [1, 2]), *shop_of])
    found = RequestFeatures(pipeline, pipeline.plan, reader, LookupRows(reader)).extract(
        columns, Statistics(pipeline.plan), str
    )
    features = written_out(found.features)
    assert found.complete and [features.field(field)[1].tolist() for field in range(6)] == [
        [9, 9],
        [77, 77],
        [3, 3],
        [1, 2],
        [1, 2],
        [31, 32, 31, 32],
    ]
    reader.close()
    store.close()


@pytest.mark.parametrize("number", [1e300, -3.5e38, 2.0**128 - 2.0**103])
def test_what_does_not_fit_float32_is_refused(number: float) -> None:
    with pytest.raises(RequestError, match=r"candidates.x: holds a number that does not fit float32"):
        array_of(column_of("x", [0.0, number]), "float32", 2)
    assert array_of(column_of("x", [3.4e38]), "float32", 1)[0].as_py() == float(np.float32(3.4e38))
