"""Pipelines: their parts, rejected declarations, and loading of pipeline files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language.streams import Stream, label_join, labelled, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.operators import hour
from livectr.ingest.pipeline import Field, Pipeline, load_pipeline
from livectr.system.errors import ConfigError
from tests.ingest.small_pipeline import ADS, CLICKS, IMPRESSIONS, LOG, USERS, Towers, build


def names(roots: Any) -> list[str]:
    return [root.name for root in roots]


def test_fields_and_tables() -> None:
    fields = build().fields
    assert [(field.name, field.table, field.index) for field in fields] == [
        ("user", "user", 0),
        ("age", "age", 1),
        ("ad", "ad", 2),
        ("category", "category", 3),
        ("pair", "pair", 4),
        ("hour", "hour", 5),
        ("history", "ad", 6),
    ]


def test_roots_by_origin() -> None:
    pipeline = build()
    assert names(pipeline.request_roots) == ["impressions.user_id", "impressions.ad_id", "impressions.ts"]
    assert {topic: names(roots) for topic, roots in pipeline.lookup_roots.items()} == {
        "users": ["users.age"],
        "ads": ["ads.category", "ads.price"],
    }
    assert names(pipeline.history_roots) == ["recent(clicks.ad_id,20,1209600000)"]
    assert names(pipeline.item_roots) == ["impressions.ad_id", "ads.category", "ads.price"]
    assert [field.name for field in pipeline.item_fields] == ["ad", "category"]
    assert pipeline.streams == (IMPRESSIONS, CLICKS) and pipeline.tables == (USERS, ADS)


def test_item_features_from_the_table_equal_those_of_an_impression() -> None:
    pipeline = build()
    extractor = Extractor(pipeline.plan)
    rows = pa.record_batch(
        {"ad_id": pa.array([7, 9]), "category": ["toys", None], "price": pa.array([2.5, None], pa.float32())}
    )
    from_table = extractor(pipeline.item_columns(rows))
    shown = {
        "impressions.user_id": pa.array([1, 2]),
        "impressions.ad_id": pa.array([7, 9], pa.int32()),
        "impressions.ts": pa.array([3_600_000, 0]),
        "users.age": pa.array([20, 40], pa.int32()),
        "ads.category": pa.array(["toys", None], pa.string()),
        "ads.price": pa.array([2.5, None], pa.float32()),
        "recent(clicks.ad_id,20,1209600000)": pa.array([[1], [2, 3]]),
    }
    from_event = extractor(pa.record_batch(shown))
    item = [field.index for field in pipeline.item_fields]
    a, b = from_table.select_fields(item), from_event.select_fields(item)
    np.testing.assert_array_equal(a.keys, b.keys)
    np.testing.assert_array_equal(a.offsets, b.offsets)
    np.testing.assert_array_equal(from_table.dense, from_event.dense)
    assert pipeline.item_columns(rows).schema.names == names(pipeline.plan.roots)


def test_fingerprint_is_stable_and_sees_every_part() -> None:
    assert build().fingerprint == build().fingerprint
    late = label_join(IMPRESSIONS, CLICKS, on="request_id", window="11m").lookup(USERS).lookup(ADS)
    sparse = dict(build().sparse)
    prints = {
        build().fingerprint,
        build(rank="FM").fingerprint,
        build(prerank=Towers(user=("user",))).fingerprint,
        build(log=late).fingerprint,
        build(dense={}, prerank=None).fingerprint,
        build(sparse={**sparse, "history": recent(CLICKS.ad_id, 20, "14d")}).fingerprint,
        build(sparse={**sparse, "hour": hour(LOG.ts, 1)}).fingerprint,
    }
    assert len(prints) == 7
    assert build(settings={"seed": 3}).fingerprint == build().fingerprint


def test_a_labelled_log_needs_no_clicks() -> None:
    log = labelled(Stream("log", columns=dict(user="int64", x="float64", y="bool"), key="user"), label="y")
    pipeline = Pipeline(log, sparse=dict(user=log.user), dense=dict(x=log.x), rank="LR")
    assert pipeline.streams == (log.impressions,) and pipeline.item_roots == () and pipeline.item_fields == ()
    with pytest.raises(ConfigError, match=r"log.y is the label; it cannot be a feature"):
        Pipeline(log, sparse=dict(y=log.y), rank="LR")
    with pytest.raises(ConfigError, match="this pipeline has no items table"):
        pipeline.item_columns(pa.record_batch({"x": [1]}))


OTHER = Table("brands", key="ad_id", columns=dict(ad_id="int64", size="int32"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build(sparse={}, dense={}, prerank=None), "there are no features"),
        (lambda: build(log=IMPRESSIONS), "make it with label_join"),
        (lambda: build(dense=dict(c=ADS.category)), "dense feature 'c': ads.category is string"),
        (lambda: build(dense=dict(h=recent(CLICKS.ad_id, 20, "14d"))), "dense feature 'h': recent"),
        (
            lambda: build(dense=dict(user=USERS.age)),
            "'user': a sparse and a dense feature have the same name",
        ),
        (lambda: build(sparse=dict(p=ADS.price)), "sparse field 'p': ads.price is float32"),
        (
            lambda: build(dense=dict(s=OTHER.size)),
            r"brands.size: table brands is not looked up; add .lookup\(brands\)",
        ),
        (
            lambda: build(dense=dict(t=CLICKS.ts)),
            "clicks.ts is not known when an impression of impressions is scored",
        ),
        (
            lambda: build(sparse=dict(h=recent(IMPRESSIONS.ad_id, 5, "1d"))),
            "histories are made of the click stream of a label_join",
        ),
        (
            lambda: build(sparse=dict(h=Field(LOG.ad_id, table="adz"))),
            "shares table 'adz', which is no field",
        ),
        (lambda: build(items=OTHER), "items table brands is not looked up"),
        (lambda: build(items=None), "a prerank model needs items="),
        (lambda: build(prerank=Towers(user=("usr",))), "user tower names 'usr'; features are user, age, ad"),
        (
            lambda: build(prerank=Towers(item=("ad", "pair"))),
            "item tower names 'pair', which depends on users.age; the items table ads does not know that",
        ),
        (
            lambda: build(dense=dict(x=Table("ads", key="ad_id", columns=dict(ad_id="int64", x="int32")).x)),
            "ads.x comes from another declaration of ads",
        ),
    ],
)
def test_wrong_pipelines_get_a_sentence(make: Callable[[], Pipeline], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


class TestLoad:
    GOOD = """
