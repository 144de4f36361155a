"""LiveCTR as a library: rows in memory become features, a model, embeddings and scores."""

from __future__ import annotations

import datetime as dt
import math
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import livectr
from livectr import ConfigError, Content, ContentStore, Pipeline, Stream, Table, labelled, ops
from livectr.evaluation import read_predictions
from livectr.ingest.language.calibration import Calibration
from livectr.ingest.language.keys import hash_strings
from livectr.models import DICM, LR, DeepFM, EmbeddingModel, adagrad, ftrl
from livectr.models.base import ModelConfig
from livectr.trainer import step_settings
from livectr.trainer.options import TrainOptions
from tests.tiers import few

impressions = Stream(
    "impressions",
    key="user",
    time="ts",
    columns={
        "user": "int64",
        "ad": "int64",
        "ts": "int64",
        "page": "string",
        "tags": "list<int64>",
        "click": "int32",
    },
)
ads = Table("ads", key="ad", columns={"ad": "int64", "category": "string", "price": "float32"})
log = labelled(impressions, label="click").lookup(ads)
START_MS = 1_700_000_000_000
ADS = {
    "ad": list(range(20)),
    "category": [f"c{i % 4}" for i in range(20)],
    "price": [i / 2 for i in range(20)],
}


def pipeline(rank: ModelConfig, **more: Any) -> Pipeline:
    return Pipeline(
        log,
        sparse={
            "user": log.user,
            "ad": log.ad,
            "page": log.page,
            "tags": log.tags,
            "category": ads.category,
            "page_x_category": ops.cross(log.page, ads.category),
        },
        dense={"price": ops.log1p(ads.price), "seen": ops.frequency(log.ad, width=1 << 10)},
        rank=rank,
        settings={"batch_size": 64, "batch_ramp": 0},
        **more,
    )


LINEAR = pipeline(LR(ftrl(alpha=0.1)))
SMALL = pipeline(DeepFM(dim=4, hidden=(8,), optimiser=adagrad(lr=0.05)))


def rows(count: int, seed: int = 0) -> dict[str, list[Any]]:
    """Impressions of which those of even ads are clicked more often."""
    rng = np.random.default_rng(seed)
    ad = rng.integers(22, size=count)  # 20 and 21 are in no table
    return {
        "user": rng.integers(50, size=count).tolist(),
        "ad": ad.tolist(),
        "ts": [START_MS + 1000 * i for i in range(count)],
        "page": rng.choice(["home", "search", ""], size=count).tolist(),
        "tags": [rng.integers(10, size=n).tolist() for n in rng.integers(4, size=count)],
        "click": (rng.random(count) < np.where(ad % 2, 0.1, 0.6)).astype(int).tolist(),
    }


