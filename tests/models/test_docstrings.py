"""Docstrings of the public models: every class says when to use it, and its Example runs."""

from __future__ import annotations

import doctest
import inspect

import pytest

from livectr import models
from livectr.models import ModelConfig, SubModel

PUBLIC = {name: getattr(models, name) for name in models.__all__}
CONFIGS = {
    name: value
    for name, value in PUBLIC.items()
    if inspect.isclass(value) and issubclass(value, ModelConfig | SubModel) and not inspect.isabstract(value)
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_explains_itself(name: str) -> None:
    """Its docstring names every setting, says when not to use the model, and has an Example."""
    text = inspect.getdoc(CONFIGS[name]) or ""
    prose, _, rest = text.partition("\nArgs:")
    assert "Use it" in " ".join(prose.split()) and "Do not use" in " ".join(prose.split())
    settings = rest.partition("\nExample:")[0]
    parameters = inspect.signature(CONFIGS[name]).parameters
    assert [field for field in parameters if f"    {field}: " not in settings] == []


@pytest.mark.parametrize("name", [name for name, value in PUBLIC.items() if ">>>" in (value.__doc__ or "")])
def test_examples_run(name: str) -> None:
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder(recurse=False).find(PUBLIC[name], name, globs={}):
        runner.run(example)
    assert runner.summarize().failed == 0 and runner.tries > 0


def test_every_model_has_an_example() -> None:
    without = [name for name, config in CONFIGS.items() if ">>>" not in (config.__doc__ or "")]
    assert CONFIGS and not without, f"no example in the docstring of {without}"