from helper import COLUMNS
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.language.streams import Stream, labelled

log = labelled(Stream("log", columns=COLUMNS, key="user"), label="y")
pipeline = Pipeline(log, sparse=dict(user=log.user), rank="LR")
"""

    def load(self, folder: Path, text: str) -> Pipeline:
        (folder / "helper.py").write_text('COLUMNS = dict(user="int64", y="bool")\n')
        file = folder / "ours.py"
        file.write_text(text)
        return load_pipeline(file)

    def test_file_with_a_module_beside_it(self, tmp_path: Path) -> None:
        assert self.load(tmp_path, self.GOOD).plan.fields == ("user",)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (("log.user)", "log.usr)"), r"ours\.py:7: log has no column 'usr'; its columns are user, y"),
            (("log.user)", "unknown)"), r"ours\.py:7: NameError: name 'unknown' is not defined"),
            (("log = labelled(", "log = = labelled("), r"ours\.py:6: invalid syntax"),
            (("from helper", "from nowhere"), r"ours\.py:2: ModuleNotFoundError: No module named 'nowhere'"),
            (("pipeline = ", "other = "), r"ours\.py: there is no variable `pipeline = Pipeline\(...\)`"),
            (('"LR"', "exit(3)"), r"ours\.py:7: SystemExit: 3"),
        ],
    )
    def test_errors_say_where(self, tmp_path: Path, change: tuple[str, str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            self.load(tmp_path, self.GOOD.replace(*change))

    def test_no_such_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="does not exist"):
            load_pipeline(tmp_path / "nothing.py")
