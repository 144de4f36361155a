"""Step of a single rank over the fields of `des_worker`."""

from __future__ import annotations

from bench.planted import pipeline
from livectr.models import ModelConfig, TwoTower
from livectr.trainer.des.step import DesStep
from livectr.trainer.step_settings import StepSettings
from tests.models.examples import SHARED
from tests.trainer.des_worker import DENSE, FIELDS, ROLES

BOTH = ROLES["both"]


def step_of(
    rank_model: ModelConfig,
    prerank: TwoTower | None = None,
    *,
    seed: int = 5,
    settings: StepSettings = StepSettings(),  # noqa: B008, frozen
) -> DesStep:
    """A single rank over the worker's fields."""
    built = pipeline(rank_model, prerank=prerank, fields=FIELDS, dense=DENSE, shared=SHARED)
    return DesStep(built, seed=seed, settings=settings)
