"""docs/add-a-feature.md says what a changed pipeline continues with; here each line of its table is tried."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from livectr.ingest.language.policies import TablePolicy
from livectr.ingest.pipeline import Pipeline
from livectr.system.errors import MismatchError
from livectr.system.heap import loading

with loading():
    import livectr
    from livectr import Field, Stream, labelled, ops
    from livectr.models import LR, DeepFM

PAGE = Path(__file__).parent.parent.parent / "docs" / "add-a-feature.md"
COLUMNS = {"user": "int64", "ad": "int64", "seen": "int64", "price": "float64", "click": "int32"}
ROWS = [
    {"user": i % 9, "ad": i % 7, "seen": i % 7, "price": float(i % 5), "click": int(i % 3 == 0)}
    for i in range(64)
]
Features = dict[str, Any]


def pipeline(
    change: Callable[[Any, Features, Features], None] | None = None, dim: int = 4, **others: Any
) -> Pipeline:
    """Pipeline of two fields and a dense feature, changed."""
    log = labelled(Stream("shown", key="user", columns=COLUMNS), label="click")
    sparse: Features = {"user": log.user, "ad": log.ad}
    dense: Features = {"price": log.price}
    if change is not None:
        change(log, sparse, dense)
    return Pipeline(log, sparse=sparse, dense=dense, rank=DeepFM(dim=dim, hidden=(4,)), **others)


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


def another_name(log: Any, sparse: Features, dense: Features) -> None:
    sparse["who"] = Field(sparse.pop("user"), was="user")


CHANGES: Mapping[str, tuple[Pipeline, str]] = {
    "a new sparse feature": (pipeline(a_field), "new: user_x_ad"),
    "a new sparse feature that shares the table of another one": (pipeline(a_shared_table), "new: seen"),
    "a new dense feature": (pipeline(a_number), "new: log_price"),
    "a feature less": (pipeline(a_field_less), "dropped: user"),
    "another name for a sparse feature": (pipeline(another_name), "16 rows of 2 tables"),
    "another expression under the same name": (pipeline(another_expression), "16 rows of 2 tables"),
    "a new model beside the others": (pipeline(challengers={"lr": LR()}), "new: lr model"),
    "another width, model or optimiser": (pipeline(dim=8), "changed, so new: rank.first.weight/ad"),
    "another policy of a table": (
        pipeline(policies=TablePolicy(max_rows=20, evict="lru")),
        "16 rows of 2 tables",
    ),
}
"""Change → pipeline, and what the trainer says."""
ELSEWHERE = {
    "a new `recent()` history, other look-ups",
    "other streams, keys, window, wait or seed",
}
"""Lines that tests/trainer/test_carry.py tries."""


def promised() -> set[str]:
    """Changes that the page's table has."""
    page = PAGE.read_text()
    table = page[page.index("## What is carried over") : page.index("## What cannot be done yet")]
    rows: list[str] = re.findall(r"^\| ([^|]*?)(?: \(`[^|]*)? \| [^|]* \|$", table, re.M)
    return {*rows} - {"change"}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint of the pipeline without a change."""
    folder = tmp_path_factory.mktemp("before") / "checkpoint"
    livectr.train(pipeline(), ROWS, checkpoint=folder, batch_size=32, threads=1)
    return folder


def test_the_page_has_a_line_for_each_change() -> None:
    assert promised() == {*CHANGES} | ELSEWHERE


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_is_continued_as_the_page_says(
    change: str, before: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changed, says = CHANGES[change]
    with caplog.at_level("INFO"):
        livectr.train(
            changed,
            ROWS,
            checkpoint=tmp_path / "new",
            warm_start=str(before),
            warm_parts="run",
            batch_size=32,
            threads=1,
        )
    assert says in caplog.text, caplog.text


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_pipeline_is_refused_the_checkpoint(change: str, before: Path) -> None:
    files = {path: path.read_bytes() for path in before.rglob("*") if path.is_file()}
    with pytest.raises(
        (MismatchError, livectr.ConfigError), match=r"belongs to another pipeline|holds a checkpoint"
    ):
        livectr.train(CHANGES[change][0], ROWS, checkpoint=before, batch_size=32, threads=1)
    assert files == {path: path.read_bytes() for path in before.rglob("*") if path.is_file()}
