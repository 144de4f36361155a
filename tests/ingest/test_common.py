"""Common features: their choice, groups against a dictionary, the same bits as row by row."""

import numpy as np
import pyarrow as pa
import pytest

from livectr.ingest.common_features import WORTHWHILE, Common, CommonExtractor, CommonFeatures
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.language.streams import Stream, label_join, labelled, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.operators import bucketize, cross, hour, length, log1p, quantile_bins, zscore
from livectr.ingest.pipeline import Field, Pipeline
from livectr.kernels.keys.groups import Bytes, group_rows
from livectr.system.errors import ConfigError

ROWS, USERS = 200, 20


def pipeline(key: str = "int64") -> Pipeline:
    """Half of the features are the user's; two statistics, one of them in both halves."""
    event = dict(request="int64", user=key, ad="int64", ts="int64")
    shown = Stream("shown", key="user", time="ts", columns={**event, "page": "string"}, fill={"page": "none"})
    clicks = Stream("clicks", key="user", time="ts", columns=event)
    users = Table("users", key="user", columns=dict(user=key, age="int32", city="string"))
    ads = Table("ads", key="ad", columns=dict(ad="int64", owner=key, price="float32"))
    log = label_join(shown, clicks, on="request", window="1m").lookup(users).lookup(ads)
    pages = Table("pages", key="page", columns=dict(page="string", size="int32"))
    age, liked = zscore(users.age), recent(clicks.ad, n=5, within="1d")
    return Pipeline(
        log.lookup(pages),
        sparse=dict(
            ad=log.ad,
            user=log.user,
            liked=Field(liked, table="ad"),
            city=users.city,
            page=log.page,
            price=quantile_bins(ads.price, 4, fit_rows=100),
            age_x_page=cross(bucketize(age, [0.0]), log.page),
            age_x_city=cross(bucketize(age, [-1.0, 1.0]), users.city),
            hour=hour(log.ts),
        ),
        dense=dict(log_price=log1p(ads.price), liked_n=length(liked), age=age, size=pages["size"]),
        rank=None,
    )


def columns(built: Pipeline, rng: np.random.Generator, rows: int = ROWS) -> tuple[pa.RecordBatch, np.ndarray]:
    """Rows of users whose histories differ in a few of their rows; nulls as look-ups and fills leave them."""
    user = rng.integers(0, USERS, rows)
    version = np.where(rng.random(rows) < 0.1, 1, 0)
    history = {
        (u, v): rng.integers(0, 50, rng.integers(0, 6)).tolist() for u in range(USERS) for v in range(2)
    }
    values: dict[str, list[object]] = {
        "shown.ad": rng.integers(0, 30, rows).tolist(),
        "shown.user": user.tolist(),
        "users.city": [None if u == 3 else f"city {u % 7}" for u in user],
        "users.age": [None if u == 3 else 20 + int(u) for u in user],
        "shown.page": [None if p == 0 else f"/{p}" for p in rng.integers(0, 4, rows)],
        "ads.price": rng.random(rows).tolist(),
        "shown.ts": [1_700_000_000_000 + 60_000 * row for row in range(rows)],
        "pages.size": rng.integers(0, 9, rows).tolist(),
    }
    arrays = []
    for root in built.plan.roots:
        if root.name.startswith("recent("):
            cells = [history[u, v] for u, v in zip(user.tolist(), version.tolist(), strict=True)]
            arrays.append(pa.array(cells, pa.list_(pa.int64())))
        elif root.name == "shown.user" and root.dtype == "string":
            arrays.append(pa.array([f"u{u}" for u in user]))
        else:
            kind = {"int32": pa.int32(), "float32": pa.float32()}.get(root.dtype)
            arrays.append(pa.array(values[root.name], kind))
    return pa.RecordBatch.from_arrays(arrays, names=[root.name for root in built.plan.roots]), user


