"""`livectr inspect`: what a pipeline computes, what a checkpoint holds, what is published."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import redis
from rich.console import Console
from rich.table import Table

from ingest.pipeline import Pipeline
from kernels.errors import CheckpointError, ConfigError, ConnectError
from protos.store import Keyspace, VersionManifest
from trainer.checkpoint import MANIFEST, Manifest


def show_pipeline(pipeline: Pipeline) -> None:
    """Logs, operators by layer, fields and their tables, models."""
    console, log = Console(), pipeline.log
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
            + (", later ones as corrections" if log.correct_late else ""),
            highlight=False,
        )
    else:
        console.print(f"label: column {log.label}", highlight=False)
    console.print(pipeline.plan.describe(), highlight=False, markup=False, soft_wrap=True)
    fields = Table(title="sparse fields", title_justify="left")
    for column in ("#", "field", "embedding table", "of the item alone"):
        fields.add_column(column)
    items = {spec.name for spec in pipeline.item_fields}
    for spec in pipeline.fields:
        fields.add_row(str(spec.index), spec.name, spec.table, "yes" if spec.name in items else "")
    console.print(fields)
    console.print(f"dense    {', '.join(pipeline.plan.dense_names) or 'none'}", highlight=False)
    console.print(f"rank     {pipeline.rank}", highlight=False, markup=False)
    console.print(f"prerank  {pipeline.prerank or 'none'}", highlight=False, markup=False)


def show_checkpoint(folder: Path) -> None:
    """Every generation, and where the newest would go on. Raises ConfigError for a folder without one."""
    manifests = sorted(folder.glob(f"gen-*/{MANIFEST}"))
    if not manifests:
        raise ConfigError(f"{folder} holds no checkpoint.")
    console = Console()
    table = Table(title=str(folder), title_justify="left")
    for column in (
        "generation",
        "ranks",
        "steps",
        "examples",
        "files",
        "table rows",
        "MB",
        "written",
        "state",
    ):
        table.add_column(column, justify="left" if column == "state" else "right")
    newest: Manifest | None = None
    for path in manifests:
        written = datetime.fromtimestamp(path.stat().st_mtime).strftime("%Y-%m-%d %H:%M:%S")
        try:
            m = Manifest.from_json(path.read_bytes())
        except CheckpointError as error:
            table.add_row(path.parent.name, *[""] * 6, written, f"torn: {error}")
            continue
        newest = m
        missing = [f.path for f in m.files if not _whole(folder / f.path, f.bytes)]
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
        console.print(f"pipeline  {json.dumps(newest.identity)}", highlight=False, markup=False)
        console.print(f"published {json.dumps(newest.cursor)}", highlight=False, markup=False)


def _whole(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size


def show_published(url: str, namespace: str) -> None:
    """The newest version in Redis. Raises ConnectError, ConfigError when nothing is published."""
    keys = Keyspace(namespace)
    try:
        client: Any = redis.Redis.from_url(url, socket_timeout=5)
        with client:
            text = client.get(keys.manifest)
            epoch = client.get(keys.epoch)
            memory = client.info("memory")["used_memory_human"]
    except (redis.RedisError, ValueError) as error:
        raise ConnectError(f"Redis does not answer: {error}") from None
    if text is None:
        raise ConfigError(f"nothing is published under the namespace {namespace!r}.")
    manifest = VersionManifest.from_json(text)
    table = Table(title=f"version {manifest.version}", title_justify="left", show_header=False)
    for name, value in json.loads(text).items():
        if name == "freshness":
            value = f"{sum(value.get('counts', [])):,} examples"
        elif name == "created_ms":
            value = datetime.fromtimestamp(value / 1000).strftime("%Y-%m-%d %H:%M:%S")
        shown = value if isinstance(value, str) else json.dumps(value)
        table.add_row(name, shown)
    table.add_row("fence", epoch.decode() if epoch else "none")
    table.add_row("memory used", memory)
    Console().print(table)
