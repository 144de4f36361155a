"""The contract of `tests.models.checks` for every model that `models` exports."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from livectr import models
from livectr.models import ModelConfig
from tests.models.checks import CHECKS, _with_defaults, exported

CONFIGS = exported()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Callable[[ModelConfig], None], name: str) -> None:
    check(CONFIGS[name])


def test_every_model_is_found() -> None:
    found = {type(config) for config in CONFIGS.values()}
    exported = {kind for name in models.__all__ if isinstance(kind := getattr(models, name), type)}
    assert found == {kind for kind in exported if issubclass(kind, ModelConfig)} - {ModelConfig}


def test_a_model_without_an_example_is_told() -> None:
    with pytest.raises(LookupError, match="TwoTower has no example: add one"):
        _with_defaults(models.TwoTower)
