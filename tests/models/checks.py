"""The contract of every model. A check takes a configuration and raises where the model breaks it.

`test_contract` runs all of them for every configuration that `models` exports: a new model is checked without
a test of its own, once it has an example in `tests.models.examples` (or defaults for all its settings).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import fields as settings_of
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bench.planted import pipeline
from livectr import models
from livectr.models import CTRModel, Gathered, ModelConfig, Ragged, TwoTower
from livectr.models.learning import Schedule
from livectr.system.errors import ConfigError
from tests.models.examples import CONTENT_EXAMPLES, DENSE, EXAMPLES, FIELDS
from tests.models.inputs import Inputs, image_dim
from tests.models.one_rank import OneRank, batch

NOWHERE = "nowhere"
NAMES = ("ad_image", "behavior_images", "ad")
"""Settings that are the name of one feature."""


def exported() -> dict[str, ModelConfig]:
    """Name → configuration, at least one of every class that `models` exports."""
    found = {name: example[0] for name, example in (EXAMPLES | CONTENT_EXAMPLES).items()}
    for name in models.__all__:
        kind = getattr(models, name)
        if not (isinstance(kind, type) and issubclass(kind, ModelConfig)) or kind is ModelConfig:
            continue
        if not any(type(config) is kind for config in found.values()):
            found[name] = _with_defaults(kind)
    return found


def _with_defaults(kind: type[ModelConfig]) -> ModelConfig:
    try:
        return kind()
    except TypeError as error:
        raise LookupError(
            f"{kind.__name__} has no example: add one to tests/models/examples.py ({error})"
        ) from None


# ── what comes in ────────────────────────────────────────────────────────────────────────────────────────


def unseen_ids(config: ModelConfig) -> None:
    """Keys that nobody has seen are scored from their initial rows, and only learning stores them."""
    one, rng = OneRank(config), np.random.default_rng(0)
    one.step(batch(rng, 30), np.ones(30, np.float32))
    held, new = one.keys, batch(rng, 20)
    new.keys[:] += 1_000_000
    scored = one.logits(new)
    assert np.isfinite(scored).all() and one.keys == held
    np.testing.assert_allclose(one.step(new, np.zeros(20, np.float32)), scored, rtol=1e-5, atol=1e-6)
    assert one.keys > held


def missing_fields_and_empty_lists(config: ModelConfig) -> None:
    """Rows without a single key are scored and learned."""
    one, rng = OneRank(config), np.random.default_rng(0)
    nothing = batch(rng, 10, empty=True)
    assert np.isfinite(one.logits(nothing)).all()
    one.step(nothing, np.ones(10, np.float32))
    assert one.keys == 0 and np.isfinite(one.logits(nothing)).all()


def permuted_batch(config: ModelConfig) -> None:
    """A permuted batch has permuted logits."""
    one, rng = trained(config), np.random.default_rng(1)
    features = batch(rng, 25)
    order = rng.permutation(25)
    np.testing.assert_allclose(
        one.logits(features.take(order)), one.logits(features)[order], rtol=1e-4, atol=1e-5
    )


def alone_as_in_a_batch(config: ModelConfig) -> None:
    """A row's logit does not depend on the rows beside it: it is the same in a request of one."""
    one = trained(config)
    features = batch(np.random.default_rng(2), 12)
    alone = [one.logits(features.take([row]))[0] for row in range(12)]
    np.testing.assert_allclose(one.logits(features), alone, rtol=1e-4, atol=1e-5)


def no_rows_and_one_row(config: ModelConfig) -> None:
    """B = 0 and B = 1."""
    one, rng = OneRank(config), np.random.default_rng(0)
    assert one.logits(batch(rng, 0)).shape == (0,)
    single = batch(rng, 1)
    assert one.step(single, np.ones(1, np.float32)).shape == (1,)
    assert np.isfinite(one.logits(single)).all()


def no_features_of_a_kind(config: ModelConfig) -> None:
    """A pipeline without dense features, or without any field that the configuration does not name."""
    try:
        bare = config.build(FIELDS, FIELDS, (), True, 1)
    except ValueError as error:  # it names a dense feature
        assert any(f"'{name}'" in str(error) for name in DENSE), error
    else:
        logits = _forward(config, bare, FIELDS, None)
        assert torch.equal(logits, _forward(config, bare, FIELDS, torch.zeros(4, 0)))
    try:
        numbers = config.build((), (), DENSE, True, 1)
    except ValueError as error:  # it names a field
        assert any(f"'{name}'" in str(error) for name in FIELDS), error
    else:
        _forward(config, numbers, (), torch.ones(4, len(DENSE)))


