"""Extraction on the host or a device by the time of a batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from livectr.ingest.extract import device_extractor
from livectr.ingest.extract.device_extractor import DeviceExtractor, compiler
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.measured_extractor import MeasuredExtractor
from livectr.ingest.language.expr import ColumnRef, column
from livectr.ingest.operators import log1p
from livectr.ingest.plan.dag import FeaturePlan
from livectr.kernels.runtime.device import EmulatedDevice

PLAN = FeaturePlan(
    {"ad": column(ColumnRef("t", "ad"), "int64")},
    {"price": log1p(column(ColumnRef("t", "price"), "float64"))},
)
EMULATED = partial(DeviceExtractor, target=EmulatedDevice, rows=100)


def batch(rows: int) -> pa.RecordBatch:
    """Its first price has no logarithm."""
    prices = np.arange(rows) - 2.0
    return pa.record_batch({"t.ad": np.arange(rows), "t.price": prices})


def measured(times: Iterator[float]) -> MeasuredExtractor:
    return MeasuredExtractor(PLAN, EMULATED, rows=100, clock=lambda: next(times))


@pytest.mark.parametrize(("host_ms", "device_ms", "place"), [(3.0, 2.0, "device"), (2.0, 3.0, "host")])
def test_a_batch_is_timed_on_both_and_the_quicker_place_stays(
    host_ms: float, device_ms: float, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    times = iter([1.0, 1.0 + host_ms / 1e3, 5.0, 5.0 + device_ms / 1e3])
    extract, host = measured(times), Extractor(PLAN)
    with caplog.at_level(logging.INFO):
        for rows in (4, 49, 50, 100, 3):
            got, expected = extract(batch(rows)), host(batch(rows))
            np.testing.assert_array_equal(got.keys, expected.keys)
            np.testing.assert_array_equal(got.dense.view(np.uint32), expected.dense.view(np.uint32))
            assert extract.place == ("undecided" if rows in (4, 49) else place)
    assert extract.replaced == host.replaced > 0
    assert list(times) == []
    told = [line for line in caplog.messages if line.startswith("features of")]
    assert told == [
        f"features of 50 rows took {device_ms:.2f} ms on the GPU and {host_ms:.2f} ms on the CPU: "
        f"the {'GPU' if place == 'device' else 'CPU'} computes them"
    ]


def test_an_empty_batch_decides_nothing() -> None:
    extract = MeasuredExtractor(PLAN, EMULATED, rows=0)
    assert extract(batch(0)).rows == 0 and extract.place == "undecided"
    assert extract(batch(1)).rows == 1 and extract.place != "undecided"


def test_without_a_gpu_the_host_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiler("auto", budget_bytes=None, rows=100) is Extractor
    monkeypatch.setattr(device_extractor, "has_gpu", lambda: True)
    monkeypatch.setattr(device_extractor, "require_gpu", lambda: None)
    monkeypatch.setattr(device_extractor, "DeviceExtractor", lambda plan, **options: EMULATED(plan))
    assert isinstance(compiler("auto", budget_bytes=None, rows=100)(PLAN), MeasuredExtractor)
