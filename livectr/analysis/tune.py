"""Variants of a model, learned as shadows of one pass over one log, and compared on the same examples."""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from livectr.analysis.compare import Z95, differences
from livectr.ingest.language.promotion import Promotion
from livectr.ingest.pipeline import Pipeline
from livectr.library.tables import to_pipeline
from livectr.library.training import train
from livectr.models.base import ModelConfig
from livectr.models.learning import OptimiserSpec
from livectr.system.errors import ConfigError
from livectr.system.scratch import scratch
from livectr.trainer.quality.metrics import LAST
from livectr.trainer.quality.predictions import Records, quality_of, read_predictions, weights_of
from livectr.trainer.quality.seen import is_cold

MOST = 24
"""Most variants of one pass; each has its own values in every table row."""


@dataclass(frozen=True)
class Measured:
    """Variant over the last 20 % of the examples; differences are to the pipeline's model, ± 95 %.

    Attributes:
        variant: its settings, "dense_lr=0.001"; "" is the pipeline's model.
    """

    variant: str
    auc: float
    logloss: float
    calibration: float
    auc_gain: float
    auc_error: float
    logloss_gain: float
    logloss_error: float


def tune(pipeline: str | Path | Pipeline, source: str, grid: Sequence[str], *, as_json: bool) -> int:
    """Learn every variant of a grid from a log, and print what each is worth.

    Args:
        pipeline: the pipeline, or its file; its rank model is varied.
        source: file:DIR or kafka://HOST:PORT, read to the end that it has now.
        grid: settings with their values, as "dense_lr=1e-3,3e-3" or "optimiser.lr=.02,.05".
        as_json: print JSON in place of a table.

    Raises:
        ConfigError: the model has no such setting, or a value cannot be.
    """
    found = to_pipeline(pipeline)
    variants = variants_of(found.rank, [parse(text) for text in grid])
    named = {f"variant_{i}": config for i, config in enumerate(variants.values())}
    with scratch("tune") as folder:
        path = folder / "predictions"
        tuned = replace(found, prerank=None, challengers={}, promotion=Promotion(), shadows=named)
        trained = train(tuned, source=source, checkpoint=folder / "checkpoint", predictions=str(path))
        trained.report.whole()
        rows = measure(read_predictions(path), dict(zip(named, variants, strict=True)))
    if as_json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
    else:
        show(rows)
    return 0


def parse(text: str) -> tuple[str, list[Any]]:
    """Setting and values of "NAME=VALUE,VALUE"; a value is a number, a text, or widths as (64,32).

    Raises:
        ConfigError: it has another form.
    """
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise ConfigError(f"--grid {text!r}: write NAME=VALUE,VALUE, as in dense_lr=1e-3,3e-3")
    try:
        parsed = ast.literal_eval(f"[{values}]")
    except (ValueError, SyntaxError):
        parsed = [value.strip() for value in values.split(",")]
    return name.strip(), list(parsed)


def variants_of(base: object, grid: Sequence[tuple[str, Sequence[Any]]]) -> dict[str, ModelConfig]:
    """Text of the settings → model, for every combination of a grid.

    Raises:
        ConfigError: `base` has no such setting, a value cannot be, or there are too many combinations.
    """
    assert isinstance(base, ModelConfig)
    names = [name for name, _ in grid]
    combinations = list(itertools.product(*(values for _, values in grid)))
    if len(combinations) > MOST:
        raise ConfigError(f"the grid has {len(combinations)} variants; try at most {MOST} at once")
    variants: dict[str, ModelConfig] = {}
    for values in combinations:
        text = " ".join(
            f"{name}={value}".replace(", ", ",") for name, value in zip(names, values, strict=True)
        )
        varied = base
        for name, value in zip(names, values, strict=True):
            varied = with_setting(varied, name, value)
        variants[text] = varied
    return variants


def with_setting(config: ModelConfig, name: str, value: Any) -> ModelConfig:
    """Model with another value of a setting, or of an optimiser's parameter ("optimiser.lr").

    Raises:
        ConfigError: the model has no such setting, or the value cannot be.
    """
    setting, dot, parameter = name.partition(".")
    known = getattr(config, setting, None) if setting in config.__dataclass_fields__ else None
    if known is None:
        settings = ", ".join(field for field in config.__dataclass_fields__ if field != "schedule")
        raise ConfigError(f"{type(config).__name__} has no setting {setting!r}; it has {settings}")
    try:
        if dot:
            if not isinstance(known, OptimiserSpec):
                raise ConfigError(f"{setting} is no optimiser; write {setting}=VALUE")
            params = {**dict(known.params), parameter: value}
            value = replace(known, params=tuple(params.items()))
        elif isinstance(known, tuple) and isinstance(value, int):
            value = (value,)
        return replace(config, **{setting: value})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"--grid {name}: {error}") from None


def measure(held: Records, variants: Mapping[str, str]) -> list[Measured]:
    """The pipeline's model and its variants over the last 20 %, the least log loss first.

    Args:
        held: predictions of a run.
        variants: role → text of its settings.
    """
    last = held[int(len(held) * (1 - LAST)) :]
    label = last["label"].astype(np.float32)
    if len(np.unique(label)) < 2:
        raise ConfigError(
            f"the last {LAST:.0%} of the log, {len(last):,} examples, need clicks to compare by"
        )
    cold = is_cold(last["seen"])
    rows = []
    for role, text in {"rank": "", **variants}.items():
        of = quality_of(last, role)
        apart = differences(last["user"], last["rank"], last[role], label, cold, weights_of(last))
        gains = (apart["auc"], apart["logloss"])
        each = [value for gain in gains for value in (gain.difference, Z95 * gain.standard_error)]
        rows.append(Measured(text, of.auc, of.logloss, of.calibration, *each))
    return sorted(rows, key=lambda row: row.logloss)


def show(rows: Sequence[Measured]) -> None:
    """Print a table, and what to write into the pipeline."""
    table = Table(box=box.HORIZONTALS, padding=(0, 1, 0, 0), title="the last 20 %, gains ± 95 %")
    table.add_column("variant", overflow="fold")
    for head in ("AUC", "log\nloss", "cali-\nbration", "AUC\ngained", "log loss\ngained"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        gains = [
            f"{gain:+.4f} ±{error:.4f}" if row.variant else "–"
            for gain, error in ((row.auc_gain, row.auc_error), (row.logloss_gain, row.logloss_error))
        ]
        table.add_row(
            row.variant or "the pipeline's",
            f"{row.auc:.4f}",
            f"{row.logloss:.4f}",
            f"{row.calibration:.3f}",
            *gains,
        )
    console = Console()
    console.print(table)
    console.print(advice(rows), highlight=False, soft_wrap=True)


def advice(rows: Sequence[Measured]) -> str:
    """Sentence on the best variant: better than chance, or not."""
    best = rows[0]
    if not best.variant:
        return "No variant has a smaller log loss than the pipeline's model."
    if -best.logloss_gain <= best.logloss_error:
        return f"The best variant, {best.variant}, is no better than chance: learn a longer log."
    return f"Write {best.variant} into the pipeline's rank model: its log loss is less, and not by chance."