def _forward(
    config: ModelConfig, model: CTRModel, fields: tuple[str, ...], dense: torch.Tensor | None
) -> torch.Tensor:
    wanted = config.gathers(fields)
    values = torch.full((4, len(fields), config.width), 0.3)
    ragged, content = (
        Ragged(torch.full((3, width), 0.1), torch.tensor([0, 1, 1, 3, 3]))
        for width in (config.width, image_dim(config))
    )
    pooled = values[:, [fields.index(name) for name in wanted.pooled]]
    seen = Gathered(
        pooled,
        dict.fromkeys(wanted.sequences, ragged),
        dense if wanted.dense else None,
        dict.fromkeys(wanted.content, content),
    )
    logits: torch.Tensor = model(values, dense, seen)
    assert logits.shape == (4,) and torch.isfinite(logits).all()
    return logits


def extreme_values(config: ModelConfig) -> None:
    """Large rows and dense numbers give finite logits and gradients."""
    for scale in (1e-6, 1e3):
        inputs = Inputs.of(config, 6, scale=scale)
        model = config.build(FIELDS, FIELDS, DENSE, True, 1)
        leaves = inputs.moved([x.float() for x in inputs.tensors().values()]).leaves()
        logits = leaves.logits(config, model)
        assert torch.isfinite(logits).all(), scale
        logits.sum().backward()  # type: ignore[no-untyped-call]
        for name, tensor in leaves.tensors().items():
            assert tensor.grad is None or torch.isfinite(tensor.grad).all(), (scale, name)


# ── what it is ───────────────────────────────────────────────────────────────────────────────────────────


def deterministic_construction(config: ModelConfig) -> None:
    """Initial values depend on seed and names: on no global state, order or share of the fields."""
    torch.manual_seed(1)
    one = _state(config.build(FIELDS, FIELDS, DENSE, True, 3))
    torch.manual_seed(2)
    backwards = FIELDS[::-1]
    other = _state(config.build(FIELDS, backwards, DENSE, True, 3))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    fresh = _state(config.build(FIELDS, FIELDS, DENSE, True, 4))
    random = [name for name in one if one[name].numel() > 1 and one[name].std() > 0]
    assert all(not torch.equal(one[name], fresh[name]) for name in random), random


def state_round_trip(config: ModelConfig) -> None:
    """Exported state loads into another network; a parameter that is missing or misshapen is named."""
    inputs = Inputs.of(config)
    one, other = (config.build(FIELDS, FIELDS, DENSE, True, seed).double() for seed in (3, 4))
    state = _state(one)
    other.load(state | {"unknown": torch.zeros(1)})
    assert torch.equal(inputs.logits(config, one), inputs.logits(config, other))
    for name in state:
        with pytest.raises(KeyError, match=name.replace("[", r"\[")):
            other.load({n: t for n, t in state.items() if n != name})
        with pytest.raises(ValueError, match="has shape"):
            other.load(state | {name: torch.zeros(*state[name].shape, 2)})


def local_parameters_are_named(config: ModelConfig) -> None:
    """Every local axis is one of a parameter, as long as its names; the bias is shared."""
    model = config.build(FIELDS, FIELDS, DENSE, True, 3)
    parameters = dict(model.named_parameters())
    assert model.bias is parameters["bias"] and "bias" not in model.local_axes
    for name, owners in model.local_axes.items():
        assert name in parameters and parameters[name].shape[0] == len(owners), name
        assert set(owners) <= {*FIELDS, *DENSE}, name
    assert not list(model.buffers()) or not model.state_dict().keys() - parameters.keys()


def same_in_training_and_serving(config: ModelConfig) -> None:
    """Nothing (dropout, batch statistics) differs between train() and eval()."""
    inputs, model = Inputs.of(config), config.build(FIELDS, FIELDS, DENSE, True, 3).double()
    trains = inputs.logits(config, model.train())
    assert torch.equal(trains, inputs.logits(config, model.eval()))


def what_is_gathered_is_asked_for(config: ModelConfig) -> None:
    """A model that gathers says so when it gets nothing; one that does not needs nothing."""
    wanted = config.gathers(FIELDS)
    assert {*wanted.pooled, *wanted.sequences, *wanted.content} <= set(FIELDS)
    model = config.build(FIELDS, FIELDS, DENSE, True, 3).double()
    inputs = Inputs.of(config)
    if not wanted:
        assert model(inputs.values, inputs.dense).shape == (7,)
        return
    with pytest.raises(ValueError, match="gathers"):
        model(inputs.values, inputs.dense)


# ── how it learns ────────────────────────────────────────────────────────────────────────────────────────


def learns(config: ModelConfig) -> None:
    """A small batch is learned by heart, the better part of it."""
    one, rng = OneRank(config), np.random.default_rng(3)
    features, label = batch(rng, 40, keys=1000), (rng.random(40) < 0.4).astype(np.float32)

    def loss(logits: np.ndarray) -> float:
        return float(np.mean(np.logaddexp(0, logits) - label * logits))

    first = loss(one.step(features, label))
    for _ in range(100):
        last = loss(one.step(features, label))
    assert last < 0.6 * first, (first, last)


