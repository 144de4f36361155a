"""`livectr inspect`: show a pipeline, the event times of a log, a checkpoint, or what is published."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from livectr.commands.flags import command, count
from livectr.commands.settings import add_settings, given_settings
from livectr.config.parsing import parse
from livectr.config.sources import from_toml, resolve
from livectr.secrets import read_password, with_password
from livectr.system.errors import ConfigError
from livectr.system.heap import loading
from livectr.system.object_store import refuse_objects

if TYPE_CHECKING:
    from livectr.config.settings import Settings
    from livectr.ingest.pipeline import Pipeline

EXAMPLES = """\
  livectr inspect --pipeline examples/display_ads/pipeline.py --svg plan.svg
  livectr inspect --pipeline examples/display_ads/pipeline.py --gpu-budget 512MiB
  livectr inspect --pipeline p.py --ranks 4 --placement balanced --checkpoint /data/c
  livectr inspect --pipeline p.py --source kafka://localhost:9092 --checkpoint /data/c
  livectr inspect --checkpoint /data/c
  livectr inspect --redis redis://localhost:6379"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "inspect",
        run,
        "show a pipeline's features, a log's event times, a checkpoint, or what is published",
        EXAMPLES,
    )
    parser.add_argument(
        "--pipeline", metavar="FILE.py", help="columns, operators by layer and device, memory, fields, models"
    )
    parser.add_argument("--svg", metavar="FILE", help="draw the pipeline's operators into this file")
    parser.add_argument(
        "--ranks", type=count, metavar="N", help="placement of the fields on N ranks, with their load"
    )
    parser.add_argument(
        "--report", metavar="FILE", help="report of livectr train, whose measures --ranks uses [checkpoint]"
    )
    parser.add_argument(
        "--source",
        metavar="URL",
        help="event times of the pipeline's log by partition: lag, disorder, who holds the watermark back; "
        "with --checkpoint as far as the trainer has read",
    )
    add_settings(parser, "inspect")
    parser.add_argument("--checkpoint", metavar="DIR", help="generations, positions, rows, sizes")
    parser.add_argument("--redis", metavar="URL", help="the published version")
    parser.add_argument("--namespace", default="livectr", help="prefix of the keys in Redis [livectr]")


def run(given: argparse.Namespace) -> int:
    """Show what the flags name. Raises ConfigError when they name nothing."""
    with loading(lean=given.alone):
        from livectr.ingest.pipeline import load_pipeline
        from livectr.inspection.check import check_settings
        from livectr.inspection.show import show_checkpoint, show_pipeline, show_published

    if not (given.pipeline or given.checkpoint or given.redis):
        raise ConfigError("say what to show: --pipeline FILE.py, --checkpoint DIR or --redis URL.")
    flags = given_settings(given)
    if given.config and not (given.pipeline or given.redis):
        raise ConfigError("--config is about a pipeline or Redis; say --pipeline FILE.py or --redis URL too.")
    written = from_toml(given.config) if given.config else {}
    file = flags.pop(
        "redis_password_file",
        os.environ.get("LIVECTR_REDIS_PASSWORD_FILE", written.get("redis_password_file")),
    )
    password = read_password(file) if file and given.redis else ""
    if given.pipeline:
        pipeline = load_pipeline(given.pipeline)
        settings = resolve(flags, toml=given.config, pipeline=pipeline.settings)
        check_settings(settings)
        svg = Path(given.svg) if given.svg else None
        if svg or given.ranks or not given.source:
            show_pipeline(pipeline, rows=settings.batch_size, budget_bytes=settings.gpu_budget, svg=svg)
        if given.ranks:
            _show_ranks(given, pipeline, settings)
        if given.source:
            _show_source(given, pipeline)
    elif given.svg or given.ranks or given.source or flags:
        named = [name for name in ("svg", "ranks", "source") if getattr(given, name)]
        name = [*named, *flags][0].replace("_", "-")
        raise ConfigError(f"--{name} is about a pipeline; say --pipeline FILE.py too.")
    if given.checkpoint and not given.source:
        show_checkpoint(Path(given.checkpoint))
    if given.redis:
        url = parse("redis", given.redis, "flag --redis")
        show_published(with_password(url, password) if password else url, given.namespace)
    return 0


def _show_source(given: argparse.Namespace, pipeline: Pipeline) -> None:
    from livectr.inspection.watermarks import show_watermarks

    state = None
    if given.checkpoint:
        from livectr.trainer.checkpoint.lease import hold_newest

        refuse_objects(Path(given.checkpoint))
        kinds = ("source", "known", "histories", "rows")
        held = hold_newest(given.checkpoint, "bring its files back", kinds=kinds)
        if held is None:
            raise ConfigError(f"{given.checkpoint} holds no checkpoint.")
        with held:
            state = held.restored.source()
    show_watermarks(pipeline, parse("source", given.source, "flag --source"), state)


def _show_ranks(given: argparse.Namespace, pipeline: Pipeline, settings: Settings) -> None:
    from livectr.inspection.placement_plan import measured, show_placement

    numbers = measured(
        pipeline,
        checkpoint=Path(given.checkpoint) if given.checkpoint else None,
        report=Path(given.report) if given.report else None,
    )
    show_placement(
        pipeline,
        numbers,
        world=given.ranks,
        placement=settings.placement,
        rank_memory=settings.rank_memory,
    )