def test_what_is_common() -> None:
    """Common: the user's key, look-ups by it, histories, and their functions. Not common: page and time."""
    built = pipeline()
    common = Common.of(built)
    fields, dense = list(built.plan.sparse), built.plan.dense_names
    assert [fields[i] for i in common.fields] == ["user", "liked", "city", "age_x_city"]
    assert [dense[i] for i in common.dense] == ["liked_n", "age"]
    assert not Common()


def test_groups_are_equal_rows() -> None:
    """Against a dictionary, on columns that each separate some rows."""
    rng = np.random.default_rng(0)
    user = rng.integers(0, 4, 500)
    words = [["", "a", "ab", "b" * 40][i] for i in rng.integers(0, 4, 500)]
    lists = [[[], [1], [1, 2], [2, 1], [0]][i] for i in rng.integers(0, 5, 500)]
    texts = [word.encode() for word in words]
    index, first = group_rows(
        [
            Bytes(user),
            Bytes(
                np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)]).astype(np.int32)
            ),
            Bytes(np.concatenate(lists).astype(np.int64), np.cumsum([0, *map(len, lists)]).astype(np.int32)),
        ],
        500,
    )
    known: dict[object, int] = {}
    rows = zip(user.tolist(), words, map(tuple, lists), strict=True)
    assert index.tolist() == [known.setdefault(row, len(known)) for row in rows]
    assert index[first].tolist() == list(range(len(known)))
    assert all((index[:row] != group).all() for group, row in enumerate(first))
    assert [len(found) for found in group_rows([Bytes(user[:0])], 0)] == [0, 0]


@pytest.mark.parametrize("key", ["int64", "string"])
def test_the_same_bits_as_row_by_row(key: str) -> None:
    built = pipeline(key)
    whole = Extractor(built.plan)
    extract, common, rng = CommonExtractor(built, whole), Common.of(built), np.random.default_rng(1)
    statistics = Statistics(built.plan)
    for _ in range(3):
        batch, user = columns(built, rng)
        wanted = whole(batch, statistics)
        for part in (batch, batch.slice(0), pa.concat_batches([batch, batch]).slice(ROWS)):
            found = extract(part, user, statistics)
            assert isinstance(found, CommonFeatures)
            assert USERS < found.groups < 0.5 * ROWS and len(found) == found.rows == ROWS
            plain = found.plain(common)
            for name in ("offsets", "keys", "dense", "observed", "failed"):
                np.testing.assert_array_equal(getattr(plain, name), getattr(wanted, name), err_msg=name)
            assert len(plain.observed) == 2
        statistics = statistics.update(wanted.observed)
    some = rng.integers(0, ROWS, 30)
    taken, rows = found.take(some), wanted.take(some)
    assert isinstance(taken, CommonFeatures) and isinstance(found, CommonFeatures)
    assert taken.groups == len(np.unique(found.index[some])) <= 30
    for name in ("offsets", "keys", "dense", "observed", "failed"):
        np.testing.assert_array_equal(getattr(taken.plain(common), name), getattr(rows, name))


def test_features_that_were_read_are_grouped() -> None:
    built = pipeline()
    whole, common, rng = Extractor(built.plan), Common.of(built), np.random.default_rng(3)
    batch, user = columns(built, rng)
    features = whole(batch)
    found = CommonFeatures.of(features, common)
    assert isinstance(found, CommonFeatures)
    groups = CommonExtractor(built, whole).group(batch, user)[1]
    assert USERS <= found.groups <= len(groups) < len(user) / 2  # histories may differ and features be equal
    for name in ("offsets", "keys", "dense", "observed", "failed"):
        np.testing.assert_array_equal(getattr(found.plain(common), name), getattr(features, name))
    other = features.take(rng.permutation(ROWS)[:20])
    for few in (other, features.take([])):
        assert CommonFeatures.of(few, common) is few
    assert CommonFeatures.of(features, Common()) is features


