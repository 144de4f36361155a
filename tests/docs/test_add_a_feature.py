"""docs/add-a-feature.md says what a warm start carries over; here each line of its table is tried."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from livectr.ingest.pipeline import Pipeline
from livectr.system.errors import MismatchError
from livectr.system.heap import loading

with loading():
    import livectr
    from livectr import Field, Stream, labelled, ops
    from livectr.models import DeepFM

PAGE = Path(__file__).parent.parent.parent / "docs" / "add-a-feature.md"
PARTS = ("network", "embeddings")
COLUMNS = {"user": "int64", "ad": "int64", "seen": "int64", "price": "float64", "click": "int32"}
ROWS = [
    {"user": i % 9, "ad": i % 7, "seen": i % 7, "price": float(i % 5), "click": int(i % 3 == 0)}
    for i in range(64)
]
Features = dict[str, Any]


def pipeline(change: Callable[[Any, Features, Features], None] | None = None, dim: int = 4) -> Pipeline:
    """Pipeline of two fields and a dense feature, changed."""
    log = labelled(Stream("shown", key="user", columns=COLUMNS), label="click")
    sparse: Features = {"user": log.user, "ad": log.ad}
    dense: Features = {"price": log.price}
    if change is not None:
        change(log, sparse, dense)
    return Pipeline(log, sparse=sparse, dense=dense, rank=DeepFM(dim=dim, hidden=(4,)))


def a_field(log: Any, sparse: Features, dense: Features) -> None:
    sparse["user_x_ad"] = ops.cross(log.user, log.ad)


def a_shared_table(log: Any, sparse: Features, dense: Features) -> None:
    sparse["seen"] = Field(log.seen, table="ad")


def a_number(log: Any, sparse: Features, dense: Features) -> None:
    dense["log_price"] = ops.log1p(log.price)


def a_field_less(log: Any, sparse: Features, dense: Features) -> None:
    del sparse["user"]


def another_expression(log: Any, sparse: Features, dense: Features) -> None:
    sparse["ad"] = log.ad + 1


CHANGES: Mapping[str, Pipeline] = {
    "a new sparse feature": pipeline(a_field),
    "a new sparse feature that shares the table of another one": pipeline(a_shared_table),
    "a new dense feature": pipeline(a_number),
    "a feature less": pipeline(a_field_less),
    "another expression under the same name": pipeline(another_expression),
    "another width, model or optimiser": pipeline(dim=8),
}


def promised() -> dict[str, dict[str, str]]:
    """Change → part → "carried over" or "refused", as the page has it."""
    rows = re.findall(
        r"^\| (an?\w* [^|]*?)(?: \(`[^|]*)? \| (\w+)[^|]* \| (\w+)[^|]* \|$", PAGE.read_text(), re.M
    )
    return {change: dict(zip(PARTS, found, strict=True)) for change, *found in rows}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint of the pipeline without a change."""
    folder = tmp_path_factory.mktemp("before") / "checkpoint"
    livectr.train(pipeline(), ROWS, checkpoint=folder, batch_size=32, threads=1)
    return folder


def test_the_page_has_a_line_for_each_change() -> None:
    assert set(promised()) == set(CHANGES)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_warm_start_carries_over_what_the_page_says(change: str, part: str, before: Path) -> None:
    options: dict[str, Any] = {"warm_start": str(before), "warm_parts": part, "batch_size": 32, "threads": 1}
    if promised()[change][part] == "refused":
        with pytest.raises(MismatchError, match=r"leave (their part|embeddings) out of warm_parts"):
            livectr.train(CHANGES[change], ROWS, **options)
    else:
        assert livectr.train(CHANGES[change], ROWS, **options).report.steps == 2


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_pipeline_is_refused_the_checkpoint(change: str, before: Path) -> None:
    files = {path: path.read_bytes() for path in before.rglob("*") if path.is_file()}
    with pytest.raises(
        (MismatchError, livectr.ConfigError), match=r"belongs to another pipeline|holds a checkpoint"
    ):
        livectr.train(CHANGES[change], ROWS, checkpoint=before, batch_size=32, threads=1)
    assert files == {path: path.read_bytes() for path in before.rglob("*") if path.is_file()}
