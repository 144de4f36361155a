"""Roles of a pipeline's models, and their places in the table row that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from livectr.models.base import ModelConfig
from livectr.models.segments import SegmentSpec


def row_segments(configs: Mapping[str, ModelConfig], features: int = 1) -> tuple[SegmentSpec, ...]:
    """Segments of the table row that the models of a pipeline share.

    Args:
        configs: role → model; role "rank" gives segments "rank.w", "rank.v", …
        features: F, number of fields and dense features, by which default rates are set; only training needs
            it.
    """
    return tuple(
        replace(s, name=f"{role}.{s.name}", optimiser=s.optimiser.for_features(features))
        for role, config in configs.items()
        for s in config.segments()
    )


def served_roles(champion: str = "rank") -> tuple[str, str]:
    """Roles of models that servers answer with: the champion, which ranks, and the pre-rank model."""
    return champion, "prerank"


def role_slices(configs: Mapping[str, ModelConfig]) -> dict[str, slice]:
    """Slice of each role's values on a row's axis of D float32."""
    slices: dict[str, slice] = {}
    start = 0
    for role, config in configs.items():
        slices[role] = slice(start, start + config.width)
        start += config.width
    return slices
