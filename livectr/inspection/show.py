"""Tables of a pipeline, of a checkpoint and of the published version."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from livectr.console import is_piped, make_console
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.drawing import to_svg
from livectr.ingest.plan.placement import place
from livectr.inspection.operators_table import show_operators
from livectr.store.layout import Keyspace
from livectr.store.manifest import VersionManifest
from livectr.system.errors import CheckpointError, ConfigError
from livectr.system.object_store import refuse_objects


def show_pipeline(
    pipeline: Pipeline, *, rows: int, budget_bytes: int | None = None, svg: Path | None = None
) -> None:
    """Print topics, operators by layer and device, fields with their tables, and models.

    Args:
        pipeline: the pipeline.
        rows: rows of a batch, for the memory of operators.
        budget_bytes: GPU memory for features; None: no limit.
        svg: file that the operators are drawn into.

    Raises:
        ConfigError: training would fail: an operator does not compile, a model is no model, or the budget is
            too small.
    """
    from livectr.models.configs import model_configs  # imports torch

    Extractor(pipeline.plan, engine="calls")
    placement = place(pipeline.plan, budget_bytes=budget_bytes, rows=rows)
    model_configs(pipeline)
    if svg is not None:
        svg.write_text(to_svg(placement), encoding="utf-8")
    console, log = make_console(), pipeline.log
    console.print(f"fingerprint  {pipeline.fingerprint}", highlight=False)
    streams = Table(title="reads", title_justify="left")
    for column in ("topic", "kind", "key", "time", "columns"):
        streams.add_column(column)
    for stream in pipeline.streams:
        streams.add_row(stream.topic, "events", stream.key, stream.time or "", ", ".join(stream.columns))
    for table in pipeline.tables:
        streams.add_row(table.topic, "look-up table", table.key, "", ", ".join(table.columns))
    console.print(streams)
    if log.clicks is not None:
        console.print(
            f"label: a click with equal {', '.join(log.on)} within {log.window_ms / 1000:g} s"
            + (f", provisional after {log.wait_ms / 1000:g} s ({log.delayed})" if log.provisional else ""),
            highlight=False,
        )
    else:
        known = f"within {log.dedup_ms / 1000:g} s"
        once = f"; rows of equal {', '.join(log.dedup)} count once {known}" if log.dedup else ""
        console.print(f"label: column {log.label_column}{once}", highlight=False, soft_wrap=True)
    show_operators(placement, console, cut=not is_piped())
    if svg is not None:
        console.print(f"drew {svg}", highlight=False, markup=False, soft_wrap=True)
    fields = Table(title="sparse fields", title_justify="left")
    for column in ("#", "field", "embedding table", "of the item alone"):
        fields.add_column(column)
    items = {spec.name for spec in pipeline.item_fields}
    for spec in pipeline.fields:
        fields.add_row(str(spec.index), spec.name, spec.table, "yes" if spec.name in items else "")
    console.print(fields)
    console.print(f"dense    {', '.join(pipeline.plan.dense_names) or 'none'}", highlight=False)
    models = Table(title="models", title_justify="left", show_header=False)
    for role, model in (("rank", pipeline.rank), ("prerank", pipeline.prerank)):
        _model_rows(models, role, model)
    for name, model in pipeline.challengers.items():
        _model_rows(models, f"challenger {name}", model)
    console.print(models)
    if pipeline.calibration is not None:
        by = f"by {pipeline.calibration.by}" if pipeline.calibration.by else "over all examples"
        clicks = f"{pipeline.calibration.window_clicks:,}"
        console.print(f"predictions are calibrated {by}, over {clicks} clicks", highlight=False)
    if (weights := pipeline.example_weights) is not None:
        console.print(f"weights  {weights}", highlight=False)
    if pipeline.shown is not None:
        console.print(
            f"position {pipeline.shown.expr}: learned beside clicks, and left out when they are served",
            highlight=False,
        )
    joined = {
        label.name: f"{label.stream.topic} with equal {', '.join(label.columns(log.on))} within "
        f"{label.window_ms / 1000:g} s"
        for label in log.more_labels
    }
    for target in pipeline.targets:
        after = f", after a {target.after}" if target.after else ""
        of = joined[target.name] if target.label is None else target.label
        worth = "" if target.value is None else f"; worth {target.value} ({target.values})"
        console.print(f"target   {target.name}: {of}{after}{worth}", highlight=False)
    if pipeline.value is not None:
        console.print(f"value    {pipeline.value}", highlight=False)
    if pipeline.challengers:
        rule = pipeline.promotion
        console.print(
            f"a challenger is promoted by {rule.margin:.2%} less log loss over {rule.window:,} examples",
            highlight=False,
        )


def _model_rows(table: Table, role: str, model: object) -> None:
    """Add a line for each setting of a model."""
    from livectr.models.learning import OptimiserSpec

    if not is_dataclass(model):
        table.add_row(role, "none", "")
        return
    table.add_row(role, type(model).__name__, "")
    for field in fields(model):
        value = getattr(model, field.name)
        if isinstance(value, OptimiserSpec):
            value = f"{value.name}({', '.join(f'{n}={v:g}' for n, v in value.params)})"
        elif isinstance(value, tuple):
            value = ", ".join(map(str, value))
        table.add_row("", field.name, str(value))


def show_checkpoint(folder: Path) -> None:
    """Print every generation and the newest one's state. Raises ConfigError without a checkpoint."""
    # These import torch, which the other functions do not need.
    from livectr.trainer.checkpoint.lease import hold
    from livectr.trainer.checkpoint.manifest import MANIFEST, Folder, Manifest
    from livectr.trainer.quality.champion import CONTEST, champion_of

    refuse_objects(folder)
    manifests = sorted(folder.glob(f"gen-*/{MANIFEST}"))
    if not manifests:
        raise ConfigError(f"{folder} holds no checkpoint.")
    console = make_console()
    table = Table(title=str(folder), title_justify="left")
    for column in ("gen", "ranks", "steps", "examples", "files", "rows", "MB", "written"):
        table.add_column(column, justify="right", no_wrap=column != "written")
    table.add_column("state", overflow="fold")
    newest: Manifest | None = None
    whole = False
    for path in manifests:
        try:
            written = datetime.fromtimestamp(path.stat().st_mtime).strftime("%Y-%m-%d %H:%M:%S")
            m = Manifest.from_json(path.read_bytes())
        except FileNotFoundError:
            continue  # the trainer has replaced it
        except CheckpointError as error:
            table.add_row(path.parent.name, *[""] * 6, written, f"torn: {error}")
            continue
        missing = [f.path for f in m.files if not _whole(folder / f.path, f.bytes)]
        if missing and not path.exists():
            continue
        newest, whole = m, not missing
        table.add_row(
            str(m.generation),
            str(m.world),
            f"{m.step:,}",
            f"{m.examples:,}",
            str(len(m.files)),
            f"{sum(f.rows for f in m.files):,}",
            f"{sum(f.bytes for f in m.files) / 1e6:.1f}",
            written,
            f"lacks {', '.join(missing)}" if missing else "whole",
        )
    console.print(table)
    if newest is not None:
        console.print(_facts("pipeline", newest.identity))
        champion: dict[str, Any] = {}
        with suppress(FileNotFoundError):  # the trainer has replaced it
            if whole:
                with hold(Folder(folder), newest.generation, kinds=(CONTEST,)) as held:
                    champion = {"champion": champion_of(held.restored.state(CONTEST))}
        console.print(_facts("published", champion | (newest.cursor or {"version": "none"})))


