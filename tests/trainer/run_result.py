"""Final state of a run, and its comparison with that of another run."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from livectr.ingest.pipeline import Pipeline
from livectr.kernels.table.table import DynamicTable
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.delayed.heads import PREFIX
from livectr.trainer.delayed.labels import heads_of
from livectr.trainer.des.step import DesStep
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.quality.seen import ItemCounts
from tests.trainer.ad_logs import ad_pipeline


class Result:
    """Final state of a finished run, from its checkpoint. `pipeline`: None is `ad_pipeline`."""

    def __init__(self, root: Path, pipeline: Pipeline | None = None) -> None:
        manifest = newest_manifest(root)
        assert manifest is not None
        restored = Restored(root, manifest)
        step = DesStep(pipeline or ad_pipeline(), seed=1)
        restored.load_tables(step.tables)
        tables = dict(step.tables)
        if any(name.startswith(PREFIX) for name in manifest.table_rows):
            heads = heads_of(pipeline or ad_pipeline(delayed="es_dfm"), step)
            assert heads is not None
            restored.load_tables(heads.learner.tables)
            tables |= heads.learner.tables
        self.step = manifest.step
        self.tables = {name: by_key(table) for name, table in tables.items()}
        self.dense = {name: tensor.numpy() for name, tensor in restored.dense().items()}
        # By operator: the digest behind it knows the topics' names.
        statistics = restored.statistics().items()
        self.statistics = {name.split("-")[0]: array.tobytes() for name, array in statistics}
        self.items = {name: array.tobytes() for name, array in restored.state(ItemCounts.kind).items()}
        self.predictions = read_predictions(root / "predictions")
        sources = restored.source()
        self.positions = {p: dict(state.values) for p, state in sources.partitions.items()}


def by_key(table: DynamicTable) -> tuple[np.ndarray, np.ndarray]:
    keys, rows = table.export()
    order = np.argsort(keys)
    return keys[order], rows[order]


def assert_same(
    got: Result, want: Result, *, statistics: int = 3, items: Collection[str] = ("items", "counts")
) -> None:
    """Bit for bit; the pipeline has so many statistics, and items with these counts."""
    assert got.step == want.step
    assert got.predictions.tobytes() == want.predictions.tobytes()
    assert got.items == want.items and want.items.keys() == set(items)
    for name, (keys, rows) in want.tables.items():
        assert (got.tables[name][0] == keys).all(), name
        assert got.tables[name][1].tobytes() == rows.tobytes(), name
    assert got.statistics == want.statistics and len(want.statistics) == statistics
    assert got.dense.keys() == want.dense.keys()
    for name, tensor in want.dense.items():
        assert got.dense[name].tobytes() == tensor.tobytes(), name


def assert_same_examples(got: Result, want: Result) -> None:
    """The same examples in the same order and steps; so keys and statistics are equal too."""
    assert got.step == want.step
    assert got.statistics == want.statistics and len(want.statistics) == 3
    for column in ("instance", "user", "item", "time_ms", "seen", "label"):
        assert (got.predictions[column] == want.predictions[column]).all()
    for name, (keys, _) in want.tables.items():
        assert (got.tables[name][0] == keys).all(), name


def assert_close(got: Result, want: Result) -> None:
    """The same examples, keys and statistics; values up to the order in which floats are added.

    It is for logs that are the same in every run of the test. A rounding can move an example over the kink of
    a relu, and then networks part: of runs in an order that the clock decides, a few would.
    """
    assert_same_examples(got, want)
    # fp32 sums over ranks are added in another order; 100 steps carry the difference on
    np.testing.assert_allclose(got.predictions["rank"], want.predictions["rank"], atol=2e-3)
    for name, (_, rows) in want.tables.items():
        np.testing.assert_allclose(got.tables[name][1], rows, atol=2e-2, rtol=2e-2)