class Stranger:
    """A DataFrame of a library that is not installed: it only exports Arrow."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class OldStranger:
    """One that has `to_arrow`, and gives texts as views and categories."""

    def __init__(self, table: pa.Table) -> None:
        at = table.column_names.index("page")
        self._table = table.set_column(at, "page", table["page"].combine_chunks().dictionary_encode())

    def to_arrow(self) -> pa.Table:
        return self._table


def of_dicts(table: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def pandas_frame(table: pa.Table) -> Any:
    return table.to_pandas()


def polars_frame(table: pa.Table) -> Any:
    return polars.from_arrow(table)


KINDS = [of_dicts, pa.Table.to_pydict, Stranger, OldStranger, pandas_frame, polars_frame]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_features_of_every_kind_of_rows(kind: Any) -> None:
    table = pa.table(rows(10))
    found = livectr.features(LINEAR, kind(table), tables={"ads": ADS})
    assert found.equals(livectr.features(LINEAR, table, tables={"ads": pa.table(ADS)}))
    assert found.num_rows == 10 and found.column_names == [*LINEAR.plan.sparse, *LINEAR.plan.dense]


def test_features_are_keys_and_numbers() -> None:
    one = [{"user": 7, "ad": 3, "page": "home", "tags": [4, 5], "ads.category": "c3", "price": 1.5}]
    found = livectr.features(LINEAR, one).to_pylist()[0]
    assert found["user"] == [7] and found["tags"] == [4, 5]
    assert found["page"] == hash_strings(["home"]).tolist()
    assert found["price"] == pytest.approx(np.log1p(1.5)) and found["seen"] == 0


def test_features_of_a_row_that_is_in_no_table() -> None:
    given = {"user": [1, 1], "ad": [3, 21], "page": ["a", "a"], "tags": [[], []]}
    found = livectr.features(LINEAR, given, tables={"ads": ADS})
    assert found["price"].to_pylist() == [pytest.approx(np.log1p(1.5)), 0.0]
    assert found["category"].to_pylist() == [hash_strings(["c3"]).tolist(), hash_strings([""]).tolist()]


def test_the_last_row_of_a_key_counts() -> None:
    twice = {"ad": [3, 3], "category": ["old", "new"], "price": [1.0, 2.0]}
    given = {"user": [1], "ad": [3], "page": ["a"], "tags": [[]]}
    found = livectr.features(LINEAR, given, tables={"ads": twice})
    assert found["category"].to_pylist() == [hash_strings(["new"]).tolist()]


def test_features_of_no_rows() -> None:
    none = pa.table(rows(1)).slice(0, 0)
    assert livectr.features(LINEAR, none, tables={"ads": ADS}).num_rows == 0


def test_timestamps_are_milliseconds() -> None:
    timed = Pipeline(log, sparse={"hour": ops.hour(log.ts)}, rank=LR())
    at = datetime(2026, 1, 5, 12, tzinfo=UTC)
    found = livectr.features(timed, [{"ts": at}, {"ts": at}])
    assert found["hour"].to_pylist() == [[12], [12]]


@pytest.mark.parametrize(
    ("ts", "sentence"),
    [
        (None, "row 1: column `ts` is null"),
        (float("nan"), "row 1: column `ts` is null"),
        (10**17, "row 1: ts is 100000000000000000: no time in milliseconds of the years 1 to 9999"),
        (START_MS // 1000, "row 1: time `ts` is in seconds"),
    ],
)
def test_a_time_that_training_refuses_has_no_features(ts: Any, sentence: str) -> None:
    timed = Pipeline(log, sparse={"hour": ops.hour(log.ts)}, rank=LR())
    with pytest.raises(ConfigError, match=sentence):
        livectr.features(timed, [{"ts": START_MS}, {"ts": ts}])


def test_a_time_of_numpy_is_one() -> None:
    row = {name: values[0] for name, values in rows(1).items()}
    times = np.datetime64("2025-11-24T16:00", "m"), dt.datetime(2025, 11, 24, 16)
    numpy, python = ([row | {"ts": ts}] for ts in times)
    assert livectr.features(LINEAR, numpy, tables={"ads": ADS}) == livectr.features(
        LINEAR, python, tables={"ads": ADS}
    )


def test_a_fill_stands_for_a_missing_key() -> None:
    columns = {"user": "int64", "ts": "int64", "click": "int32"}
    known = labelled(Stream("seen", key="user", time="ts", columns=columns, fill={"user": 7}), label="click")
    found = livectr.features(Pipeline(known, sparse={"user": known.user}, rank=LR()), {"user": [None, 3]})
    assert found["user"].to_pylist() == [[7], [3]]


def test_a_column_with_a_fill_may_be_absent(tmp_path: Path) -> None:
    """As in a log and in a request: the fill stands for it."""
    columns = {"user": "int64", "ts": "int64", "page": "string", "click": "int32"}
    seen = Stream("seen", key="user", time="ts", columns=columns, fill={"page": "home"})
    known = labelled(seen, label="click")
    filled = Pipeline(known, sparse={"user": known.user, "page": known.page}, rank=LR())
    given = {name: values for name, values in rows(300).items() if name in ("user", "ts", "click")}
    homes = given | {"page": ["home"] * 300}
    assert livectr.features(filled, given) == livectr.features(filled, homes)
    scores = []
    for number, data in enumerate((given, homes)):
        trained = livectr.train(filled, data, checkpoint=tmp_path / str(number), threads=1)
        assert trained.report.examples_trained == 300
        scores.append(livectr.score(filled, tmp_path / str(number), data).tolist())
    assert scores[0] == scores[1]


def without(name: str) -> dict[str, list[Any]]:
    return {column: values for column, values in rows(3).items() if column != name}


@pytest.mark.parametrize(
    ("given", "tables", "sentence"),
    [
        (7, {}, "rows is a int; give a DataFrame"),
        ({"user": 7}, {}, "column .user. is 7, no list of values; one row is a list of one dict"),
        ("nowhere.parquet", {}, "nowhere.parquet cannot be read as Parquet"),
        (
            [{"user": 1}, {"user": None}, {"user": "x"}],
            {},
            "rows: row 2: column `user` is text .'x'., which follows a whole number; give all values of the",
        ),
        (
            {"user": [[1], [2], ["x"]]},
            {},
            "row 2: column `user` is a list .*which has no place among values of the type list<item: int64>",
        ),
        (pd.DataFrame({"user": [1, "x"]}), {}, "row 1: column `user` is text"),
        ({"user": ["a", "\ud83d"]}, {}, "row 1: column `user` is no UTF-8: half a pair of surrogates"),
        ({"user": [["a", "\ud83d"]]}, {}, "row 0: column `user` is no UTF-8: half a pair of surrogates"),
        ({"user": [object()]}, {}, "row 0: column `user` is of type object .*which is no value of a column"),
        (pd.DataFrame([[1, 2]], columns=["user", "user"]), {}, "user"),
        (without("page"), {"ads": ADS}, "rows have no column impressions.page; their columns are user, ad"),
        (rows(3), {}, "rows have no column ads.category, ads.price"),
        (
            rows(3),
            {"adds": ADS},
            "tables name 'adds', which the pipeline does not look up; its tables are ads",
        ),
        (rows(3), {"ads": {"ad": [1]}}, "table ads has no column category, price; its columns are ad"),
        ({**rows(3), "user": ["a", "b", "c"]}, {"ads": ADS}, "user"),
        ({**rows(3), "user": [1.5, 2.0, 3.0]}, {"ads": ADS}, "row 0: "),
        ({**rows(3), "user": [1, None, 3]}, {"ads": ADS}, "row 1: column `user` is null; say fill="),
    ],
)
def test_features_say_what_is_wrong(given: Any, tables: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        livectr.features(LINEAR, given, tables=tables)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> livectr.Trained:
    folder = tmp_path_factory.mktemp("linear")
    data = {"impressions": rows(640), "ads": ADS}
    return livectr.train(LINEAR, data, checkpoint=folder / "checkpoint", logs=folder / "logs", threads=1)


def test_training_learns_rows_in_their_order(trained: livectr.Trained, tmp_path: Path) -> None:
    assert trained.report.examples_trained == 640 and trained.report.steps == 10
    assert trained.report.auc is not None and trained.report.auc > 0.6
    shuffled = pa.table(rows(640)).take(np.random.default_rng(1).permutation(640))
    pq.write_table(shuffled, tmp_path / "shown.parquet")
    predictions = tmp_path / "predictions"
    again = livectr.train(
        LINEAR,
        {"impressions": tmp_path / "shown.parquet", "ads": Stranger(pa.table(ADS))},
        predictions=predictions,
        checkpoint=tmp_path / "checkpoint",
        threads=1,
    )
    assert again.report.auc == trained.report.auc  # time, not the order of rows, is the order of the log
    assert read_predictions(predictions)["label"].tolist() == rows(640)["click"]


def test_the_log_of_the_data_can_be_learned_by_source(trained: livectr.Trained, tmp_path: Path) -> None:
    logs = Path(trained.checkpoint).parent / "logs"
    again = livectr.train(LINEAR, source=f"file:{logs}", checkpoint=tmp_path, threads=1)
    assert again.report.auc == trained.report.auc


@pytest.mark.parametrize("kernels", [None, "3"])
def test_training_leaves_the_process_as_it_was(
    kernels: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes started later do not inherit the threads of a training, and torch computes as before."""
    monkeypatch.delenv("LIVECTR_THREADS", raising=False)
    if kernels is not None:
        monkeypatch.setenv("LIVECTR_THREADS", kernels)
    before = dict(os.environ)
    threads = torch.get_num_threads()
    data = {"impressions": rows(8), "ads": ADS}
    livectr.train(LINEAR, data, checkpoint=tmp_path, threads=threads + 1)
    assert dict(os.environ) == before and torch.get_num_threads() == threads


