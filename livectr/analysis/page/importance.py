"""Permutation importance by field of a checkpoint's ranking model, on the newest examples of a log.

Breiman 2001 §10; Fisher, Rudin, Dominici 2019.

The values of a field are shuffled among the examples and the model scores them again: the rise of log loss is
what the model owes to the field. Nothing is retrained (`livectr experiment ablate` does that), so a field
whose content another field repeats looks less important than it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.extract.weights import WeightExtractor, counts_of
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.join.state import SourceState
from livectr.ingest.materialized.writer import until_end
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.ingest.plan.features import Features
from livectr.kernels.runtime.compiler import thread_count
from livectr.library.checkpoints import open_checkpoint
from livectr.library.scoring import ROLE, CheckpointScorer
from livectr.system.errors import ConfigError
from livectr.trainer.quality.final_labels import with_final_labels
from livectr.trainer.quality.metrics import auc, example_losses
from livectr.trainer.quality.predictions import Records, records, weights_of
from livectr.trainer.quality.seen import NOT_COUNTED
from livectr.trainer.run import compute_threads

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
MOST = 20_000
REPEATS = 5
SEED = 1


@dataclass(frozen=True)
class Asked:
    """Model and examples.

    Args:
        pipeline: path of its file.
        checkpoint: folder that training wrote.
        source: `kafka://…` or `file:…`, read to the end that it has at the start.
        from_start: take the newest examples of the whole log; False: of those that the checkpoint has not
            learned.
        most: examples.
    """

    pipeline: str
    checkpoint: Path
    source: str
    from_start: bool = False
    most: int = MOST


@dataclass(frozen=True)
class FieldImportance:
    """Rise of log loss without a field or dense number, its standard error over examples, fall of AUC."""

    name: str
    logloss: float
    error: float
    auc: float


@dataclass(frozen=True)
class Importance:
    """Importance of every field.

    Attributes:
        step: of the checkpoint.
        learned: the model may have learned the examples.
        logloss, auc: of the examples as they are.
    """

    step: int
    examples: int
    repeats: int
    learned: bool
    logloss: float
    auc: float
    fields: tuple[FieldImportance, ...]


def importance(asked: Asked) -> Importance:
    """Measure the importance of every field.

    Raises:
        ConfigError: there is no example, or no checkpoint.
        CheckpointError: no generation is whole, or training removed it while it was read.
        MismatchError: the checkpoint belongs to another pipeline or log.
    """
    pipeline = load_pipeline(asked.pipeline)
    with open_checkpoint(asked.checkpoint, pipeline) as restored, compute_threads(thread_count()):
        scorer = CheckpointScorer(pipeline, restored, {})
        state, counted = None, dict[str, Any]()
        if not asked.from_start:
            state, counted = restored.source(), restored.state("counters")
        features, scored = _newest(asked, pipeline, scorer.statistics, state, counted)
        labels, weights = scored["label"].astype(np.float32), weights_of(scored)
        logit = scorer.logits(features)
        loss, area = float(_mean(example_losses(logit, labels), weights)), auc(logit, labels, weights)
        found = tuple(_of_fields(pipeline, scorer, features, scored))
        step = restored.manifest.step
    return Importance(step, len(labels), REPEATS, asked.from_start, loss, area, found)


def _mean(values: F64, weights: F32 | None) -> float:
    return float(values.mean() if weights is None else np.average(values, weights=weights))


def _newest(
    asked: Asked,
    pipeline: Pipeline,
    statistics: Statistics,
    state: SourceState | None,
    counted: Mapping[str, Any],
) -> tuple[Features, Records]:
    """Features of the newest examples, and their records with final labels and no scores."""
    source = ExampleSource(
        pipeline.learned,
        asked.source,
        ReadOptions(until_end=True, full_tables=False),
        rank=0,
        world=1,
        dead_letters=DeadLetters(None),
        state=state,
    )
    source.counters.load(counted)
    weights = pipeline.example_weights
    weigh = None if weights is None else WeightExtractor(weights)
    extract, held = Extractor(pipeline.plan), deque[tuple[Features, Records, npt.NDArray[np.bool_]]]()
    try:
        for batch in until_end(source):
            features = extract(batch.columns, statistics)
            failed, given = features.failed, None
            if weigh is not None:
                given = weigh(batch.columns)
                failed = failed | given.failed
            good = np.flatnonzero(~failed & ~batch.final)
            if not len(good):
                continue
            scored = records(
                instance=batch.instance[good],
                user=batch.user[good],
                item=batch.item[good],
                time_ms=batch.time_ms[good],
                seen=np.full(len(good), NOT_COUNTED, np.uint32),
                logits={ROLE: np.zeros(len(good), np.float32)},
                label=batch.label[good],
                weight=None if given is None else counts_of(given.values[good], batch.label[good]),
            )
            held.append((features.take(good), scored, batch.late[good]))
            while sum(len(late) for _, _, late in held) - len(held[0][2]) >= asked.most:
                held.popleft()
    finally:
        source.close()
    if not held:
        more = "" if asked.from_start else f" that {asked.checkpoint} has not learned; add --from-start"
        raise ConfigError(f"{asked.source} has no examples{more}")
    scored = np.concatenate([part for _, part, _ in held])
    final = np.flatnonzero(with_final_labels(scored, np.concatenate([late for _, _, late in held])))
    final = final[-asked.most :]
    features = Features.concat([part for part, _, _ in held]).take(final)
    return features, scored[final]


def _of_fields(
    pipeline: Pipeline,
    scorer: CheckpointScorer,
    features: Features,
    scored: Records,
) -> Iterator[FieldImportance]:
    labels, weights = scored["label"].astype(np.float32), weights_of(scored)
    rng = np.random.default_rng(SEED)
    shuffled = [features.take(rng.permutation(len(labels))) for _ in range(REPEATS)]
    logit = scorer.logits(features)
    as_is, area = example_losses(logit, labels), auc(logit, labels, weights)
    names = [field.name for field in pipeline.fields]
    dense = list(pipeline.plan.dense_names)
    for i, name in enumerate([*names, *dense]):
        fields = [j + len(names) * (j == i) for j in range(len(names))]
        numbers = [j + len(dense) * (j + len(names) == i) for j in range(len(dense))]
        logits = [scorer.logits(features.merge(other, fields, numbers)) for other in shuffled]
        rise = np.mean([example_losses(z, labels) for z in logits], axis=0) - as_is
        fall = area - float(np.mean([auc(z, labels, weights) for z in logits]))
        mean = _mean(rise, weights)
        error = float(rise.std(ddof=1) / np.sqrt(len(rise))) if len(rise) > 1 else 0.0
        if weights is not None:
            error = float(np.sqrt(np.sum((weights * (rise - mean)) ** 2)) / weights.sum(dtype=np.float64))
        yield FieldImportance(name, mean, error, fall)
