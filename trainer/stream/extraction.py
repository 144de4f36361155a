"""Extraction of a run: its plan, compiled for the rank's device, and the features of its examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from livectr.ingest.common_features import CommonFeatures, sharing
from livectr.ingest.extract.device_extractor import compiler
from livectr.ingest.extract.extractor import Extract
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.materialized.features import ExampleFeatures
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features
from livectr.trainer.setup import Setup


@dataclass(frozen=True)
class Extraction:
    """Features of a run.

    Attributes:
        compiled: extractor of a plan, which all users of the plan share: a device loads its kernels once.
        examples: reads materialized features and computes the others.
        features: features of a batch's examples, common features shared if the options say so.
    """

    compiled: Callable[[FeaturePlan], Extract]
    examples: ExampleFeatures
    features: Callable[[Examples, Statistics], Features | CommonFeatures]

    @staticmethod
    def open(setup: Setup) -> Extraction:
        """Compile the plan, and open materialized features. Raises ConfigError if these are of others."""
        pipeline, options = setup.pipeline, setup.options
        compiled = cache(compiler(options.device, budget_bytes=options.gpu_budget, rows=options.batch_size))
        examples = setup.closed(ExampleFeatures.open(pipeline, options.materialized, compiled))
        features = sharing(pipeline, examples, compiled) if options.common_features else examples.features
        return Extraction(compiled, examples, features)
