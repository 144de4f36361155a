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

FeaturesAt = Callable[[Statistics], SharedFeatures]
"""Features of a request, given the running statistics of a version."""


class RequestFeatures:
    """Extracts the features of a plan from requests; shared columns are extracted once."""

    def __init__(self, plan: FeaturePlan, limits: RequestLimits = DEFAULT) -> None:
        self._plan = plan
        self._limits = limits
        self._extractor = Extractor(plan)

    def extract(self, request: EnrichedRequest, row_name: Callable[[int], str]) -> FeaturesAt:
        """Extract a request's features; a plan with running statistics waits for those of a version.

        A plan without statistics is extracted at once, before a version is locked.

        Args:
            row_name: name in the request of the row with a given index, for error messages.

        Returns:
            Function of a version's statistics, which may belong to a plan that contains this plan.

        Raises:
            RequestError: from both calls; a row cannot be extracted, or the rows have too many values.
        """
        if self._plan.statistics:
            return lambda statistics: self._extract(request, statistics.of(self._plan), row_name)
        features = self._extract(request, None, row_name)
        return lambda _: features

    def _extract(
        self, request: EnrichedRequest, statistics: Statistics | None, row_name: Callable[[int], str]
    ) -> SharedFeatures:
        try:
            features = self._extractor.shared(
                request.shared, request.own, request.rows, statistics, self._limits.features
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
