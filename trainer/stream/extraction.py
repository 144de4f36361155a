"""Extraction of a run: its plan, compiled for the rank's device, and the features of its examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from livectr.ingest.common_features import CommonFeatures, sharing
from livectr.ingest.extract.device_extractor import compiler
from livectr.ingest.extract.extractor import Extract
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.materialized.features import ExampleFeatures
from livectr.ingest.plan.features import Features
from livectr.trainer.setup import Setup


@dataclass(frozen=True)
class Extraction:
    """Features of a run.

    Attributes:
        extract: the pipeline's whole plan.
        examples: reads materialized features and computes the others.
        features: features of a batch's examples, common features shared if the options say so.
    """

    extract: Extract
    examples: ExampleFeatures
    features: Callable[[Examples, Statistics], Features | CommonFeatures]

    @staticmethod
    def open(setup: Setup) -> Extraction:
        """Compile the plan, and open materialized features. Raises ConfigError if these are of others."""
        pipeline, options = setup.pipeline, setup.options
        compile_plan = compiler(options.device, budget_bytes=options.gpu_budget, rows=options.batch_size)
        extract = compile_plan(pipeline.plan)
        examples = setup.closed(ExampleFeatures.open(pipeline, options.materialized, compile_plan))
        shared = sharing(pipeline, examples, extract, compile_plan)
        return Extraction(extract, examples, shared if options.common_features else examples.features)