def test_a_pod_s_threads_are_not_the_node_s_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIVECTR_THREADS is the request of a pod, to which all cores of its node look like its own."""
    monkeypatch.setenv("LIVECTR_THREADS", "3")
    assert TrainOptions("file:logs").threads_here() == 3
    assert TrainOptions("file:logs", threads=2).threads_here() == 2
    monkeypatch.setenv("LIVECTR_THREADS", "0")
    with pytest.raises(ConfigError, match="LIVECTR_THREADS='0'"):
        TrainOptions("file:logs").threads_here()
    monkeypatch.delenv("LIVECTR_THREADS")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert TrainOptions("file:logs").threads_here() == max(1, len(os.sched_getaffinity(0)) // 2)


def test_a_single_stream_needs_no_names(tmp_path: Path) -> None:
    plain = Stream("clicks", key="user", columns={"user": "int64", "click": "int32"})
    log = labelled(plain, label="click")
    alone = Pipeline(log, sparse={"user": log.user}, rank=LR(), settings={"batch_size": 8, "batch_ramp": 0})
    data = [{"user": i % 3, "click": i % 2} for i in range(32)]
    assert livectr.train(alone, data, checkpoint=tmp_path, threads=1).report.examples_trained == 32


def test_rows_that_are_set_aside_are_no_success(tmp_path: Path) -> None:
    """As the command's exit code 4: what fits was learned, and the letters are there to be read."""
    plain = Stream("clicks", key="user", columns={"user": "int64", "click": "int32"})
    log = labelled(plain, label="click")
    alone = Pipeline(log, sparse={"user": log.user}, rank=LR(), settings={"batch_size": 8, "batch_ramp": 0})
    data = {"user": list(range(32)), "click": [1.0, math.nan] * 16}
    with pytest.raises(ConfigError, match=r"clicks: 16 of 32 rows set aside: .*say max_bad") as raised:
        livectr.train(alone, data, checkpoint=tmp_path / "a", threads=1)
    letters = Path(str(raised.value).rpartition("Dead letters: ")[2])
    assert sum(len(path.read_text().splitlines()) for path in letters.rglob("*.jsonl")) == 16
    few = livectr.train(alone, data, checkpoint=tmp_path / "b", threads=1, max_bad=0.5)
    assert few.report.examples_trained == 16


