"""Declarations of streams, tables and views, and the error messages of wrong declarations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from livectr.ingest.language.expr import ColumnRef, RecentRef
from livectr.ingest.language.streams import Stream, label_join, labelled, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.operators import frequency
from livectr.system.durations import duration_ms
from livectr.system.errors import ConfigError

COLUMNS = dict(request_id="string", user_id="int64", ad_id="int64", ts="int64")


def impressions(**more: object) -> Stream:
    return Stream("ads.impressions", **(dict(columns=COLUMNS, key="user_id", time="ts") | more))  # type: ignore[arg-type]


CLICKS = Stream("clicks", columns=COLUMNS, key="user_id", time="ts")
ADS = Table("ads", key="ad_id", columns=dict(ad_id="int64", price="float32"))


def test_columns_are_attributes() -> None:
    stream = impressions()
    assert stream.user_id is stream["user_id"] and stream.user_id.name == "ads.impressions.user_id"
    assert stream.user_id.ref == ColumnRef("ads.impressions", "user_id")
    assert ADS.price.ref == ColumnRef("ads", "price", table=True)
    assert hasattr(stream, "ts") and not hasattr(stream, "nothing")
    clash = Stream("s", columns=dict(key="int64", time="int64"), key="key", time="time")
    assert clash.key == "key" and clash["key"].name == "s.key"


def test_view_has_the_impressions_columns() -> None:
    view = label_join(impressions(), CLICKS, on="request_id", window="10m").lookup(ADS)
    assert view.ts is view.impressions.ts and view.on == ("request_id",) and view.window_ms == 600_000
    assert [(lookup.table.topic, lookup.on) for lookup in view.lookups] == [("ads", "ad_id")]
    assert view.clicks is CLICKS and view.label_column is None
    with pytest.raises(
        ConfigError, match=r"ads.impressions has no column 'user'; its columns are request_id, user_id"
    ):
        view.user  # noqa: B018


def test_fill_is_part_of_the_column() -> None:
    stream = impressions(fill={"ad_id": -1})
    assert stream.ad_id.ref == ColumnRef("ads.impressions", "ad_id", fill=-1)
    assert stream.user_id is impressions().user_id


def test_recent_is_a_root() -> None:
    node = recent(CLICKS.ad_id, n=50, within="14d")
    assert node.name == "recent(clicks.ad_id,50,1209600000)" and node.dtype == "list<int64>"
    assert node.ref == RecentRef("clicks", "ad_id", 50, 1_209_600_000) and node.is_root
    assert node is recent(CLICKS.ad_id, 50, 14 * 86_400_000)


def test_representation_holds_every_setting() -> None:
    base = repr(label_join(impressions(), CLICKS, on="request_id", window="10m"))
    others = [
        label_join(impressions(), CLICKS, on="request_id", window="11m"),
        label_join(impressions(), CLICKS, on="request_id", window="10m", delayed="vanilla"),
        label_join(impressions(), CLICKS, on="request_id", window="10m", delayed="fnw"),
        label_join(impressions(), CLICKS, on="request_id", window="10m", delayed="fnw", wait="11s"),
        label_join(impressions(), CLICKS, on="request_id", window="10m", delayed="es_dfm", wait="11s"),
        label_join(impressions(), CLICKS, on=("request_id", "ad_id"), window="10m"),
        label_join(impressions(where=lambda s: s.ts > 0), CLICKS, on="request_id", window="10m"),
        label_join(impressions(fill={"ad_id": 1}), CLICKS, on="request_id", window="10m"),
        label_join(impressions(), CLICKS, on="request_id", window="10m").lookup(ADS),
    ]
    assert len({base, *map(repr, others)}) == 10
    assert " at 0x" not in base + repr(others)


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("30s", 30_000), ("1.5h", 5_400_000), ("14 d", 1_209_600_000), (7, 7)]
)
def test_durations(text: str | int, ms: int) -> None:
    assert duration_ms(text, "window") == ms


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: duration_ms("ten minutes", "window"), "window: 'ten minutes' is not a duration"),
        (lambda: duration_ms(0, "window"), "window: a duration must be positive"),
        (lambda: duration_ms(True, "window"), "is not a duration"),
        (lambda: impressions(columns=dict(user_id="int")), "unknown type 'int'; known types are int64"),
        (lambda: impressions(key="user"), "key column 'user' is not declared; its columns are request_id"),
        (lambda: impressions(time="request_id"), "time column 'request_id' is string; it must be int64"),
        (lambda: impressions(json_fields={"os": "ad_id.os"}), "give the type of JSON field 'os' in columns"),
        (lambda: impressions(json_fields={"ad_id": "ts.os"}), "JSON field 'ad_id' is 'ts.os'"),
        (lambda: impressions(json_fields={"ad_id": "request_id"}), 'write "column.path.to.field"'),
        (lambda: impressions(fill={"nothing": 1}), "fill names 'nothing'"),
        (lambda: impressions(fill={"ad_id": "x"}), "fill of 'ad_id': 'x' is not a value of type int64"),
        (
            lambda: impressions(where=lambda s: s.ts),
            "where must be a bool expression over this stream's columns",
        ),
        (lambda: impressions(where=lambda s: CLICKS.ts > s.ts), "where must be a bool expression"),
        (
            lambda: impressions(where=lambda s: frequency(s.ad_id) < 9),
            r"where cannot depend on running statistics.*less\(frequency\(ads.impressions.ad_id",
        ),
        (lambda: Stream("", columns=COLUMNS, key="user_id"), "the topic has no name"),
        (lambda: ADS.name, "ads has no column 'name'; its columns are ad_id, price"),
        (lambda: label_join(impressions(), CLICKS, on=(), window="1m"), "name at least one column"),
        (lambda: label_join(impressions(), CLICKS, on="id", window="1m"), "has no column 'id'"),
        (lambda: label_join(impressions(time=None), CLICKS, on="ts", window="1m"), "needs a time column"),
        (
            lambda: label_join(impressions(), CLICKS, on="request_id", window="1m", wait="9s"),
            "with delayed=\"wait\" an impression waits for the whole window; leave wait='9s' out",
        ),
        (
            lambda: label_join(
                impressions(), CLICKS, on="request_id", window="1m", wait="60s", delayed="fnw"
            ),
            "the wait of 60 s must be shorter than the window of 60 s",
        ),
        (
            lambda: label_join(impressions(), CLICKS, on="request_id", window="1m", delayed="es_dfm"),
            'delayed="es_dfm" needs a wait, for it learns which clicks come after it',
        ),
        (
            lambda: label_join(
                impressions(), CLICKS, on="request_id", window="1m", wait="2m", delayed="es_dfm"
            ),
            "the wait of 120 s must be shorter than the window of 60 s",
        ),
        (
            lambda: label_join(
                impressions(),
                CLICKS,
                on="request_id",
                window="1m",
                delayed="fwn",  # type: ignore[arg-type]
            ),
            "delayed is 'fwn'; it must be 'wait' or 'vanilla' or 'fnw' or 'es_dfm'",
        ),
        (lambda: label_join(CLICKS, CLICKS, on="ts", window="1m"), "cannot be joined with itself"),
        (
            lambda: label_join(impressions(key="request_id"), CLICKS, on="ts", window="1m"),
            "partitioned alike",
        ),
        (
            lambda: label_join(impressions(key="ad_id"), CLICKS, on="request_id", window="1m"),
            "impressions is partitioned by 'ad_id' and clicks by 'user_id', so most clicks would not meet",
        ),
        (lambda: labelled(CLICKS, label="request_id"), "a label must be a number or bool"),
        (
            lambda: labelled(CLICKS, label="ts").lookup(ADS, on="request_id"),
            "is string, but ads.ad_id is int64",
        ),
        (lambda: labelled(CLICKS, label="ts").lookup(ADS).lookup(ADS), "ads is looked up twice"),
        (lambda: recent(ADS.price, 5, "1d"), "must be an int64, int32 or string column of an event stream"),
        (lambda: recent(CLICKS.ad_id, 0, "1d"), "n must be between 1 and 100000"),
        (lambda: recent(CLICKS.ad_id, 5, "soon"), "is not a duration"),
    ],
)
def test_wrong_declarations_get_a_sentence(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()
