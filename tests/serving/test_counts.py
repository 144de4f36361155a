"""Counters of a request equal those of the same impression in training, for all that was known by then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from livectr.client.clients import column_of
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.language.streams import View
from livectr.ingest.pipeline import Pipeline
from livectr.protos import livectr_pb2 as pb
from livectr.serving.request.features import RequestFeatures
from livectr.serving.request.lookup_rows import LookupRows
from livectr.serving.request.parse import RequestSchema
from livectr.serving.version.reader import Reader
from livectr.trainer.comm.control import Control
from livectr.trainer.publish.boundary import Boundary, Left
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.values import ValueCopier
from livectr.verify.live import LiveInputs
from livectr.verify.requests import Request
from tests.ingest.counted_log import COLUMNS, aged_pipeline_of, log_of, opened, pipeline_of, read, write_log
from tests.ingest.written_out import written_out
from tests.serving.publication import seal_values

ADS = [f"ad{n}" for n in range(4)]


def request(ts: int, user: int, slot: int, *, shared: bool) -> Any:
    """Request for all ads in a slot, which is a column of the context or of each candidate."""

    def column(name: str, *values: object) -> Any:
        return column_of(name, list(values), COLUMNS[name])

    context, candidates = [column("user", user), column("ts", ts)], [column("ad", *ADS)]
    if shared:
        context.append(column("slot", slot))
    else:
        candidates.append(column("slot", *[slot] * len(ADS)))
    return pb.RankRequest(context=context, candidates=candidates)


@pytest.mark.parametrize("made", [pipeline_of, aged_pipeline_of], ids=["windows", "ages"])
@pytest.mark.parametrize("shared", [True, False], ids=["slot of all", "slot of each"])
def test_a_request_has_the_counters_of_training(
    tmp_path: Path, redis_url: str, shared: bool, made: Callable[[View], tuple[Pipeline, object, object]]
) -> None:
    """Each version has what was counted since the one before. `verify` recomputes the same from Redis."""
    pipeline, *_ = made(log_of())
    url, plan = write_log(tmp_path, 200), pipeline.plan
    (whole,) = read(pipeline, url, [10_000])
    trained = Extractor(plan)(whole.columns).dense
    slots, ads = (whole.columns.column(f"shown.{name}").to_pylist() for name in ("slot", "ad"))

    source, store = opened(pipeline, url), RedisStore(redis_url, "livectr")
    store.fence.take(store.manifest_text())
    seal_values(store, pipeline.fingerprint)
    values = ValueCopier(source, Control(), store.space)
    reader = Reader(redis_url, "livectr", pipeline.fingerprint)
    rows = LookupRows(reader)
    features, schema = RequestFeatures(pipeline, plan, reader, rows), RequestSchema(pipeline, plan.roots)
    Left.of(source).track(saved=True, published=True)
    live = LiveInputs(pipeline, redis_url, "livectr")
    boundary, done, statistics = None, 0, Statistics(plan)
    for row in range(20, 200, 9):
        ts = int(whole.time_ms[row])
        known = int(np.searchsorted(whole.order, ts, side="right"))
        source.pop(known - done)
        done, mark = known, source.mark()
        changed = values.take(boundary).changed
        boundary = Boundary({}, mark, mark)
        for each in changed:
            store.rows.write_values(each)
        rows.changed({each.listed: each.keys for each in changed})
        asked = request(ts, int(whole.user[row]), slots[row], shared=shared).SerializeToString()
        found = features.extract(schema.reader.read(asked).columns, statistics, "row {}".format)
        served = written_out(found.features).dense[ADS.index(ads[row])]
        assert found.complete and served.tobytes() == trained[row].tobytes(), row
        context = {"user": int(whole.user[row]), "ts": ts, **({"slot": slots[row]} if shared else {})}
        candidates = {"ad": ADS, **({} if shared else {"slot": [slots[row]] * len(ADS)})}
        checked = Request("rank", context, candidates, {})
        names = live.names(checked)
        inputs = live.columns(checked, names, live.read([names]))
        assert Extractor(plan)(inputs).dense[ADS.index(ads[row])].tobytes() == trained[row].tobytes()
    assert trained[20::9].max() > 10
    live.close()
    source.close()
    reader.close()
    store.close()
