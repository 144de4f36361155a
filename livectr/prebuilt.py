"""Prebuilt kernels: what a pipeline's processes compile at their start, compiled before, for levels of CPUs.

An image then needs no compiler, and its processes start in seconds. Kernels of a pipeline are known when its
objects are made, so this module makes the objects of a trainer and of both servers, and notes what they
compile.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from livectr.kernels.errors import ConfigError
from livectr.kernels.process.cpu import Level, own_levels
from livectr.kernels.runtime.compiler import noting, prebuild

if TYPE_CHECKING:
    from livectr.ingest.pipeline import Pipeline
    from livectr.models.base import ModelConfig

FIXED = (
    "kernels.keys.groups",
    "kernels.keys.keys",
    "kernels.keys.unique",
    "kernels.network.field_sums",
    "kernels.network.packed",
    "kernels.network.forward",
    "kernels.network.layers",
    "kernels.network.reply",
    "kernels.network.retrieval",
    "kernels.online.examples",
    "kernels.operators.dictionary",
    "kernels.protobuf.columns",
    "kernels.runtime.gather",
    "kernels.stream.clock",
    "kernels.stream.history",
    "kernels.stream.join",
    "kernels.stream.json_columns",
    "kernels.stream.json_depth",
    "kernels.stream.record_writer",
    "kernels.stream.records",
    "kernels.table.native",
    "kernels.tiers.row_log",
    "trainer.comm.key_codec",
)
"""Modules whose `_library()` is the same for every pipeline."""


def prebuild_all(
    pipeline_file: str | None, levels: Sequence[Level], folder: Path, *, servers_only: bool = False
) -> int:
    """Compile all kernels for each level; those in a folder of $LIVECTR_KERNELS are left out.

    Args:
        pipeline_file: None: only the kernels that every pipeline uses.
        levels: levels of CPUs.
        folder: gets a folder for each level.
        servers_only: leave out the kernels that only trainers use.

    Returns:
        Number of kernels of a level, with those left out.

    Raises:
        ConfigError: no compiler, or this CPU has none of the levels: making the objects loads their kernels.
    """
    from livectr.ingest.pipeline import load_pipeline

    runnable = [level for level in own_levels() if level in levels]
    if not runnable:
        names = ", ".join(level.name for level in own_levels())
        raise ConfigError(f"this CPU can run kernels of none of these levels; add one of {names}.")
    with noting(runnable[0], folder) as sources:
        for module in FIXED:
            importlib.import_module(f"livectr.{module}")._library()
        if pipeline_file is not None:
            pipeline = load_pipeline(pipeline_file)
            _make_servers(pipeline)
            if not servers_only:
                _make_trainer(pipeline)
    jobs = [(source, level) for level in levels for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: prebuild(job[0], job[1], folder), jobs))
    return len(sources)


def _make_servers(pipeline: Pipeline) -> None:
    """Make what has kernels in a rank and in a pre-rank server. Nothing connects."""
    from livectr.serving.options import ServeOptions
    from livectr.serving.score.prerank import PreRanker, prerank_follower
    from livectr.serving.score.rank import Ranker, rank_follower
    from livectr.serving.score.scorer import model_configs

    options = ServeOptions(redis="redis://127.0.0.1")
    configs = model_configs(pipeline)
    Ranker(pipeline, rank_follower(pipeline, options), options)
    if pipeline.prerank is not None:
        PreRanker(pipeline, prerank_follower(pipeline, options), options)
    _make_units(pipeline, [configs[role] for role in configs])


def _make_trainer(pipeline: Pipeline) -> None:
    """Make what has kernels in a trainer, and in no server."""
    from livectr.ingest.common_features import CommonExtractor
    from livectr.ingest.decode.clean import compile_filter
    from livectr.ingest.extract.extractor import Extractor
    from livectr.ingest.join.histories import BehaviorHistories
    from livectr.ingest.language.streams import Stream
    from livectr.trainer.configs import model_configs

    configs = model_configs(pipeline)
    CommonExtractor(pipeline, Extractor(pipeline.plan)).compile()
    for stream in pipeline.streams:
        if isinstance(stream, Stream):
            compile_filter(stream)
    BehaviorHistories(pipeline.history_roots).compile()
    _make_units(pipeline, list(configs.values()))


def _make_units(pipeline: Pipeline, configs: Sequence[ModelConfig]) -> None:
    """Compile the activation units of models."""
    from livectr.models.attention import compile_units

    plan = pipeline.plan
    for config in configs:
        compile_units(config.build(plan.fields, plan.fields, plan.dense_names, True, 0))