def test_few_rows_a_user_are_not_grouped() -> None:
    built = pipeline()
    whole = Extractor(built.plan)
    extract = CommonExtractor(built, whole)
    batch, user = columns(built, np.random.default_rng(2), 20)
    index, first = extract.group(batch, user)
    assert len(first) > WORTHWHILE * len(index)
    found = extract(batch, user)
    np.testing.assert_array_equal(found.keys, whole(batch).keys)  # type: ignore[union-attr]
    assert len(extract(batch.slice(0, 0), user[:0])) == 0


def test_a_null_key_is_another_group_than_0() -> None:
    """The key of a null is 0, but its feature may be another: its fill."""
    event = dict(user="int64", ad="int64", label="float32")
    log = Stream("log", key="user", columns=event, fill={"user": 7})

    built = Pipeline(labelled(log, label="label"), sparse=dict(user=log.user, ad=log.ad), rank=None)
    users = pa.array([0, None, 0, None, 7, 7, 0, None], pa.int64())
    batch = pa.RecordBatch.from_arrays([users, pa.array(range(8))], names=["log.user", "log.ad"])
    whole = Extractor(built.plan)
    found = CommonExtractor(built, whole)(batch, users.fill_null(0).to_numpy())
    assert isinstance(found, CommonFeatures)
    assert found.index.tolist() == [0, 1, 0, 1, 2, 2, 0, 1]
    np.testing.assert_array_equal(found.plain(Common.of(built)).keys, whole(batch).keys)


def test_rows_that_cannot_be_extracted() -> None:
    """A group fails, and a row fails."""
    event = dict(user="int64", tags="list<int64>", label="float32")
    log = Stream("log", key="user", columns=event)
    users = Table("users", key="user", columns=dict(user="int64", tags="list<int64>"))

    built = Pipeline(
        labelled(log, label="label").lookup(users),
        sparse=dict(user=log.user, pairs=cross(users.tags, users.tags), own=cross(log.tags, log.tags)),
        rank=None,
    )
    many, few = list(range(300)), [1, 2]
    user = np.array([1, 2, 1, 2, 3, 3, 3, 3])
    of_user = [many if u == 2 else few for u in user]
    own = [many if row == 5 else few for row in range(8)]
    kind = pa.list_(pa.int64())
    arrays = {
        "log.user": pa.array(user),
        "users.tags": pa.array(of_user, kind),
        "log.tags": pa.array(own, kind),
    }
    names = [root.name for root in built.plan.roots]
    batch = pa.RecordBatch.from_arrays([arrays[name] for name in names], names=names)
    whole = Extractor(built.plan)
    found, wanted = CommonExtractor(built, whole)(batch, user), whole(batch)
    assert isinstance(found, CommonFeatures)
    assert found.failed.tolist() == wanted.failed.tolist() == [row in (1, 3, 5) for row in range(8)]
    kept = np.flatnonzero(~found.failed)
    taken = found.take(kept)
    assert taken.groups == 2
    np.testing.assert_array_equal(taken.plain(Common.of(built)).keys, wanted.take(kept).keys)
    assert len(found.take(kept[:0])) == 0


def test_without_a_user_feature_nothing_is_grouped() -> None:

    log = Stream("log", key="user", columns=dict(user="int64", ad="int64", label="float32"))
    built = Pipeline(labelled(log, label="label"), sparse=dict(ad=log.ad), rank=None)
    extract = CommonExtractor(built, Extractor(built.plan))
    assert not extract.groups and not Common.of(built)
    batch = pa.RecordBatch.from_arrays([pa.array([5] * 9)], names=["log.ad"])
    assert not isinstance(extract(batch, np.zeros(9, np.int64)), CommonFeatures)
    with pytest.raises(ConfigError, match=r"no column log\.ad"):
        extract(pa.RecordBatch.from_arrays([pa.array([5])], names=["ad"]), np.zeros(1, np.int64))
