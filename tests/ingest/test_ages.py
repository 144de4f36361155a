"""Ages of a log: as of each impression, of the last event that was known then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from livectr import Pipeline, Stream, ages, labelled
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.language.delays import Delayed
from livectr.ingest.operators.ages import Ages
from livectr.models import LR
from livectr.system.errors import ConfigError
from tests.ingest.counted_log import SHOWN, aged_pipeline_of, log_of, log_of_orders, read, write_log


def dense(pipeline: Pipeline, batches: Sequence[Examples]) -> np.ndarray:
    """Ages of both declarations: impression and click of each, float32[B, 4]."""
    extract = Extractor(pipeline.plan)
    return np.concatenate([extract(batch.columns).dense for batch in batches])[:, 1:]


def expected(of: Ages, keys: Sequence[object], batches: Sequence[Examples]) -> np.ndarray:
    """Ages by a loop over the finished log."""
    order, ts, label, late = (
        np.concatenate([getattr(batch, name) for batch in batches])
        for name in ("order", "time_ms", "label", "late")
    )
    same = np.array([[mine == other for other in keys] for mine in keys])
    counts, clicked = label < 2, late | ((label > 0) & (label < 2))
    rows = []
    for i, time in enumerate(ts):
        end = time // of.aged.grain_ms * of.aged.grain_ms
        row = []
        for kind in (~late, clicked):
            seen = ts[same[i] & counts & kind & (order < end)]
            age = time - seen.max(initial=0)
            row.append(age / 1000 if age <= of.aged.within_ms else -1.0)
        rows.append(row)
    return np.array(rows, np.float32)


@pytest.mark.parametrize("delayed", ["wait", "fnw", "vanilla", None])
def test_ages_are_those_of_a_loop_over_what_was_known(tmp_path: Path, delayed: Delayed | None) -> None:
    """Whatever the batches are; a label that is not known at an impression's time is of no event."""
    log = labelled(SHOWN, label="clicked") if delayed is None else log_of(delayed)
    pipeline, by_ad, by_both = aged_pipeline_of(log)
    url = write_log(tmp_path)
    batches = read(pipeline, url, [7, 1, 64])
    found = dense(pipeline, batches)
    both = Pipeline(log, sparse={"ad": log.ad, "slot": log.slot}, rank=LR())
    columns = [batch.columns for batch in read(both, url, [50])]
    ads, slots = ([v for c in columns for v in c.column(f"shown.{n}").to_pylist()] for n in ("ad", "slot"))
    assert (found[:, :2] == expected(by_ad, ads, batches)).all()
    assert (found[:, 2:] == expected(by_both, list(zip(ads, slots, strict=True)), batches)).all()
    assert (found == -1).any(axis=0).all() and (found > 0).any(axis=0).all()
    assert (found[:, 3] == -1).sum() > (found[:, 1] == -1).sum(), "some are forgotten"
    assert (dense(pipeline, read(pipeline, url, [1000])) == found).all()


def test_each_label_is_learned_of_the_ages_of_its_impression(tmp_path: Path) -> None:
    pipeline, *_ = aged_pipeline_of(log_of_orders())
    batches = read(pipeline, write_log(tmp_path), [7, 64])
    found, instance = dense(pipeline, batches), np.concatenate([batch.instance for batch in batches])
    counted = np.concatenate([~batch.final for batch in batches])
    assert counted.sum() == 400 and len(found) > 4 * 400
    of_click = dict(zip(instance[counted].tolist(), found[counted], strict=True))
    assert (found == np.stack([of_click[i] for i in instance.tolist()])).all()


def test_features_of_ages_tell_never_apart() -> None:
    made = ages(log_of(), by="ad").features("ad")
    assert list(made) == ["ad_impression_age", "ad_impression_never", "ad_click_age", "ad_click_never"]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ages(log_of(), by="aid"), "shown has no column 'aid'"),
        (lambda: ages(log_of(), by=()), "ages: by must name at least one column"),
        (lambda: ages(log_of(), by="ad", within="8s"), "within=8s is not longer than the 8 s"),
        (lambda: ages(labelled(Stream("s", key="u", columns={"u": "int64", "l": "int64"}), label="l"),
                      by="u"),
         "ages: s has no time"),
        (lambda: ages(log_of(), by="ad").seconds(cast(Any, "order")),
         "no kind 'order'; the kinds are impression, click"),
        (lambda: Pipeline(labelled(SHOWN, label="clicked"), sparse={"slot": SHOWN.slot},
                          dense=ages(log_of(), by="ad").features("ad"), rank=LR()),
         r"ages by ad are of another log; call ages\(log"),
    ],
)  # fmt: skip
def test_wrong_ages_are_refused_by_a_sentence(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make()
