"""Checks of a pipeline's models against its features; `models` is not imported here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from livectr.ingest.language.content import Content
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.promotion import Promotion
from livectr.ingest.language.roots import roots_of
from livectr.ingest.language.tables import Table
from livectr.ingest.plan.dag import FeaturePlan
from livectr.system.errors import ConfigError

SERVED = ("rank", "prerank")
RESERVED = ("adam", "calibrated", "calibration", "content", "des", "features", "hedge", "segment")
"""Begin of names of tensors, and columns of predictions, that belong to no model."""


def check_names(challengers: Iterable[str], shadows: Iterable[str]) -> None:
    """Check that every model has a name of its own, which tensors and segments of rows begin with.

    Raises:
        ConfigError: a name is taken, or no identifier.
    """
    taken = {*SERVED, *RESERVED}
    for kind, names in (("challenger", challengers), ("shadow", shadows)):
        for name in names:
            if name in taken or not name.isidentifier():
                raise ConfigError(f"Pipeline: a {kind} cannot be named {name!r}; take another word")
            taken.add(name)


def check_contest(challengers: Mapping[str, object], promotion: object) -> None:
    """Check the challengers' kind and the rule of promotion.

    Raises:
        ConfigError: they do not fit.
    """
    for name, model in challengers.items():
        if hasattr(model, "user") and hasattr(model, "item"):
            raise ConfigError(
                f"Pipeline: challengers: {name!r} is a {type(model).__name__}, a pre-rank model; challengers "
                "compete for rank, so take a ranking model, or make it a shadow"
            )
    if not isinstance(promotion, Promotion):
        raise ConfigError(
            f"Pipeline: promotion is {promotion!r}; write promotion=Promotion(margin=…, window=…)"
        )
    if promotion != Promotion() and not challengers:
        raise ConfigError("Pipeline: there is a rule of promotion, but challengers= names no model")


def check_models(models: Mapping[str, object], plan: FeaturePlan, content: Mapping[str, Content]) -> None:
    """Check that the features named by models exist (`models.ModelConfig.check`).

    Args:
        models: role → model.
        plan: features of the pipeline.
        content: content of the pipeline, by name.

    Raises:
        ConfigError: a feature or its content does not exist.
    """
    embedded = {name for each in content.values() for name in each.fields}
    for role, model in models.items():
        check = getattr(model, "check", None)
        if not callable(check):
            continue
        try:
            check(plan.fields, plan.dense_names)
            wanted = getattr(model, "gathers")(plan.fields).content  # noqa: B009
        except ValueError as error:
            raise ConfigError(f"{role}: {error}") from None
        for name in wanted:
            if name not in embedded:
                raise ConfigError(
                    f"{role}: {type(model).__name__} wants content of field {name!r}, which no content= "
                    "of the pipeline names among its fields"
                )


def check_towers(
    model: object, features: Mapping[str, Expr], items: Table | None, known: Collection[str]
) -> None:
    """Check that a two-tower model's features exist, and that its item tower needs nothing but the item.

    Args:
        model: configuration with `user` and `item` features.
        features: name → expression, of all features.
        items: look-up table of the ranked items.
        known: names of the roots that this table has.

    Raises:
        ConfigError: there is no table of items, or a tower names a feature that it cannot have.
    """
    if items is None:
        raise ConfigError("Pipeline: a prerank model needs items=, the look-up table of what is ranked")
    for side in ("user", "item"):
        for name in (*getattr(model, side, ()), *getattr(model, f"{side}_images", ())):
            if name not in features:
                raise ConfigError(f"prerank: {side} tower names {name!r}; features are {', '.join(features)}")
            foreign = [root.name for root in roots_of(features[name]) if root.name not in known]
            if side == "item" and foreign:
                raise ConfigError(
                    f"prerank: item tower names {name!r}, which depends on {', '.join(foreign)}; "
                    f"the items table {items.topic} does not know that"
                )