def _facts(title: str, values: Mapping[str, Any]) -> Table:
    """Table of names and values; a list of pairs holds fields with their tables."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        if isinstance(value, list):
            value = ", ".join(
                one if isinstance(one, str) else one[0] if one[0] == one[1] else f"{one[0]} → {one[1]}"
                for one in value
            )
        table.add_row(name, str(value))
    return table


def _whole(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def show_published(url: str, namespace: str) -> None:
    """Print the published version.

    Raises:
        ConnectError: Redis does not answer.
        ConfigError: nothing is published.
    """
    from livectr.store.redis_client import connected

    keys = Keyspace(namespace)
    with connected(url) as client:
        text = client.get(keys.manifest)
        epoch: Any = client.get(keys.epoch)
        memory = sum(int(info["used_memory"]) for info in client.infos("memory"))
    if text is None:
        raise ConfigError(f"nothing is published under the namespace {namespace!r}.")
    manifest = VersionManifest.from_json(text)
    values = {"champion": manifest.champion} | json.loads(text)
    rows = values.pop("tables", {})
    values["created"] = datetime.fromtimestamp(values.pop("created_ms") / 1000).strftime("%Y-%m-%d %H:%M:%S")
    values["freshness"] = f"{sum((values.get('freshness') or {}).get('counts', [])):,} examples"
    values["segments"] = [f"{name} ({dim} float32)" for name, dim in values.get("segments", [])]
    values["trainer that may write (epoch)"] = epoch.decode() if epoch else "none"
    values["memory used"] = f"{memory / (1 << 20):.2f} MiB"
    make_console().print(_facts(f"version {manifest.version}", values))
    table = Table(title="embedding tables", title_justify="left")
    table.add_column("table")
    table.add_column("rows", justify="right")
    for name, count in rows.items():
        table.add_row(name, f"{count:,}")
    make_console().print(table)
