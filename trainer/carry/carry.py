"""Carry a run over to a changed pipeline: its newest generation becomes the first one of a new checkpoint.

It may be an older generation, too (trainer.carry.relearn).

A run continues from it as from its own: at the old run's positions in the log, with its joins, histories and
statistics, and with all rows, weights and moments that the new pipeline has by the same names. No example is
lost and none is learned twice.

    rows          linked, where their layout is the same; else moved segment by segment (trainer.carry.rows)
    weights       by name and shape; what is new leaves the logits as they were (trainer.carry.weights)
    log           positions, joins, histories (ingest.join.continued)
    statistics    those of the same expressions; others begin
    left behind   what was published, prediction log, order log, run log

Files that stay as they are become hard links, so that the old trainer may go on and remove its own; where
that is not possible they are copied. The old checkpoint is only read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import safetensors.torch
import torch

from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.join.continued import continued
from livectr.ingest.join.state import SourceState
from livectr.ingest.language.policies import TablePolicy
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.table.rows import row_layout
from livectr.kernels.table.table import DynamicTable
from livectr.models.configs import model_configs
from livectr.models.roles import row_segments
from livectr.system.disk import sync_directory, writing
from livectr.system.errors import ConfigError, MismatchError
from livectr.system.tensors import packed
from livectr.trainer.carry.relearn import Relearned, hold_older
from livectr.trainer.carry.rows import CarriedRows
from livectr.trainer.carry.weights import CarriedWeights, Features, carried_weights, fresh_content
from livectr.trainer.checkpoint.folder import lock, remove_unfinished, write_manifest
from livectr.trainer.checkpoint.lease import hold_newest
from livectr.trainer.checkpoint.manifest import (
    FileEntry,
    Folder,
    folder_of,
    identity_of,
)
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.checkpoint.stored import Stored
from livectr.trainer.checkpoint.writer import write_synced
from livectr.trainer.comm.control import Control
from livectr.trainer.content.ams import PREFIX as CONTENT
from livectr.trainer.delayed.heads import PREFIX
from livectr.trainer.delayed.labels import head_models
from livectr.trainer.des.biases import BIASES_TRAINED_KEY, SURE_KEY
from livectr.trainer.des.from_zero import from_zero_state, saved_from_zero
from livectr.trainer.drift.feature_drift import FeatureDrift
from livectr.trainer.position_bias import PositionBias
from livectr.trainer.quality.calibrator import Calibrator
from livectr.trainer.quality.champion import CONTEST, champion_of
from livectr.trainer.quality.final_labels import FinalLabels
from livectr.trainer.quality.hedger import Hedger
from livectr.trainer.quality.late_labels import LateLabels
from livectr.trainer.quality.monitor import Monitor
from livectr.trainer.quality.values import ValueQuality
from livectr.trainer.stream.counters import CountersPart
from livectr.trainer.tables.policies import Policies, State

LOG = logging.getLogger(__name__)
AS_THEY_ARE = (
    *("known", "histories", "rows", "items", "gate", Monitor.kind, CountersPart.kind),
    *(PositionBias.kind, ValueQuality.kind, FeatureDrift.kind),
)
"""Kinds of files that a changed pipeline reads as they are."""
OF_EACH_MODEL = (FinalLabels.kind, LateLabels.kind, CONTEST, Calibrator.kind, Hedger.kind)
"""Kinds of files with a value for each model."""


@dataclass(frozen=True)
class EarlierRun:
    """Run that is continued.

    Args:
        address: its checkpoint, a folder or in an object store.
        source: URL of the log of both runs.
        relearn_ms: continue from a generation at least so old (trainer.carry.relearn); None: the newest.
    """

    address: str
    source: str = ""
    relearn_ms: int | None = None


@dataclass(frozen=True)
class Carried:
    """Contents of a new checkpoint that are those of an old one.

    Attributes:
        name: of the old checkpoint.
        step: of its generation.
        rows: table → rows that were kept.
        new, dropped: names of features, tables and models that the old run lacks, or that only it has.
        changed: parameters of networks with another shape, and segments of rows that are others.
        lacking: root of the features → impressions that wait, and in which it is null.
        again: part of the log that is learned again; None: the run continues where the old one was.
    """

    name: str
    step: int
    rows: Mapping[str, int]
    new: tuple[str, ...]
    dropped: tuple[str, ...]
    changed: tuple[str, ...]
    lacking: Mapping[str, int]
    again: Relearned | None = None

    def lines(self) -> list[str]:
        """Table for people, line by line."""
        kept = (
            f"{sum(self.rows.values()):,} rows of {len(self.rows)} tables, and the weights of the same names"
        )
        said = [("carried", kept), ("new", ", ".join(self.new)), ("dropped", ", ".join(self.dropped))]
        said += [("changed, so new", ", ".join(self.changed))]
        null = ", ".join(f"{name} in {count:,}" for name, count in self.lacking.items() if count)
        said += [("null in impressions that wait", null)]
        begin = [f"continues {self.name} after step {self.step}"]
        begin += [self.again.line()] if self.again is not None else []
        always = ("new", "dropped")
        return begin + [f"{what}: {which or 'nothing'}" for what, which in said if which or what in always]


def carry_once(
    old: EarlierRun, pipeline: Pipeline, seed: int, root: Path, control: Control, stored: Stored | None = None
) -> None:
    """`carry` on rank 0, unless the new checkpoint has a generation: then its run resumes. Collective.

    Args:
        old: run that is continued.
        pipeline: of the new run.
        seed: of new parameters.
        root: folder of the new checkpoint.
        control: of this rank.
        stored: object store that holds the new checkpoint, so that `root` is a working copy; None: none.
    """
    if control.rank == 0:
        with closing(lock(root)):
            if stored is not None:
                _store_once(old, pipeline, seed, stored)
            elif not Folder(root).generations():
                remove_unfinished(root)
                _tell(carry(old, pipeline, seed, root))
    control.broadcast_json(None)  # the others wait for rank 0


def _store_once(old: EarlierRun, pipeline: Pipeline, seed: int, stored: Stored) -> None:
    """Carry into an object store: the manifest goes last."""
    stored.reach()
    if stored.generations():
        return
    for folder in stored.root.glob("gen-*"):  # of a start that was killed
        shutil.rmtree(folder)
    carried = carry(old, pipeline, seed, stored.root)
    (generation,) = Folder(stored.root).generations()
    manifest = Folder(stored.root).manifest(generation)
    stored.own()
    uploads = [stored.upload(e.path, (stored.root / e.path).read_bytes) for e in manifest.files]
    for upload in uploads:
        upload.result()
    stored.seal(manifest).result()
    _tell(carried)


def _tell(carried: Carried) -> None:
    for line in carried.lines():
        LOG.info("%s", line)


def carry(old: EarlierRun, pipeline: Pipeline, seed: int, root: Path) -> Carried:
    """Make the first generation of a checkpoint.

    Args:
        old: run that is continued, and may go on itself.
        pipeline: of the new run.
        seed: of new parameters, which must be that of the old run: it gives unknown keys their rows.
        root: folder of the new checkpoint, which holds no generation.

    Raises:
        ConfigError: there is no generation.
        CheckpointError: no generation is whole.
        MismatchError: the log or the seed is another one, nothing of the model is the same, or the log no
            longer holds what is to be learned again.
        DiskFullError: nothing is left of the new generation.
    """
    again: Relearned | None = None
    if old.relearn_ms is None:
        help = "bring its files back, or name another --warm-start"
        held = hold_newest(old.address, help, resumes=True)
    else:
        held, again = hold_older(old.address, old.source, old.relearn_ms) or (None, None)
    if held is None:
        raise ConfigError(
            f"warm_start: {old.address} holds no checkpoint; name what was another run's --checkpoint"
        )
    with held, _whole(root):
        carried = _Carrier(held.name, held.restored, pipeline, seed, root).run()
        return replace(carried, again=again)


class _Carrier:
    """One generation on its way."""

    def __init__(self, name: str, old: Restored, pipeline: Pipeline, seed: int, root: Path) -> None:
        self.name, self.old, self.pipeline, self.seed, self.root = name, old, pipeline, seed, root
        self.manifest = old.manifest
        theirs = self.manifest.identity
        if theirs["seed"] != seed:
            raise MismatchError(
                f"the run in {name} has seed {theirs['seed']}, this one {seed}; a run continues with its seed"
            )
        self.configs = model_configs(pipeline)
        layout = row_layout(row_segments(self.configs, pipeline.features), pipeline.row_values)
        self.layout = layout
        self.moves = CarriedRows(self.manifest.row, layout, seed, champion_of(old.state(CONTEST)))
        self.table_was = self._tables({field: table for field, table in theirs["fields"]})

    def _tables(self, theirs: Mapping[str, str]) -> dict[str, str]:
        """Our table → its name in the old run, for the tables that it has."""
        found: dict[str, str] = {}
        for spec in self.pipeline.fields:
            was = self.pipeline.renamed.get(spec.name)
            for name in (theirs.get(was) if was is not None else None, spec.table):
                if name is not None and name in self.manifest.table_rows:
                    found.setdefault(spec.table, name)
        return found

    def run(self) -> Carried:
        """Write the generation."""
        weights = self._dense()
        if not self.table_was and all(name.endswith(".bias") for name in weights.kept):
            raise MismatchError(
                f"nothing of the model in {self.name} has the names and shapes of this pipeline's; begin "
                "without it"
            )
        source, lacking = self._source()
        dense = safetensors.torch.save(self._dense_state(weights))
        self._seal(
            [
                *(entry for kind in self._kinds for entry in self._linked(kind)),
                *self._rows(),
                self._written(self._in("rank-0", "dense"), "dense", dense),
                *source,
                self._statistics(),
                *self._policies(),
            ]
        )
        return self._carried(weights, lacking)

    # Model

    @property
    def _kinds(self) -> tuple[str, ...]:
        """Kinds of files that stay: those with a value for each model where the roles are the same."""
        names = {name for name in self.old.dense() if not name.startswith((PREFIX, "adam.", "des."))}
        ours = {role.partition(".")[0] for role in self.configs}  # of heads that of their hedge
        same = {n.partition(".")[0] for n in names} - {CONTENT} == ours
        same = same and all(f"{role}.bias" in names for role in self.configs)
        return (*AS_THEY_ARE, *(OF_EACH_MODEL if same else ()))

    def _dense(self) -> CarriedWeights:
        theirs = {name: tensor for name, tensor in self.old.dense().items() if not name.startswith(PREFIX)}
        return carried_weights(
            theirs,
            self.pipeline,
            self.configs,
            self.seed,
            before=self._before,
            new_tables=self._new_tables,
            content=fresh_content(self.pipeline, self.seed),
        )

    @property
    def _before(self) -> Features:
        theirs = self.manifest.identity
        return Features(tuple(field for field, _ in theirs["fields"]), tuple(theirs["dense"]))

    @property
    def _new_tables(self) -> frozenset[str]:
        return frozenset(spec.table for spec in self.pipeline.fields) - {*self.table_was}

    def _dense_state(self, weights: CarriedWeights) -> dict[str, torch.Tensor]:
        """State of all ranks' steps, of the heads of ES-DFM too."""
        theirs, ours = self.old.dense(), {was: table for table, was in self.table_was.items()}
        kept = {(role, ours[table]) for role, table in saved_from_zero(theirs) if table in ours}
        roles = {name.partition(".")[0] for name in weights.kept}
        state = weights.state | from_zero_state(
            weights.from_zero | {pair for pair in kept if pair[0] in roles}
        )
        same = [BIASES_TRAINED_KEY, *(f"{SURE_KEY}{role}" for role in roles)]
        state |= {name: theirs[name] for name in same if name in theirs}
        if models := head_models(self.pipeline):
            heads = {n.removeprefix(PREFIX): t for n, t in theirs.items() if n.startswith(PREFIX)}
            found = carried_weights(
                heads,
                self.pipeline,
                models,
                self.seed,
                before=self._before,
                new_tables=self._new_tables,
            ).state
            found |= {name: t for name, t in heads.items() if name.startswith(SURE_KEY)}
            state |= {PREFIX + name: tensor for name, tensor in found.items()}
        return {name: tensor.contiguous() for name, tensor in state.items()}

    # Rows

    def _rows(self) -> list[FileEntry]:
        """Files of tables: links, or written again where rows move, or belong to another name or policy."""
        renamed = {was: table for table, was in self.table_was.items() if was != table}
        stamped = {name for name, policy in self._new_policies().items() if policy.tracks}
        if self.moves.same and not renamed and stamped.isdisjoint(self.table_was):
            return list(self._linked("tables"))
        return [self._moved(entry, renamed, stamped) for entry in self._entries("tables")]

    def _moved(self, entry: FileEntry, renamed: Mapping[str, str], stamped: Container[str]) -> FileEntry:
        tensors = safetensors.numpy.load(self._path(entry).read_bytes())
        moved: dict[str, npt.NDArray[Any]] = {}
        for name, values in tensors.items():
            table, _, column = name.rpartition("/")
            heads = PREFIX if table.startswith(PREFIX) else ""
            ours = heads + renamed.get(table.removeprefix(heads), table.removeprefix(heads))
            if column == "rows" and not heads and not self.moves.same:
                values = self.moves.moved(ours, tensors[f"{table}/keys"], values)
            moved[f"{ours}/{column}"] = values
            if column == "keys" and ours.removeprefix(heads) in stamped:
                # A row is as old as its policy: without a stamp it would expire at once.
                moved[f"{ours}/stamps"] = np.full(len(values), self._now, np.uint32)
                moved[f"{ours}/counts"] = np.ones(len(values), np.uint32)
        return self._written(entry.path, entry.kind, packed(moved), entry.rows)

    # Policies

    def _new_policies(self) -> dict[str, TablePolicy]:
        """Table → policy, of the tables that had another one, or none."""
        before = self.manifest.identity["table policies"]
        return {
            table: policy
            for table, policy in self.pipeline.table_policies.items()
            if repr((self.table_was.get(table), policy)) not in before
        }

    @cached_property
    def _now(self) -> int:
        """Stamp at which the policies of the old run were, or would have been."""
        clocks = [state[n] for state in self.old.policies() for n in state if n.endswith("/clock")]
        timed = self.pipeline.log.impressions.time is not None
        marks = [int(each.values["merge"]["mark"]) // 1000 for each in self.old.source().partitions.values()]
        return max([0, *(int(now) for now, _ in clocks), *(marks if timed and not clocks else [])])

    def _policies(self) -> list[FileEntry]:
        """State of the policies that are as they were, and of those that begin."""
        begun, ours = self._new_policies(), self.pipeline.table_policies
        same = {was: table for table, was in self.table_was.items() if table in ours and table not in begun}
        heads = [PREFIX] if head_models(self.pipeline) else []
        states = [self._own_policies(state, same) for state in self.old.policies()] or [{}]
        tables = {name: DynamicTable(self.layout, name=name, seed=self.seed) for name in begun}
        fresh = Policies(tables, begun, timed=self.pipeline.log.impressions.time is not None).state()
        for prefix in ["", *heads]:
            for name, values in fresh.items():
                held = np.array([self._now, self._now], np.int64) if name.endswith("/clock") else values
                states[0][prefix + name] = held
        return [
            self._written(self._in(f"rank-{rank}", "policies"), "policies", packed(state))
            for rank, state in enumerate(states)
            if state
        ]

    @staticmethod
    def _own_policies(state: Mapping[str, npt.NDArray[Any]], same: Mapping[str, str]) -> State:
        found: State = {}
        for name, values in state.items():
            table, _, column = name.rpartition("/")
            heads = PREFIX if table.startswith(PREFIX) else ""
            if (ours := same.get(table.removeprefix(heads))) is not None:
                found[f"{heads}{ours}/{column}"] = values
        return found

    # Log and statistics

    def _source(self) -> tuple[list[FileEntry], dict[str, int]]:
        """Source state of each rank; root → waiting impressions in which it is null."""
        entries, lacking = self._entries("source"), dict[str, int]()
        files = []
        for entry, parts in zip(entries, self.old.sources(), strict=True):
            fitted = continued(SourceState.from_parts(parts), self.pipeline.learned)
            for name, count in fitted.lacking.items():
                lacking[name] = lacking.get(name, 0) + count
            tensors = {name: np.frombuffer(part, np.uint8) for name, part in fitted.state.parts().items()}
            files.append(self._written(entry.path, "source", packed(tensors)))
        return files, lacking

    def _statistics(self) -> FileEntry:
        """Running statistics of the same expressions; others begin."""
        fresh = Statistics(self.pipeline.plan)
        theirs = {name: state for name, state in self.old.statistics().items() if name in fresh.state()}
        kept = fresh.load({**fresh.state(), **theirs}).state()
        return self._written(self._in("rank-0", "statistics"), "statistics", packed(kept))

    # Files

    def _entries(self, kind: str) -> list[FileEntry]:
        return [entry for entry in self.manifest.files if entry.kind == kind]

    def _path(self, entry: FileEntry) -> Path:
        return self.old.root / entry.path if self.old.stored is None else self.old.stored.ensure(entry)

    def _in(self, rank: str, name: str) -> str:
        """Path of a file of this generation."""
        return f"{folder_of(Path(), self.manifest.generation)}/{rank}/{name}.safetensors"

    def _linked(self, kind: str) -> Iterator[FileEntry]:
        """Files of a kind under their own paths."""
        for entry in self._entries(kind):
            source, target = self._path(entry), self.root / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                if source.is_symlink():  # to an open file of this process (trainer.checkpoint.lease)
                    raise OSError
                os.link(source, target)
            except OSError:  # another disk, or a file system without links
                shutil.copyfile(source, target)
            yield entry

    def _written(self, path: str, kind: str, data: bytes, rows: int = 0) -> FileEntry:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_synced(target, data)
        sync_directory(target.parent)
        return FileEntry(path, kind, len(data), hashlib.sha256(data).hexdigest(), rows)

    def _seal(self, files: Sequence[FileEntry]) -> None:
        """Let the generation exist."""
        old, pipeline = self.manifest, self.pipeline
        renamed = pipeline.renamed
        rows = {t: old.table_rows[was] for t, was in self.table_was.items()}
        heads = {name: count for name, count in old.table_rows.items() if name.startswith(PREFIX)}
        manifest = replace(
            old,
            predictions=0,
            identity=json.loads(json.dumps(identity_of(pipeline, self.seed))),
            cursor=None,
            files=tuple(files),
            row=self.layout.describe(),
            table_rows=dict.fromkeys(sorted({spec.table for spec in pipeline.fields}), 0) | rows | heads,
            field_keys={
                spec.name: old.field_keys.get(renamed.get(spec.name, spec.name), 0)
                for spec in pipeline.fields
            },
            counts=_unpublished(old.counts),
            predictions_sha256="",
            created_ms=time.time_ns() // 1_000_000,
            resumes=0,
        )
        write_manifest(self.root, manifest)

    def _carried(self, weights: CarriedWeights, lacking: Mapping[str, int]) -> Carried:
        theirs, ours = self.manifest.identity, identity_of(self.pipeline, self.seed)
        was = self.pipeline.renamed
        before = {name for name, _ in theirs["fields"]} | {*theirs["dense"]}
        after = {name for name, _ in ours["fields"]} | {*ours["dense"]}
        new = sorted(name for name in after if was.get(name, name) not in before)
        dropped = sorted(before - after - {*was.values()})
        roles = {name.partition(".")[0] for name in weights.kept}
        new += [f"{role} model" for role in self.configs if role not in roles]
        wide = {name for name in weights.new if name in {*weights.dropped}}
        segments = {segment.name for segment in self.layout.segments} - {*self.moves.kept}
        return Carried(
            self.name,
            self.manifest.step,
            {table: self.manifest.table_rows[was] for table, was in self.table_was.items()},
            tuple(new),
            tuple(dropped),
            tuple(sorted(wide | {s for s in segments if s.partition(".")[0] in roles})),
            lacking,
        )


def _unpublished(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Counts of a run that has published nothing."""
    return {
        name: {each: 0 for each in value} if name == "published" else value for name, value in counts.items()
    }


@contextmanager
def _whole(root: Path) -> Iterator[None]:
    """Remove what was written if it is not all; a full disk has its sentence."""
    try:
        with writing("the checkpoint", root):
            yield
    except BaseException:
        for folder in root.glob("gen-*"):
            shutil.rmtree(folder, ignore_errors=True)
        raise
