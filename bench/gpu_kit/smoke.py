"""First look: OUT/machine.json, a table and an extraction, which equal the host's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from bench.features import display_ads, rows_of
from bench.gpu_kit import mode
from bench.gpu_kit.card import card
from bench.gpu_kit.events import OUT
from bench.gpu_kit.kernels import watch
from bench.machine import commit, hardware
from livectr.ingest.extract.device_extractor import DeviceExtractor
from livectr.ingest.extract.extractor import Extractor
from livectr.kernels.gpu_table.device_table import DeviceTable
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable


def main() -> None:
    """Look, and say what was seen."""
    found = {"commit": commit(), "hardware": hardware(), "card": card(), "dry": mode.dry()}
    Path(os.environ[OUT], "machine.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2), flush=True)
    watch()
    a_table()
    print("a table's kernels run and give the host's bits", flush=True)
    an_extraction()
    print("an extraction gives the host's keys", flush=True)


def a_table(keys: int = 2_000) -> None:
    """Insert, update and read rows."""
    layout = RowLayout((Segment("v", 4, AdaGrad(), 0.1),))
    device = DeviceTable(layout, ["t"], seed=1, target=mode.target())
    host = DynamicTable(layout, name="t", seed=1)
    rng = np.random.default_rng(1)
    for _ in range(3):
        some = rng.integers(0, keys, keys)
        grads = rng.normal(size=(keys, 4)).astype(np.float32)
        if device.update(some, grads) != host.update(some, grads):
            raise AssertionError("device and host updated another number of rows")
    for got, expected in zip(device.export(), host.export(), strict=True):
        np.testing.assert_array_equal(got, expected)


def an_extraction(rows: int = 1_000) -> None:
    """Extract the features of a display-ads view."""
    pipeline = display_ads()
    batch = rows_of(pipeline, rows)
    got, expected = (
        DeviceExtractor(pipeline.plan, mode.target())(batch),
        Extractor(pipeline.plan, engine="calls")(batch),
    )
    np.testing.assert_array_equal(got.keys, expected.keys)
    np.testing.assert_array_equal(got.offsets, expected.offsets)
    np.testing.assert_allclose(got.dense, expected.dense, rtol=1e-6, atol=0)  # log1p may differ in a bit


if __name__ == "__main__":
    main()