@pytest.mark.parametrize(
    ("data", "more", "sentence"),
    [
        (
            {"impresions": pandas_frame(pa.table(rows(3))), "ads": ADS},
            {},
            "data has 'impresions'; the pipeline reads",
        ),
        (None, {}, "give the rows as data, or the address of a log as source"),
        ({"impressions": rows(3)}, {}, "data has no ads; the pipeline reads impressions, ads"),
        (rows(3), {}, "the pipeline reads impressions, ads; give data as a dict of these names"),
        ({"impressions": without("click"), "ads": ADS}, {}, "impressions has no column click"),
        ({"impressions": pa.table(rows(1)).slice(0, 0), "ads": ADS}, {}, "impressions has no rows"),
        (
            {"impressions": rows(3), "ads": ADS},
            {"batch_sise": 4},
            "there is no setting 'batch_sise'; did you",
        ),
        ({"impressions": rows(3), "ads": ADS}, {"ranks": 2}, "livectr.train is one rank"),
        (None, {"source": "file:x", "logs": "y"}, "a source is a log already"),
    ],
)
def test_training_says_what_is_wrong(data: Any, more: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        livectr.train(LINEAR, data, **{"checkpoint": tmp_path / "checkpoint", **more})


def test_data_is_not_learned_into_a_checkpoint_of_other_data(trained: livectr.Trained) -> None:
    with pytest.raises(ConfigError, match="holds a checkpoint of other data; name an empty folder"):
        livectr.train(LINEAR, {"impressions": rows(3), "ads": ADS}, checkpoint=trained.checkpoint)


def test_embeddings_and_scores_of_a_linear_model(trained: livectr.Trained) -> None:
    """Logit of LR: a bias, the scaled weights of each field's keys, and the weighted dense numbers."""
    tables = {name: livectr.read_embeddings(trained.checkpoint, name) for name in LINEAR.plan.sparse}
    assert tables["user"]["key"].to_pylist() == sorted(tables["user"]["key"].to_pylist())
    assert tables["user"].num_rows == trained.report.table_rows["user"]
    (part,) = tables["user"].column_names[1:]
    weights = {
        name: dict(zip(t["key"].to_pylist(), (v[0] for v in t[part].to_pylist()), strict=True))
        for name, t in tables.items()
    }
    shown = rows(50, seed=9)
    keys = livectr.features(LINEAR, shown, tables={"ads": ADS}, checkpoint=trained.checkpoint).to_pylist()
    wide = np.array([[sum(weights[n].get(k, 0.0) for k in row[n]) for n in weights] for row in keys])
    pctr = livectr.score(LINEAR, trained.checkpoint, shown, tables={"ads": ADS})
    logit = np.log(pctr / (1 - pctr))
    dense = np.array([[1.0, row["price"], row["seen"]] for row in keys])
    terms = np.hstack([wide, dense])
    assert len(terms) > 2 * terms.shape[1]
    solution, _, _, _ = np.linalg.lstsq(terms, logit, rcond=None)
    np.testing.assert_allclose(terms @ solution, logit, atol=1e-5)
    assert (np.abs(solution[: wide.shape[1]] - 1) < 1).all()  # scales begin at 1
    assert dense[:, 2].max() > 0  # running statistics are those of the checkpoint


def content(folder: Path) -> Path:
    store = ContentStore.ensure(folder, width=6, encoder="test")
    ids = np.arange(18)  # 18 to 21 have no picture
    store.append(ids, np.random.default_rng(3).normal(size=(18, 6)).astype(np.float32))
    return folder


PICTURES = pipeline(
    DICM(ad_image="ad", behavior_images="tags", ad="ad", dim=4, hidden=(8,), image_dim=3, target=("ad",),
         behaviors=("tags",)),
    content={"pictures": Content(("ad", "tags"), EmbeddingModel(width=6, hidden=(5,), out=3))},
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "values"),
    few([("deepfm", "fp32"), ("deepfm", "bf16"), ("dicm", "fp32")], ("deepfm", "bf16"), ("dicm", "fp32")),
    ids=str,
)
def test_scores_are_those_that_the_trainer_gives_next(
    model: str, values: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model after 640 rows scores the next batch before it is learned (test-then-train).

    DICM is calibrated.
    """
    monkeypatch.setattr(step_settings, "ONLINE", 0)
    learned = replace(SMALL if model == "deepfm" else PICTURES, row_values=values)
    if model == "dicm":
        learned = replace(learned, calibration=Calibration("ad", window_clicks=50))
    folders = {"pictures": content(tmp_path / "pictures")} if model == "dicm" else {}
    settings: dict[str, Any] = {"threads": 1, "seed": 5}
    if folders:
        settings["content"] = f"pictures={folders['pictures']}"
    table, predictions = pa.table(rows(704)), tmp_path / "predictions"
    before = livectr.train(
        learned, {"impressions": table.slice(0, 640), "ads": ADS}, checkpoint=tmp_path / "a", **settings
    )
    livectr.train(
        learned,
        {"impressions": table, "ads": ADS},
        checkpoint=tmp_path / "b",
        predictions=predictions,
        **settings,
    )
    reported = read_predictions(predictions)["calibrated" if model == "dicm" else "rank"][640:].astype(
        np.float64
    )
    pctr = livectr.score(learned, before.checkpoint, table.slice(640), tables={"ads": ADS}, content=folders)
    np.testing.assert_allclose(pctr, 1 / (1 + np.exp(-reported)), rtol=0, atol=1e-6)
    assert np.ptp(pctr) > 0.01


def test_scoring_says_what_is_wrong(trained: livectr.Trained, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no checkpoint; name the folder that training wrote"):
        livectr.score(LINEAR, tmp_path, rows(1), tables={"ads": ADS})
    with pytest.raises(livectr.UserError, match="belongs to another pipeline, which differs in rank model"):
        livectr.score(SMALL, trained.checkpoint, rows(1), tables={"ads": ADS})
    with pytest.raises(ConfigError, match="has no table 'usser'; its tables are ad, category"):
        livectr.read_embeddings(trained.checkpoint, "usser")
    with pytest.raises(ConfigError, match="content names 'images', but the content of the pipeline is none"):
        livectr.score(LINEAR, trained.checkpoint, rows(1), tables={"ads": ADS}, content={"images": tmp_path})
