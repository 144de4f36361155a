"""Result of `livectr evaluate --served`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
