"""A request's features equal the trainer's for the same events and tables, bit for bit, for every operator.

logs in files ─► ExampleSource ─► take ─► extractor             the trainer's
its tables and histories ─► Redis ─► request ─► RequestFeatures        the server's
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch

from livectr.client.clients import column_of
from livectr.ingest import operators as op
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.language import dtypes
from livectr.ingest.plan.features import Features
from livectr.protos import livectr_pb2 as pb
from livectr.serving.request.features import RequestFeatures
from livectr.serving.request.lookup_rows import LookupRows
from livectr.serving.request.parse import RequestSchema
from livectr.serving.score.published import published_statistics
from livectr.serving.version.reader import Reader
from livectr.trainer.comm.control import Control
from livectr.trainer.des.step import DesStep
from livectr.trainer.publish.items import ItemCopier
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.snapshot import Snapshotter
from livectr.trainer.publish.values import ValueCopier
from livectr.trainer.publish.version import VersionSnapshot
from tests.ingest.random_values import maybe, value
from tests.ingest.written_out import written_out
from tests.serving.every_operator import CASES, clicks, impressions, pipeline, shops, users
from tests.serving.publication import seal_values

T0 = 1_700_000_000_000
HOUR_MS = 3_600_000
REQUESTS = 40
FIXED_PLACES = ("request_id", "user_id", "ts", "context")
ABSENT = ("page", "slot", "rating", "note", "visits", "signed_in")
"""Columns with a value for null, by the stream or by every feature: a request may leave them out."""

Row = dict[str, Any]


class Request(NamedTuple):
    """Impressions of a page; `context`: columns that all of them share."""

    rows: list[Row]
    context: frozenset[str]


def requests(random: Random) -> list[Request]:
    """Pages of 1 to 5 impressions, each with columns of its own choice in the context."""
    found = []
    for number in range(REQUESTS):
        names = [name for name in impressions.columns if name not in FIXED_PLACES]
        shared = {name for name in names if random.random() < 0.5}
        # A request leaves a column out for all candidates.
        left_out = {name for name in ABSENT if random.random() < 0.3}
        draw: dict[str, Callable[[], Any]] = {
            name: partial(value if name in ABSENT else maybe, random, name, impressions.columns[name])
            for name in names
        }
        draw |= dict.fromkeys(left_out, lambda: None)
        draw["shop"] = partial(random.choice, ["", "s1", "s2", "s3", "ladén", "none"])
        context: Row = {name: draw[name]() for name in sorted(shared | left_out)}
        context |= {
            "user_id": random.randint(0, 6),
            # Some pages lie days before the clicks; after them no history would be left to publish.
            "ts": T0 + 120_000 + number * (-11 * HOUR_MS if number % 2 else 1),
        }
        rows = [
            {name: draw[name]() for name in names} | context | {"request_id": number * 10 + place}
            for place in range(random.choice([1, 2, 5]))
        ]
        found.append(Request(rows, frozenset(context)))
    return found


def as_logged(row: Row) -> Row:
    """Logged form of an impression: some of its columns are within JSON."""
    device = {"zoom": row["zoom"], "device": {"os": row["os"]}}
    kept = {name: v for name, v in row.items() if name not in ("os", "zoom")}
    return {**kept, "context": json.dumps(device)}


def write(root: Path, stream: Any, partition: int, rows: list[Row]) -> None:
    """Write a partition of a topic: even partitions as JSON lines, odd ones as Parquet."""
    (root / stream.topic).mkdir(parents=True, exist_ok=True)
    path = root / stream.topic / f"{partition:05}.jsonl"
    if partition % 2 == 0:
        text = [
            json.dumps(row, ensure_ascii=False, default=lambda b: base64.b64encode(b).decode())
            for row in rows
        ]
        path.write_text("".join(line + "\n" for line in text))
        return
    inner = getattr(stream, "json_fields", {})
    kinds = {n: dtypes.arrow_type(kind) for n, kind in stream.columns.items() if n not in inner}
    arrays = [pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()]
    pq.write_table(pa.Table.from_arrays(arrays, names=list(kinds)), path.with_suffix(".parquet"))


def write_logs(root: Path, random: Random, pages: list[Request]) -> None:
    shown = sorted((as_logged(row) for page in pages for row in page.rows), key=lambda row: row["ts"])
    clicked = []
    for number in range(60):
        row = {name: value(random, name, kind) for name, kind in clicks.columns.items()}
        clicked.append(row | {"request_id": -number - 1, "user_id": number % 6, "ts": T0 + number * 2_000})
    for partition in (0, 1):
        for stream, rows in ((impressions, shown), (clicks, clicked)):
            write(root, stream, partition, [row for row in rows if row["user_id"] % 2 == partition])
    for table, keys in ((users, range(5)), (shops, ["", "s1", "s2", "ladén"])):
        facts = [
            {name: maybe(random, name, kind) for name, kind in table.columns.items()} | {table.key: key}
            for key in keys
        ]
        for partition in (0, 1):
            write(root, table, partition, facts[partition::2])


class Trained(NamedTuple):
    """Results of the trainer for the pages.

    Args:
        features: of all impressions.
        place: request_id → row of `features`.
        statistics: running statistics of the published version.
        store: Redis with the published version.
    """

    pages: list[Request]
    features: Features
    place: dict[int, int]
    statistics: Statistics
    store: RedisStore
    snapshot: VersionSnapshot


@pytest.fixture(params=range(3), ids="seed {}".format)
def trained(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str) -> Iterator[Trained]:
    random = Random(request.param)
    pages = requests(random)
    write_logs(tmp_path, random, pages)
    letters = DeadLetters(None)
    source = ExampleSource(
        pipeline, f"file:{tmp_path}", ReadOptions(until_end=True), rank=0, world=1, dead_letters=letters
    )
    while not source.ended:
        source.poll(0.01)
    assert not letters.counts
    examples = source.pop(sum(len(page.rows) for page in pages))
    extract, statistics = Extractor(pipeline.plan), Statistics(pipeline.plan)
    for start in range(0, len(examples), 32):
        seen = extract(examples.columns.slice(start, 32), statistics)
        statistics = statistics.update(seen.observed)
    place = {key: row for row, key in enumerate(examples.instance.tolist())}
    step, store = DesStep(pipeline, seed=3), RedisStore(redis_url, "livectr")
    store.fence.take(store.manifest_text())
    seal_values(store, pipeline.fingerprint)
    control = Control()
    copier = ValueCopier(source, control, store.space)
    items = ItemCopier(pipeline, step, source, extract, statistics, control)
    snapshot = Snapshotter(pipeline, step, control, statistics, copier, items).take(1, None)
    for values in snapshot.values:
        store.rows.write_values(values)
    yield Trained(pages, extract(examples.columns, statistics), place, statistics, store, snapshot)
    source.close()
    store.close()


def message(page: Request) -> Any:
    """Request for a page as the server receives it.

    A column without a value is left out if its null has a value; else it is null.
    """

    def column(name: str, values: list[Any]) -> Any:
        return column_of(name, values, impressions.columns[name])

    each = [name for name in impressions.columns if name not in (*page.context, "request_id", "context")]
    sent = pb.RankRequest(
        context=[
            column(name, [page.rows[0][name]])
            for name in sorted(page.context)
            if page.rows[0][name] is not None or name not in ABSENT
        ],
        candidates=[column(name, [row[name] for row in page.rows]) for name in each],
    )
    return pb.RankRequest.FromString(sent.SerializeToString())


def test_features_of_requests_equal_the_trainers(trained: Trained, redis_url: str) -> None:
    plan = pipeline.plan
    reader = Reader(redis_url, "livectr", pipeline.fingerprint)
    schema = RequestSchema(pipeline, plan.roots)
    features = RequestFeatures(pipeline, plan, reader, LookupRows(reader))
    statistics = published_statistics(pipeline, safetensors.torch.load(trained.snapshot.dense))
    for page in trained.pages:
        request = message(page)
        columns = schema.reader.read(request.SerializeToString()).columns
        found = features.extract(columns, statistics, "row {}".format)
        assert found.complete
        got = written_out(found.features)
        want = trained.features.take([trained.place[row["request_id"]] for row in page.rows])
        assert got.rows == want.rows and not got.failed.any()
        for index, (name, node) in enumerate(plan.sparse.items()):
            for mine, other in zip(got.field(index), want.field(index), strict=True):
                np.testing.assert_array_equal(mine, other, err_msg=f"{name}: {node}")
        bits = got.dense.view(np.uint32) != want.dense.view(np.uint32)
        different = {plan.dense_names[place] for place in np.flatnonzero(bits.any(axis=0))}
        assert not different
        np.testing.assert_array_equal(got.offsets, want.offsets)
    reader.close()


def test_every_operator_gives_several_values(trained: Trained) -> None:
    features, plan = trained.features, pipeline.plan
    varied = {
        name.partition(".")[0]
        for index, name in enumerate(plan.sparse)
        for offsets, keys in [features.field(index)]
        if len(np.unique(keys)) > 1 or len(np.unique(np.diff(offsets))) > 1
    }
    for column, name in enumerate(plan.dense_names):
        if len(np.unique(features.dense[:, column])) > 1:
            varied.add(name.partition(".")[0])
    assert set(CASES) <= varied


def test_every_operator_is_served() -> None:
    assert set(op.__all__) <= set(CASES)
    for name in set(op.__all__) - {"operator", "Operator", "fill_null", "age"}:
        assert any(node.op == name for node in pipeline.plan.nodes), name


def test_every_origin_and_type_is_read() -> None:
    roots = {root.name: root.dtype for root in pipeline.plan.roots}
    wanted = set(dtypes.DTYPES) - {"image"}
    assert {
        roots[f"impressions.{name}"] for name in impressions.columns if f"impressions.{name}" in roots
    } == wanted
    for table in (users, shops):
        unread = [name for name in table.columns if f"{table.topic}.{name}" not in roots]
        assert unread in ([], [table.key])
    assert sum(name.startswith("recent(") for name in roots) == 2
