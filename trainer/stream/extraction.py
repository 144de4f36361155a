"""Extraction of a run: its plan, compiled for the rank's device, and the features of its examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from livectr.ingest.common_features import AnyFeatures, sharing
from livectr.ingest.extract.device_extractor import compiler
from livectr.ingest.extract.device_features import Brought
from livectr.ingest.extract.extractor import Extract
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.materialized.features import ExampleFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.trainer.options import TrainOptions
from livectr.trainer.setup import Setup

AHEAD = 2
"""Batches that are extracted on a device at a time: one is staged while another is computed."""


def brought_to_host(pipeline: Pipeline, options: TrainOptions, world: int) -> Brought:
    """Features that come to the host with their batch; the step reads the others where a device has them.

    Only the number of waits depends on it: features that are missing on the host are copied then.
    """
    merged = options.materialized is not None  # with features that are read
    sent = world > 1 and options.aggregate == "allreduce"  # dense features, too
    if merged or sent or pipeline.log.leaves_again:  # which leave the batch on the host
        return "all"
    on_device = world == 1 and options.gpu_rows != 0 and options.spill is None and not pipeline.content
    return "nothing" if on_device else "ids"


@dataclass(frozen=True)
class Extraction:
    """Features of a run.

    Attributes:
        compiled: extractor of a plan, which all users of the plan share: a device loads its kernels once.
        depth: batches that are extracted at a time.
        examples: reads materialized features and computes the others.
        features: features of a batch's examples, common features shared if the options say so.
        on_host: all features are computed on the host, so that a block's may be computed at once.
        made: extractors of the plans so far.
    """

    compiled: Callable[[FeaturePlan], Extract]
    examples: ExampleFeatures
    features: Callable[[Examples, Statistics], AnyFeatures]
    depth: int
    on_host: bool
    made: Sequence[Extract] = ()

    @property
    def replaced(self) -> int:
        """Numbers of dense features, of this process, that were not finite in float32 and became 0."""
        return sum(extract.replaced for extract in self.made)

    @staticmethod
    def open(setup: Setup) -> Extraction:
        """Compile the plan, and open materialized features. Raises ConfigError if these are of others."""
        pipeline, options = setup.pipeline, setup.options
        compile_plan = compiler(
            options.device,
            budget_bytes=options.gpu_budget,
            rows=options.batch_size,
            brought=brought_to_host(pipeline, options, setup.world),
        )
        made: list[Extract] = []

        @cache
        def compiled(plan: FeaturePlan) -> Extract:
            made.append(compile_plan(plan))
            return made[-1]

        examples = setup.closed(ExampleFeatures.open(pipeline, options.materialized, compiled))
        features = sharing(pipeline, examples, compiled) if options.common_features else examples.features
        on_host = options.device == "cpu" or options.materialized is not None
        depth = 1 if on_host or pipeline.plan.statistics else AHEAD
        on_host &= options.materialized is None
        return Extraction(compiled, examples, features, depth, on_host, made)
