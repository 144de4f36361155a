"""Grids of variants of a pipeline's DICM (Ge et al. 2018, §7.4 to §7.6).

    variant            fields of ids, and …
    ids                nothing: the baseline, Embedding&MLP
    ad_image           the ad's image
    behaviour_images   the images that the user clicked, multi-query attentive pooling
    joint              both, multi-query attentive pooling
    concat, max, sum, mean, attentive   both, with that aggregator
    lr, din            both, with another basic net; lr_ids, din_ids: without images
    partial, full      joint, from a checkpoint of the earlier part of the log
    towers             the pre-rank model with images; towers_ids: without

Variants without images touch no sub-model, so that they are trained together: the first is the ranking model,
the others are its shadows, with rows of their own. Each variant with images is a run of its own: a run has a
single sub-model, which all its models would train. Names of variants are keys of ablation.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bench.ablation.span import Span, only
from livectr.ingest.pipeline import Pipeline
from livectr.models.aggregators import AggregatorName
from livectr.models.base import ModelConfig
from livectr.models.dicm import DICM
from livectr.models.two_tower import TwoTower
from livectr.system.errors import ConfigError

GRIDS = ("images", "aggregator", "basic_net", "warm_up", "prerank")
BEST: Final = "multi_query_attentive"
AGGREGATORS: tuple[AggregatorName, ...] = ("concat", "max", "sum", "mean", "attentive")
WITHOUT_IMAGES = ("ids", "lr_ids", "din_ids", "towers_ids")
EARLIER = "earlier"
WARM = ("partial", "full")
"""Variants that are named after the parts of the checkpoint that they start with (`trainer.warm_parts`)."""


@dataclass(frozen=True)
class Run:
    """One training.

    models: role → (variant, configuration), "rank" and shadows. images: whether the sub-model takes part.
    needs: the run whose checkpoint it starts from, with these `parts` of it. keeps: its own is kept for them.
    """

    name: str
    models: Mapping[str, tuple[str, ModelConfig]]
    images: bool = True
    needs: str | None = None
    parts: str = "partial"
    keeps: bool = False

    def pipeline(self, given: Pipeline, span: Span) -> Pipeline:
        """The given pipeline with these models, on its part of the log."""
        configs = {role: config for role, (_, config) in self.models.items()}
        mine = replace(
            given,
            rank=configs.pop("rank"),
            prerank=None,
            shadows=configs,
            content=given.content if self.images else {},
        )
        if not span.divided:
            return mine
        return only(mine, "earlier" if self.keeps else "later", span.split_ms)


def runs_of(pipeline: Pipeline, grids: Sequence[str]) -> list[Run]:
    """Runs that fill the tables of these grids.

    Raises ConfigError for a pipeline whose models do not have the variants.
    """
    variants: dict[str, ModelConfig] = {}
    for grid in grids:
        variants |= _prerank(pipeline) if grid == "prerank" else _rank(pipeline, grid)
    without = {name: config for name, config in variants.items() if name in WITHOUT_IMAGES}
    runs = []
    if without:
        roles = ["rank", *list(without)[1:]]
        models = {role: (name, without[name]) for role, name in zip(roles, without, strict=True)}
        runs.append(Run("ids", models, images=False))
    for name, config in variants.items():
        if name not in without:
            run = Run(name, {"rank": (name, config)}, keeps=name == EARLIER)
            runs.append(replace(run, needs=EARLIER, parts=name) if name in WARM else run)
    return runs


def _rank(pipeline: Pipeline, grid: str) -> dict[str, ModelConfig]:
    """Variant → configuration, of a grid of the ranking model."""
    if not isinstance(pipeline.rank, DICM):
        raise ConfigError(
            f"grid {grid}: variants are those of a DICM, but the pipeline's rank is "
            f"{type(pipeline.rank).__name__}; say rank=DICM(...)."
        )
    best = replace(pipeline.rank, aggregator=BEST, basic="mlp", images="joint")
    ids = replace(best, images="none")
    if grid == "warm_up":
        return {"ids": ids, EARLIER: best, "joint": best, **dict.fromkeys(WARM, best)}
    found: dict[str, ModelConfig] = {"ids": ids, "joint": best}
    if grid in ("images", "aggregator"):
        found["ad_image"] = replace(best, images="ad")
    if grid == "images":
        found["behaviour_images"] = replace(best, images="behaviors")
    if grid == "aggregator":
        found |= {name: replace(best, aggregator=name) for name in AGGREGATORS}
    if grid == "basic_net":
        if not best.behaviors:
            raise ConfigError(
                "grid basic_net: DIN needs pairs of ID fields; give DICM target= and behaviors=, as in "
                'target=("ad",), behaviors=("clicked",).'
            )
        found |= {
            "lr_ids": replace(ids, basic="lr"),
            "din_ids": replace(ids, basic="din"),
            "lr": replace(best, basic="lr"),
            "din": replace(best, basic="din"),
        }
    return found


def _prerank(pipeline: Pipeline) -> dict[str, ModelConfig]:
    """The pre-rank model without and with its images."""
    towers = pipeline.prerank
    if not isinstance(towers, TwoTower) or not (towers.user_images or towers.item_images):
        raise ConfigError(
            "grid prerank: the pipeline needs a pre-rank model with images; say prerank=TwoTower(..., "
            'user_images=("clicked_images",), item_images=("image",)).'
        )
    return {"towers_ids": replace(towers, user_images=(), item_images=()), "towers": towers}
