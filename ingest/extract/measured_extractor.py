"""Extraction where a batch took less time: on the host or on a device, which compute the same bits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pyarrow as pa

from livectr.ingest.extract.device_features import DeviceFeatures
from livectr.ingest.extract.extractor import Extract, Extractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features

LOG = logging.getLogger(__name__)


class MeasuredExtractor:
    """Computes a plan's features on the host, until a batch is large enough to be timed on both. Thread-safe.

    That batch waits for the host's fused plan. It is computed on both, so that kernels are loaded and memory
    has grown, and then once more by the clock.

    Args:
        plan: whose features are computed.
        on_device: makes the device's extractor.
        rows: size of a whole batch; half of it is large enough.
        clock: seconds.
    """

    def __init__(
        self,
        plan: FeaturePlan,
        on_device: Callable[[FeaturePlan], Extract],
        *,
        rows: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.plan = plan
        self._host, self._device = Extractor(plan), on_device(plan)
        self._rows, self._clock = rows, clock
        self._chosen: Extract | None = None
        self._measuring = threading.Lock()
        self._extra_replaced = 0  # of runs that only measured

    @property
    def replaced(self) -> int:
        """Count of dense numbers that were not finite and became 0."""
        return self._host.replaced + self._device.replaced - self._extra_replaced

    @property
    def reruns(self) -> int:
        """Count of reruns of both extractors, for want of memory."""
        return self._host.reruns + self._device.reruns

    @property
    def place(self) -> str:
        """Place where batches are computed: "host" or "device"; "undecided" before a batch was timed."""
        if self._chosen is None:
            return "undecided"
        return "host" if self._chosen is self._host else "device"

    def __call__(self, batch: pa.RecordBatch, statistics: Statistics | None = None) -> Features:
        """Compute the features of a batch, as `Extractor.__call__`."""
        return self.resident(batch, statistics).host()

    def resident(
        self, batch: pa.RecordBatch, statistics: Statistics | None = None
    ) -> Features | DeviceFeatures:
        """Compute the features of a batch, and leave them where they were computed."""
        enough = 2 * batch.num_rows >= self._rows and batch.num_rows > 0
        if self._chosen is None and enough and self._measuring.acquire(blocking=False):
            try:
                if self._chosen is None:
                    return self._measured(batch, statistics)
            finally:
                self._measuring.release()
        return (self._chosen or self._host).resident(batch, statistics)

    def _measured(self, batch: pa.RecordBatch, statistics: Statistics | None) -> Features:
        """Time both, choose, and return the batch's features."""
        self._host.wait()
        before = self.replaced
        features = self._host(batch, statistics)
        once = self.replaced - before
        self._device.resident(batch, statistics)
        host_s, device_s = (self._seconds(each, batch, statistics) for each in (self._host, self._device))
        self._extra_replaced += self.replaced - before - once
        self._chosen = self._device if device_s < host_s else self._host
        LOG.info(
            "features of %s rows took %.2f ms on the GPU and %.2f ms on the CPU: the %s computes them",
            f"{batch.num_rows:,}",
            1e3 * device_s,
            1e3 * host_s,
            "GPU" if self._chosen is self._device else "CPU",
        )
        return features

    def _seconds(self, extract: Extract, batch: pa.RecordBatch, statistics: Statistics | None) -> float:
        began = self._clock()
        extract.resident(batch, statistics)
        return self._clock() - began
