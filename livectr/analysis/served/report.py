"""Results of `livectr evaluate --served`, and of its `--off-policy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from livectr.analysis.served.estimators import Estimate
from livectr.analysis.served.skew import FeatureSkew
from livectr.trainer.quality.metrics import Quality


@dataclass(frozen=True)
class Counts:
    """Counts of a join.

    Args:
        requests: served requests in the log.
        repeated: records of a request id that was there before; the last counts.
        broken: lines of the served log that are no record.
        impressions: of the log, served or not.
        unusable: rows of the log that could not be used.
        joined: impressions of a served candidate.
        other_items: impressions of a served request whose item was no candidate.
        other_plans: joined impressions that a server with other features scored: they have no skew.
    """

    requests: int
    repeated: int
    broken: int
    impressions: int
    unusable: int
    joined: int = 0
    other_items: int = 0
    other_plans: int = 0


@dataclass(frozen=True)
class VersionQuality:
    """Quality of the versions from `first` to `last`; of "all" for the whole log, or of a side."""

    of: str
    first: int
    last: int
    quality: Quality

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return dict(of=self.of, first=self.first, last=self.last) | self.quality.as_dict()


@dataclass(frozen=True)
class ServedReport:
    """Result of an evaluation.

    Args:
        sides: quality of the stable side and of the canary; empty: one side answered all.
        versions: of all, then of each version; of the canary's, `of` begins with "canary".
    """

    counts: Counts
    sides: Sequence[VersionQuality]
    versions: Sequence[VersionQuality]
    skew: Sequence[FeatureSkew]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        features = [
            asdict(row) | {"share": None if row.share != row.share else row.share} for row in self.skew
        ]
        versions = [row.as_dict() for row in self.versions]
        sides = [row.as_dict() for row in self.sides]
        return {"counts": asdict(self.counts), "sides": sides, "versions": versions, "skew": features}


@dataclass(frozen=True)
class OffPolicyReport:
    """Result of an off-policy evaluation.

    Args:
        requests: that are judged: explored sides answered, and the first places were shown.
        drawn: of these, those that were answered in a drawn order.
        left_out: reason → requests of sides that explore, which could not be judged.
        versions: first and last of the answers of the server.
        degraded: of its answers, those that may lack rows.
        effective: effective sample size of the weights.
        largest: largest weight, before it is clipped.
        mean_weight: near 1 if nothing is clipped, and the served side might have answered as the target does.
        clipped: share of the requests with a clipped weight.
        unsupported: share of the requests that the side never would have answered as the target does.
        clicks: estimates of clicks a request.
        value: estimates of bid × click a request; empty: bids are 1, or not all worth is of clicks.
    """

    server: str
    places: int
    requests: int
    drawn: int
    left_out: Mapping[str, int]
    versions: tuple[int, int]
    degraded: int
    effective: float
    largest: float
    mean_weight: float
    clip: float | None
    clipped: float
    unsupported: float
    clicks: list[Estimate]
    value: list[Estimate]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)
