"""Prebuilt kernels: the kernel library and a pipeline's fused plans, compiled before, for levels of CPUs.

The plans of a pipeline are known when its objects are made, so this module makes the objects of a trainer and
of both servers, and notes what they compile.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from livectr.kernels.runtime.compiler import noting, prebuild
from livectr.kernels.runtime.library import build, has_library
from livectr.system.cpu import Level, own_levels
from livectr.system.errors import ConfigError

if TYPE_CHECKING:
    from livectr.ingest.pipeline import Pipeline


def prebuild_all(
    pipeline_file: str | None, levels: Sequence[Level], folder: Path, *, servers_only: bool = False
) -> int:
    """Compile the kernels of a pipeline, and the kernel library, for each level of CPUs.

    What the package or a folder of $LIVECTR_KERNELS has is left out.

    Args:
        pipeline_file: None: only the library.
        levels: levels of CPUs.
        folder: gets a folder for each level.
        servers_only: leave out the kernels that only trainers use.

    Returns:
        Number of libraries of a level, with those left out.

    Raises:
        ConfigError: no compiler, or this CPU has none of the levels: making the objects loads their kernels.
    """
    from livectr.ingest.pipeline import load_pipeline

    runnable = [level for level in own_levels() if level in levels]
    if not runnable:
        names = ", ".join(level.name for level in own_levels())
        raise ConfigError(f"this CPU can run kernels of none of these levels; add one of {names}.")
    for level in levels:
        if not has_library(level):
            build(level, folder)
    with noting(runnable[0], folder) as sources:
        if pipeline_file is not None:
            pipeline = load_pipeline(pipeline_file)
            _make_servers(pipeline)
            if not servers_only:
                _make_trainer(pipeline)
    jobs = [(source, level) for level in levels for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: prebuild(job[0], job[1], folder), jobs))
    return len(sources) + 1


def _make_servers(pipeline: Pipeline) -> None:
    """Make the extractors of a rank and of a pre-rank server. Nothing connects."""
    from livectr.serving.options import ServeOptions
    from livectr.serving.score.followers import version_follower
    from livectr.serving.score.prerank import PreRanker
    from livectr.serving.score.rank import Ranker

    options = ServeOptions(redis="redis://127.0.0.1")
    Ranker(pipeline, version_follower("rank", pipeline, options), options)
    if pipeline.prerank is not None:
        PreRanker(pipeline, version_follower("prerank", pipeline, options), options)


def _make_trainer(pipeline: Pipeline) -> None:
    """Make the extractors of a trainer, and of no server."""
    from livectr.ingest.common_features import CommonExtractor
    from livectr.ingest.decode.clean import compile_filter
    from livectr.ingest.extract.extractor import Extractor
    from livectr.ingest.join.histories import BehaviorHistories
    from livectr.ingest.language.streams import Stream

    CommonExtractor(pipeline, Extractor(pipeline.plan)).compile()
    for stream in pipeline.streams:
        if isinstance(stream, Stream):
            compile_filter(stream)
    BehaviorHistories(pipeline.history_roots).compile()