def bounded_memory(config: ModelConfig) -> None:
    """Steps over the same keys leave neither rows nor tensors behind."""
    one, rng = OneRank(config), np.random.default_rng(4)

    def run(steps: int) -> tuple[int, int, int]:
        for _ in range(steps):
            features = batch(rng, 60, keys=8)
            one.step(features, (rng.random(60) < 0.5).astype(np.float32))
        gc.collect()
        tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
        return one.keys, sum(table.nbytes for table in one.tables.values()), tensors

    first, last = run(10), run(30)
    assert last == first


# ── how it is written down ───────────────────────────────────────────────────────────────────────────────


def a_wrong_name_is_told(config: ModelConfig) -> None:
    """A feature that the pipeline does not have is named when the pipeline is made."""
    for wrong in _misspelt(config):
        with pytest.raises(ValueError, match=f"{type(config).__name__} names '{NOWHERE}'.*C1"):
            wrong.build(FIELDS, FIELDS, DENSE, True, 1)
        with pytest.raises(ConfigError, match=f"rank: {type(config).__name__} names '{NOWHERE}'"):
            pipeline(wrong, fields=6, dense=3)
        if isinstance(wrong, TwoTower) and NOWHERE in wrong.user:
            with pytest.raises(ConfigError, match=f"user tower names '{NOWHERE}'"):
                pipeline(models.LR(), fields=6, dense=3, prerank=replace(wrong, item=("C2",)))


def _with(config: ModelConfig, setting: str, value: Any) -> ModelConfig:
    return replace(config, **{setting: value})


def _misspelt(config: ModelConfig) -> Iterator[ModelConfig]:
    """The configuration with one feature's name misspelt, for every setting that holds names."""
    for setting in settings_of(config):
        value = getattr(config, setting.name)
        if setting.name in NAMES:
            yield _with(config, setting.name, NOWHERE)
        if isinstance(value, tuple) and value and isinstance(value[0], str):
            yield _with(config, setting.name, (NOWHERE, *value[1:]))
        if isinstance(value, tuple) and value and isinstance(value[0], tuple):
            yield _with(config, setting.name, ((NOWHERE, *value[0][1:]), *value[1:]))


def a_wrong_setting_is_told(config: ModelConfig) -> None:
    """A width, rate or name of no use is an error that names the setting."""
    for setting in settings_of(config):
        value = getattr(config, setting.name)
        for wrong in (1, "", ("C1",)) if setting.name in NAMES else _wrong(value):
            with pytest.raises(ValueError, match=f"^{type(config).__name__}.*{setting.name} is"):
                _with(config, setting.name, wrong)
                pytest.fail(f"{setting.name}={wrong!r} is taken: check it by its name in models/settings.py")


def _wrong(value: Any) -> tuple[Any, ...]:
    """Values that are of no use in place of a good one."""
    if isinstance(value, bool | str):
        return ("neither",)
    if isinstance(value, int):
        return (0, -1, True, 2.5, "8")
    if isinstance(value, float):
        return (-1.0, float("nan"), float("inf"), "fast")
    if isinstance(value, tuple) and value and isinstance(value[0], int):
        return ((0,), (8, -1), (2.5,), 8, [8])
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return ((1,), "C1", ["C1"])
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return ((), ("C1",), ((),), [("C1",)])
    return ()


def a_configuration_is_a_value(config: ModelConfig) -> None:
    """Equal settings are equal, hash and print alike: a pipeline's fingerprint is made of that."""
    assert repr(replace(config)) == repr(config) and hash(replace(config)) == hash(config)
    assert repr(replace(config, schedule=Schedule(0.5, 123))) != repr(config)


def _state(model: CTRModel) -> dict[str, torch.Tensor]:
    return model.local_state() | model.shared_state()


def trained(config: ModelConfig) -> OneRank:
    """A few steps old."""
    one, rng = OneRank(config), np.random.default_rng(9)
    for _ in range(5):
        one.step(batch(rng, 50), (rng.random(50) < 0.4).astype(np.float32))
    return one


CHECKS: tuple[Callable[[ModelConfig], None], ...] = (
    unseen_ids,
    missing_fields_and_empty_lists,
    permuted_batch,
    alone_as_in_a_batch,
    no_rows_and_one_row,
    no_features_of_a_kind,
    extreme_values,
    deterministic_construction,
    state_round_trip,
    local_parameters_are_named,
    same_in_training_and_serving,
    what_is_gathered_is_asked_for,
    learns,
    bounded_memory,
    a_wrong_name_is_told,
    a_wrong_setting_is_told,
    a_configuration_is_a_value,
)
