"""Predictions of a checkpoint for the examples of a log: its weights stay as they are.

    DIR/predictions         a prediction log, in training order
    DIR/places.npy          place of each record in the global sequence
    DIR/manifest.json       settings and counts
    DIR.parts/0-of-4 …      the same of the partitions of each part
    DIR.parts/checkpoint    the generation that all parts score

Parts are those of `ingest.materialized.parts`. A batch holds a fixed number of rows of one partition, because
the bits of a matrix product depend on its number of rows. So N processes write the bytes of one.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from livectr.analysis.partition_batches import by_partition
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.dead_letters.usable import judge
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.position import PlaceExtractor
from livectr.ingest.extract.targets import TargetExtractor
from livectr.ingest.extract.weights import WeightExtractor, counts_of
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.language.labels import EARLY_LABEL, labels_of
from livectr.ingest.materialized.parts import Part, built, complete, parts_of
from livectr.ingest.materialized.store import MANIFEST
from livectr.ingest.materialized.writer import until_end
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.kernels.runtime.compiler import thread_count
from livectr.library.checkpoints import open_checkpoint
from livectr.library.scoring import ROLE, CheckpointScorer
from livectr.store.targets import after_click as seen_and
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.manifest import MANIFEST as GENERATION
from livectr.trainer.checkpoint.manifest import folder_of
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.content.contents import FOLDER
from livectr.trainer.position_bias import PositionBias
from livectr.trainer.quality.final_labels import with_final_labels
from livectr.trainer.quality.predictions import (
    CALIBRATED,
    PredictionLog,
    Records,
    examples_in,
    layout,
    read_predictions,
    records,
    roles_of,
    targets_of,
    weights_of,
)
from livectr.trainer.quality.seen import NOT_COUNTED, ItemCounts
from livectr.trainer.run import compute_threads

LOG = logging.getLogger(__name__)

PREDICTIONS, PLACES, PINNED = "predictions", "places.npy", "checkpoint"
PLACE = np.dtype([("order", "<i8"), ("partition", "<i4")])
COPIED_ROWS = 1 << 20
REPORT_S = 30.0
"""Seconds between lines of progress."""

Places = npt.NDArray[np.void]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Scoring:
    """Examples to score, and the model.

    Args:
        pipeline: path of its file.
        checkpoint: folder that training wrote.
        source: `kafka://…` or `file:…`, read to the end that it has at the start.
        target: folder to create.
        from_start: score all examples of the log; False: those that the checkpoint has not learned.
        part: share of the partitions.
    """

    pipeline: str
    checkpoint: Path
    source: str
    target: Path
    from_start: bool = False
    part: Part = Part()

    @property
    def settings(self) -> dict[str, str]:
        """Settings that all parts share, by the words of messages."""
        return {
            "checkpoint": str(self.checkpoint),
            "log": self.source,
            "choice of examples": "all" if self.from_start else "not learned",
            "LiveCTR": version("livectr"),
        }


@dataclass(frozen=True)
class Scored:
    """Content of a folder of predictions.

    Args:
        settings: see `Scoring.settings`.
        fingerprint: of the pipeline.
        generation, step: of the checkpoint.
        rows: predictions.
        unusable: rows that were no record, or could not be extracted.
    """

    settings: dict[str, str]
    fingerprint: str
    generation: int
    step: int
    rows: int
    unusable: int

    def write(self, folder: Path) -> None:
        """Write the manifest."""
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @staticmethod
    def read(folder: Path) -> Scored:
        """Read the manifest. Raises ConfigError for another folder."""
        try:
            return Scored(**json.loads((folder / MANIFEST).read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            raise ConfigError(f"{folder} holds no predictions of a checkpoint; name another folder") from None


def score_log(scoring: Scoring) -> Path | None:
    """Score this part's examples; put the parts together when all are there. What is done is kept.

    Returns:
        The prediction log; None while other parts are missing.

    Raises:
        ConfigError: the folder holds other predictions, or there is no example.
        CheckpointError: no generation is whole, or training removed it while it was read.
        MismatchError: the checkpoint belongs to another pipeline or log.
        DataError: too few rows of the log are usable.
    """
    target, part = scoring.target, scoring.part
    part.check_count(target)
    pipeline = load_pipeline(scoring.pipeline)
    _check_alike(scoring, pipeline)
    if pipeline.counters and part.count > 1:
        raise ConfigError("counters count the whole log in its order; score it as one part")
    if target.exists():
        print(f"{target} is there already", file=sys.stderr)
    elif part.folder(target).exists():
        print(f"part {part.index} of {part.count} is there already", file=sys.stderr)
    else:
        _score(scoring, pipeline)
    if not target.exists():
        folders = complete(target, part.count)
        if folders is None:
            print(f"{part.folder(target)} is scored; {target} waits for other parts", file=sys.stderr)
            return None
        _merge(scoring, folders)
    scored = Scored.read(target)
    left_out = f", {scored.unusable:,} unusable rows left out" if scored.unusable else ""
    model = f"step {scored.step:,} of {scoring.checkpoint}"
    print(f"{target}: {scored.rows:,} examples, scored by {model}{left_out}", file=sys.stderr)
    return target / PREDICTIONS


def _check_alike(scoring: Scoring, pipeline: Pipeline) -> None:
    """Raise ConfigError if what is there was made by other settings."""
    target = scoring.target
    numbers = range(scoring.part.count)
    parts = [Part(i, scoring.part.count).folder(target) for i in numbers]
    for folder in filter(Path.exists, [target, parts_of(target) / PINNED, *parts]):
        made = Scored.read(folder)
        theirs = made.settings | {"pipeline": made.fingerprint}
        ours = scoring.settings | {"pipeline": pipeline.fingerprint}
        for name, here in ours.items():
            if theirs.get(name) != here:
                whole = target if folder == target else parts_of(target)
                raise ConfigError(
                    f"{folder} was made with another {name} ({theirs.get(name)}, here {here}); "
                    f"delete {whole}, or name another folder"
                )


def _score(scoring: Scoring, pipeline: Pipeline) -> None:
    """Write the folder of this part."""
    source, part = scoring.source, scoring.part
    letters = DeadLetters(None)  # training keeps the letters of its log; here bad records are counted
    with _generation(scoring, pipeline) as restored, compute_threads(thread_count()):
        contents = {name: scoring.checkpoint / FOLDER / name for name in pipeline.content}
        scorer = CheckpointScorer(
            pipeline, restored, {n: path for n, path in contents.items() if path.is_dir()}
        )
        state = None
        if not scoring.from_start:
            state = restored.source()
        examples = ExampleSource(
            pipeline.learned,
            source,
            ReadOptions(until_end=True, full_tables=False),
            rank=part.index,
            world=part.count,
            dead_letters=letters,
            state=state,
        )
        if not scoring.from_start:
            examples.counters.load(restored.state("counters"))
        scores = _Scores(pipeline, scorer, restored)
        try:
            for batch in by_partition(until_end(examples)):
                scores.add(batch)
                judge(letters.rows, letters.place, final=False)
            judge(letters.rows, letters.place, final=True)
        finally:
            examples.close()
        manifest = restored.manifest
    held, places = scores.result()
    unusable = letters.counts.total() + scores.failed
    scored = Scored(
        scoring.settings, pipeline.fingerprint, manifest.generation, manifest.step, len(held), unusable
    )
    if part.count == 1:
        _check_some(scored, scoring)
    with built(part.folder(scoring.target)) as folder:
        _write(folder, held, places, scored)


class _Scores:
    """Predictions of batches, in memory: about 60 bytes an example."""

    def __init__(self, pipeline: Pipeline, scorer: CheckpointScorer, restored: Restored) -> None:
        self._scorer, self._extract = scorer, Extractor(pipeline.plan)
        weights = pipeline.example_weights
        self._weights = None if weights is None else WeightExtractor(weights)
        self._items: ItemCounts | None = None
        if pipeline.items is not None:
            self._items = ItemCounts()
            self._items.load(restored.state(ItemCounts.kind))
        self._targets = TargetExtractor(pipeline.targets) if pipeline.targets else None
        self._at = None if pipeline.shown is None else PlaceExtractor(pipeline.shown)
        self._bias = PositionBias([ROLE, *(t.role for t in pipeline.targets if t.after is None)])
        if self._at is not None:
            self._bias.load(restored.state(PositionBias.kind))
        own = [target.role for target in pipeline.targets]
        self._roles = (ROLE, *own, *([] if pipeline.calibration is None else [CALIBRATED]))
        columns = layout(self._roles, weighted=weights is not None, targets=own)
        self._held: list[Records] = [np.empty(0, columns)]
        self._places: list[Places] = [np.empty(0, PLACE)]
        self._late: list[npt.NDArray[np.bool_]] = [np.empty(0, np.bool_)]
        self._rows, self._reported = 0, time.monotonic()
        self.failed = 0

    def add(self, batch: Examples) -> None:
        """Score the examples of a batch that can be extracted."""
        features = self._extract(batch.columns, self._scorer.statistics)
        failed, weights = features.failed, None
        if self._weights is not None:
            weights = self._weights(batch.columns)
            failed = failed | weights.failed
        labels = None if self._targets is None else self._targets(batch.columns, batch.final, batch.words)
        for wrong in () if labels is None else labels.wrong.values():
            failed = failed | wrong
        shown = None if self._at is None else self._at(batch.columns)
        for wrong in () if shown is None else shown.wrong.values():
            failed = failed | wrong
        # A final of a label beside the click gives its example this label.
        known = np.zeros(len(batch), np.bool_) if batch.words is None else batch.words != 0
        known &= batch.label < EARLY_LABEL
        good = np.flatnonzero(~failed & (~batch.final | known))
        self.failed += int(np.count_nonzero(failed & ~batch.final))
        if not len(good):
            return
        features = features.take(good)
        label = np.where(batch.final, np.float32(np.nan), batch.label)[good]
        logits, came = {ROLE: self._scorer.logits(features)}, dict[str, F32]()
        seen_at = {} if shown is None else self._bias.logits(shown.numbers[good])
        if ROLE in seen_at:
            logits[ROLE] = seen_and(seen_at[ROLE], logits[ROLE]).astype(np.float32)
        click = self._scorer.calibrated(features, logits[ROLE])
        of_targets = self._scorer.target_logits(features, click).astype(np.float32)
        for t, (target, own) in enumerate(zip(self._scorer.targets, of_targets, strict=True)):
            assert labels is not None
            seen_of = seen_at.get(target.role)
            logits[target.role] = own if seen_of is None else seen_and(seen_of, own).astype(np.float32)
            came[target.role] = labels_of(labels.words[good], len(of_targets))[:, t]
        if CALIBRATED in self._roles:
            logits[CALIBRATED] = click.astype(np.float32)
        seen = np.full(len(batch), NOT_COUNTED, np.uint32)
        if self._items is not None:
            seen = self._items.learned(batch.item)
        self._held.append(
            records(
                instance=batch.instance[good],
                user=batch.user[good],
                item=batch.item[good],
                time_ms=batch.time_ms[good],
                seen=seen[good],
                logits=logits,
                label=label,
                segment=self._scorer.segments(features),
                weight=None if weights is None else counts_of(weights.values[good], label),
                targets=came,
            )
        )
        places = np.empty(len(good), PLACE)
        places["order"], places["partition"] = batch.order[good], batch.partition[good]
        self._places.append(places)
        self._late.append(batch.late[good])
        self._rows += len(good)
        if time.monotonic() - self._reported > REPORT_S:
            self._reported = time.monotonic()
            LOG.info("%s examples are scored", f"{self._rows:,}")

    def result(self) -> tuple[Records, Places]:
        """Predictions with final labels and their places, in training order."""
        held, places = np.concatenate(self._held), np.concatenate(self._places)
        count = with_final_labels(held, np.concatenate(self._late))
        held, places = _sorted(held[count], places[count])
        examples = examples_in(held)
        return held[examples], places[examples]


def _sorted(held: Records, places: Places) -> tuple[Records, Places]:
    """Sort by (order, partition); records of a partition are in their sequence already."""
    order = np.lexsort((places["partition"], places["order"]))
    return held[order], places[order]


@contextmanager
def _generation(scoring: Scoring, pipeline: Pipeline) -> Iterator[Restored]:
    """Generation to score. Parts share a copy, because training replaces its generations meanwhile."""
    root = scoring.checkpoint
    if scoring.part.count > 1:
        pinned = parts_of(scoring.target) / PINNED
        if not pinned.exists():
            with open_checkpoint(root, pipeline) as newest, built(pinned, shared=True) as copy:
                manifest = newest.manifest
                name = folder_of(Path(), manifest.generation) / GENERATION
                for path in [*(Path(entry.path) for entry in manifest.files), name]:
                    (copy / path).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(newest.root / path, copy / path)
                at = manifest.generation, manifest.step
                Scored(scoring.settings, pipeline.fingerprint, *at, rows=0, unusable=0).write(copy)
        root = pinned
    with open_checkpoint(root, pipeline) as restored:
        yield restored


def _merge(scoring: Scoring, folders: list[Path]) -> None:
    """Write the target out of all parts. Raises ConfigError if they are of different generations."""
    parts = [Scored.read(folder) for folder in folders]
    first = parts[0]
    for part, folder in zip(parts, folders, strict=True):
        if (part.generation, part.step) != (first.generation, first.step):
            raise ConfigError(
                f"{folder} was scored by step {part.step} of the checkpoint, others by step {first.step}; "
                f"delete {parts_of(scoring.target)} and score all parts again"
            )
    rows, unusable = sum(part.rows for part in parts), sum(part.unusable for part in parts)
    scored = Scored(first.settings, first.fingerprint, first.generation, first.step, rows, unusable)
    _check_some(scored, scoring)
    held, places = _sorted(
        np.concatenate([read_predictions(folder / PREDICTIONS) for folder in folders]),
        np.concatenate([np.load(folder / PLACES) for folder in folders]),
    )
    with built(scoring.target, shared=True) as folder:
        _write(folder, held, places, scored)


def _check_some(scored: Scored, scoring: Scoring) -> None:
    if not scored.rows:
        more = "" if scoring.from_start else f" that {scoring.checkpoint} has not learned; add --from-start"
        raise ConfigError(f"{scoring.source} has no examples{more}")


def _write(folder: Path, held: Records, places: Places, scored: Scored) -> None:
    weighted = weights_of(held) is not None
    own = targets_of(held)
    with PredictionLog(folder / PREDICTIONS, roles_of(held), weighted=weighted, targets=own) as log:
        for start in range(0, len(held), COPIED_ROWS):
            log.append(held[start : start + COPIED_ROWS])
        log.sync()
    np.save(folder / PLACES, places)
    scored.write(folder)
