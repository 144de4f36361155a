"""Features of a request, by the trainer's operators and with the running statistics of a version."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ingest.features import Features
from ingest.plan import FeaturePlan
from ingest.statistics import Statistics
from serving.errors import RequestError


class RequestFeatures:
    """Extracts the features of a plan from requests."""

    def __init__(self, plan: FeaturePlan) -> None:
        self._plan = plan
        self._extract = plan.compile()

    def of(self, columns: pa.RecordBatch, row: Callable[[int], str]) -> Callable[[Statistics], Features]:
        """The features of a batch, given a version's statistics (of this plan, or of one that holds it).
        A plan without statistics is computed at once, while no version is held.

        row: the name of a row in the request. Both calls raise RequestError when one cannot be extracted.
        """
        if self._plan.statistics:
            return lambda statistics: _whole(self._extract(columns, statistics.of(self._plan)), row)
        features = _whole(self._extract(columns), row)
        return lambda _: features


def _whole(features: Features, row: Callable[[int], str]) -> Features:
    if features.failed.any():
        first = row(int(np.argmax(features.failed)))
        raise RequestError(first, "cannot be scored: one of its features has too many values")
    return features
