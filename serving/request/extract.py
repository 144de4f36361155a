"""Stage 3, extract: features by the trainer's operators, with the running statistics of a version."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.sharing import SharedFeatures, TooLargeError
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.plan.dag import FeaturePlan
from livectr.serving.errors import RequestError
from livectr.serving.limits import DEFAULT, RequestLimits
from livectr.serving.request.enrich import EnrichedRequest


class RequestFeatures:
    """Extracts the features of a plan from requests; shared columns are extracted once."""

    def __init__(self, plan: FeaturePlan, limits: RequestLimits = DEFAULT) -> None:
        self._plan = plan
        self._limits = limits
        self._extractor = Extractor(plan)

    def extract(
        self, request: EnrichedRequest, statistics: Statistics, row_name: Callable[[int], str]
    ) -> SharedFeatures:
        """Extract a request's features.

        Args:
            request: columns with look-up rows and histories.
            statistics: of the version that answers, of a plan that contains this plan.
            row_name: name in the request of the row with a given index, for error messages.

        Raises:
            RequestError: a row cannot be extracted, or the rows have too many values.
        """
        own = statistics.of(self._plan) if self._plan.statistics else None
        try:
            features = self._extractor.shared(
                request.shared, request.own, request.rows, own, self._limits.features
            )
        except TooLargeError as error:
            raise RequestError(
                "candidates", f"{error}; send fewer or shorter ones (max_values is {self._limits.values})"
            ) from error
        for part, name in ((features.shared, lambda _: "context"), (features.own, row_name)):
            if part.failed.any():
                first = name(int(np.argmax(part.failed)))
                raise RequestError(first, "cannot be scored: one of its features has too many values")
        return features
