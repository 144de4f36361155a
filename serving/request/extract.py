"""Features of a request, by the trainer's operators and with the running statistics of a version."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.sharing import SharedFeatures, TooLargeError
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.plan.dag import FeaturePlan
from livectr.serving.errors import RequestError
from livectr.serving.limits import DEFAULT, RequestLimits
from livectr.serving.request.enrich import Columns


class RequestFeatures:
    """Extracts the features of a plan from requests, what candidates share once."""

    def __init__(self, plan: FeaturePlan, limits: RequestLimits = DEFAULT) -> None:
        self._plan = plan
        self._limits = limits
        self._extractor = Extractor(plan)

    def of(self, columns: Columns, row: Callable[[int], str]) -> Callable[[Statistics], SharedFeatures]:
        """The features of a request's columns, given a version's statistics (of this plan, or of one that
        holds it). A plan without statistics is computed at once, while no version is held.

        row: the name of a row in the request. Both calls raise RequestError when one cannot be extracted, or
        when all together have too many values.
        """
        if self._plan.statistics:
            return lambda statistics: self._extract(columns, statistics.of(self._plan), row)
        features = self._extract(columns, None, row)
        return lambda _: features

    def _extract(
        self, columns: Columns, statistics: Statistics | None, row: Callable[[int], str]
    ) -> SharedFeatures:
        try:
            found = self._extractor.shared(
                columns.shared, columns.own, columns.rows, statistics, self._limits.features
            )
        except TooLargeError as error:
            raise RequestError(
                "candidates", f"{error}; send fewer or shorter ones (max_values is {self._limits.values})"
            ) from error
        for part, name in ((found.shared, lambda _: "context"), (found.own, row)):
            if part.failed.any():
                first = name(int(np.argmax(part.failed)))
                raise RequestError(first, "cannot be scored: one of its features has too many values")
        return found
