"""Test-then-train evaluation of a run: scores of learned examples, with their final labels, for its parts.

    batch, logits ─► records ─► final labels ─► every part's `measure`
      │          items: examples so far   labels: scores wait for late clicks
      └─ calibrator: maps as of the examples whose labels were final before

Late positives are no examples: they are not scored, but give an example its final label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.ingest.extract.weights import counts_of
from livectr.ingest.language.labels import EARLY_LABEL, LATE_LABEL
from livectr.ingest.language.targets import Target
from livectr.ingest.plan.segments import NO_SEGMENT
from livectr.ingest.plan.worths import CAME, Worths
from livectr.store.targets import after_click
from livectr.trainer.des.result import StepResult
from livectr.trainer.part import F32, I64, Part, Scored
from livectr.trainer.quality.calibrator import Calibrator
from livectr.trainer.quality.contest import Contest
from livectr.trainer.quality.final_labels import FinalLabels
from livectr.trainer.quality.hedger import Hedger
from livectr.trainer.quality.late_labels import LateLabels
from livectr.trainer.quality.predictions import (
    CALIBRATED,
    SEGMENT,
    WORTH,
    Records,
    records,
    roles_of,
    weights_of,
    worths_of,
)
from livectr.trainer.quality.scales import Scales
from livectr.trainer.quality.seen import NOT_COUNTED, ItemCounts
from livectr.trainer.quality.values import ValueQuality, predictions
from livectr.trainer.stream.feed import Batch


@dataclass(frozen=True)
class Evaluation:
    """Evaluation on rank 0.

    Attributes:
        parts: get examples with final labels, in this order.
        items: examples of each item; None: the pipeline has no items.
        labels: scores whose label windows have not passed; None: every label is final at once.
        contest: champion and challengers; None: no challengers.
        hedger: mixes the logits of the heads; None: the ranking model is no hedge.
        calibrator: maps logits before their examples are counted in it; None: nothing is calibrated.
        scales: scale the examples' weights; None: each counts once.
        targets: labels beside the click, in the order of a batch's.
        worths: of the labels, in the order of a batch's; None: the pipeline has no value.
        leaves_ms: time after which an impression is an example.
        values: measures predicted values; None: no target has some.
        late: scores of targets whose labels are not final yet; None: each is final at once.
    """

    parts: Sequence[Part]
    items: ItemCounts | None = None
    labels: FinalLabels | None = None
    contest: Contest | None = None
    hedger: Hedger | None = None
    calibrator: Calibrator | None = None
    scales: Scales | None = None
    targets: Sequence[Target] = ()
    leaves_ms: int = 0
    worths: Worths | None = None
    values: ValueQuality | None = None
    late: LateLabels | None = None

    @property
    def by_step(self) -> bool:
        """True if the batches of a block are added one by one.

        A part notes the steps that bring examples, or panes end by examples whose labels are final.
        """
        waits = self.labels is not None and bool(self._panes)
        return waits or any(part.by_step for part in self.parts)

    @property
    def _panes(self) -> Sequence[Hedger | Calibrator]:
        """Parts that change after so many examples."""
        return [part for part in (self.hedger, self.calibrator) if part is not None]

    @property
    def champion(self) -> str:
        """Role of the ranking model that is published."""
        return self.contest.champion if self.contest is not None else "rank"

    def add(self, batch: Batch, result: StepResult, step: int) -> None:
        """Evaluate a batch of B > 0 examples and late positives.

        Args:
            batch: B examples in the global sequence.
            result: scores of the batch before it was learned.
            step: number of the step that has learned it.
        """
        logits = self._measured(batch, result)
        label, segment = result.label[batch.sequence], batch.segment
        weight = None if batch.weights is None else counts_of(batch.weights[batch.sequence], label)
        if segment is None and self.calibrator is not None:
            segment = np.full(len(batch), NO_SEGMENT)
        came, worths = self._came(batch), self._worths(batch, result)
        seen = np.full(len(batch), NOT_COUNTED, np.uint32)
        if self.items is not None:
            seen[~batch.late] = self.items.seen(batch.item[~batch.late])
        for rows, last, bounds in self._groups(batch, step):
            of_rows = None if segment is None else segment[rows]
            scored = records(
                instance=batch.instance[rows],
                user=batch.user[rows],
                item=batch.item[rows],
                time_ms=batch.time_ms[rows],
                seen=seen[rows],
                logits=self._mixed({role: z[rows] for role, z in logits.items()}, of_rows),
                label=label[rows],
                segment=of_rows,
                weight=None if weight is None else weight[rows],
                targets={role: label[rows] for role, label in came.items()},
                worths={label: worth[rows] for label, worth in worths.items()},
            )
            if self.labels is not None:
                ends = np.array([0, len(scored)]) if bounds is None else bounds
                scored, bounds = self.labels.add_block(scored, batch.late[rows], batch.order[rows], ends)
            self._give(scored, last, bounds)

    def add_again(self, batch: Batch, result: StepResult, step: int) -> None:
        """Evaluate B impressions that came again for labels beside the click.

        Their click was evaluated when they were examples: parts get them by `measure_again`.
        """
        if not len(batch):
            return
        logits = self._measured(batch, result)
        came, mixed = self._came(batch), self._mixed(logits, batch.segment)
        worths = self._worths(batch, result)
        stays = np.ones(len(batch), np.bool_)
        if self.late is not None:
            stays = self._wait(batch, mixed, came, worths, step)
        if stays.any():
            scored = self._again(batch, mixed, np.flatnonzero(stays), came, worths)
            self._give_again(scored, step, batch.order[stays] - self.leaves_ms)

    def _again(
        self,
        batch: Batch,
        logits: Mapping[str, F32],
        rows: I64,
        came: Mapping[str, F32],
        worths: Mapping[str, F32],
    ) -> Records:
        """Records of some rows, whose labels of the click are unknown.

        Args:
            batch: of the rows.
            logits: role → f32[B], in the global sequence.
            rows: places in it.
            came: role of a target → its labels f32[B].
            worths: see `_worths`.
        """
        unknown = np.full(len(rows), np.nan, np.float32)
        return records(
            instance=batch.instance[rows],
            user=batch.user[rows],
            item=batch.item[rows],
            time_ms=batch.time_ms[rows],
            seen=np.full(len(rows), NOT_COUNTED, np.uint32),
            logits={role: z[rows] for role, z in logits.items()},
            label=unknown,
            segment=None if batch.segment is None else batch.segment[rows],
            weight=None if batch.weights is None else counts_of(batch.weights[batch.sequence[rows]], unknown),
            targets={role: label[rows] for role, label in came.items()},
            worths={name: worth[rows] for name, worth in worths.items()},
        )

    def _give_again(self, scored: Records, step: int, at_ms: I64) -> None:
        of = {role: scored[role] for role in roles_of(scored)}
        again = Scored(scored, of, step, self.champion, at_ms=at_ms)
        for part in self.parts:
            part.measure_again(again)

    def _wait(
        self,
        batch: Batch,
        logits: Mapping[str, F32],
        came: dict[str, F32],
        worths: Mapping[str, F32],
        step: int,
    ) -> npt.NDArray[np.bool_]:
        """Let scores wait for late labels, and give those whose windows have passed.

        Args:
            batch: B impressions that came again.
            logits: role → f32[B], in the global sequence.
            came: role of a target → its labels f32[B]; those that wait become unknown.
            worths: see `_worths`.
            step: see `add_again`.

        Returns:
            bool[B], rows that know another label.
        """
        assert self.late is not None
        stage = batch.outcome[batch.sequence]
        for role in self.late.windows:
            rows = np.flatnonzero(~np.isnan(came[role]) & (stage >= EARLY_LABEL))
            if len(rows):
                scored = self._again(batch, logits, rows, {}, worths)
                scored["label"] = came[role][rows]
                done = self.late.add(role, scored, stage[rows] == LATE_LABEL, batch.order[rows])
                self._give_late(role, done, step)
            came[role] = np.full(len(batch), np.nan, np.float32)
        known = np.stack([~np.isnan(label) for label in came.values()]).any(0)
        stays: npt.NDArray[np.bool_] = known & (stage < EARLY_LABEL)
        return stays

    def _give_late(self, role: str, held: Records, step: int) -> None:
        """Give records of a target whose label is final."""
        assert self.late is not None
        if not len(held):
            return
        unknown = np.full(len(held), np.nan, np.float32)
        targets = {target.role: unknown for target in self.targets} | {role: held["label"].astype(np.float32)}
        scored = records(
            instance=held["instance"],
            user=held["user"],
            item=held["item"],
            time_ms=held["time_ms"],
            seen=held["seen"],
            logits={name: held[name] for name in roles_of(held)},
            label=unknown,
            segment=held[SEGMENT] if SEGMENT in (held.dtype.names or ()) else None,
            weight=weights_of(held),
            targets=targets,
            worths={label: held[WORTH + label] for label in worths_of(held)},
        )
        self._give_again(scored, step, held["time_ms"] + self.late.windows[role] - self.leaves_ms)

    def _measured(self, batch: Batch, result: StepResult) -> dict[str, F32]:
        """Logits f32[B] of probabilities by role, in the global sequence; values are measured."""
        if self.values is not None:
            self.values.add(batch, result.logits)
        others = {role for target in self.targets for role in target.value_roles}
        return {role: z[batch.sequence] for role, z in result.logits.items() if role not in others}

    def _came(self, batch: Batch) -> dict[str, F32]:
        """Role of each target → its labels f32[B], in the global sequence; NaN: not known."""
        if batch.targets is None:
            return {}
        in_sequence = batch.targets[batch.sequence]
        return {target.role: in_sequence[:, t] for t, target in enumerate(self.targets)}

    def _worths(self, batch: Batch, result: StepResult) -> dict[str, F32]:
        """Measured worths f32[B] by name, in the global sequence (`Worths.measured`)."""
        if batch.worths is None or self.worths is None:
            return {}
        found = {label: batch.worths[:, place] for place, label in enumerate(self.worths.labels)}
        valued = [target for target in self.targets if target.value is not None]
        for v, target in enumerate(valued):
            if target.name not in self.worths.value.expected:
                continue
            assert batch.values is not None
            worth, came = found[target.name], batch.values[batch.sequence, v]
            logits = {role: result.logits[role][batch.sequence] for role in target.value_roles}
            found[target.name] = (worth * predictions(logits, target)).astype(np.float32)
            found[target.name + CAME] = worth * np.nan_to_num(came)
        return {name: found[name] for name in self.worths.measured}

    def _groups(self, batch: Batch, step: int) -> Iterator[tuple[slice, int, I64 | None]]:
        """Divide a block after the batches that end a pane of the mixture or of the maps.

        Yields:
            Rows of some batches; number of the step of their last; their bounds.
        """
        panes = self._panes
        if batch.bounds is None or not panes:
            yield slice(0, len(batch)), step, batch.bounds
            return
        ends, first = batch.bounds.tolist(), 0
        for i in range(1, len(ends)):
            count, whole = ends[i] - ends[first], i == len(ends) - 1
            if count and (whole or any(part.closes(count) for part in panes)):
                bounds = batch.bounds[first : i + 1] - ends[first]
                yield slice(ends[first], ends[i]), step - (len(ends) - 1 - i), bounds
                first = i

    def _mixed(self, logits: Mapping[str, F32], segment: I64 | None) -> Mapping[str, F32]:
        """Logits with the mixture of a hedge and the calibrated ones, as of the examples before."""
        if self.hedger is not None:
            logits = {"rank": self.hedger.mixed(logits), **logits}
        if self.calibrator is not None and segment is not None:
            calibrated = self.calibrator.calibrated(logits[self.champion], segment, self.champion)
            logits = {**logits, CALIBRATED: calibrated}
        click = logits.get(CALIBRATED, logits[self.champion])
        after = {target.role for target in self.targets if target.after is not None}
        whole = {role: after_click(click, logits[role]).astype(np.float32) for role in after}
        return {role: whole.get(role, z) for role, z in logits.items()} if whole else logits

    def finish(self, step: int) -> None:
        """Evaluate what waits, at the end of the logs: the labels of all examples are final."""
        if self.labels is not None:
            self._give(self.labels.finish(), step)
        if self.late is not None:
            for role, held in self.late.finish():
                self._give_late(role, held, step)

    def _give(self, scored: Records, step: int, bounds: I64 | None = None) -> None:
        logits = {role: scored[role] for role in roles_of(scored)}
        scaled = None if self.scales is None else self.scales.scaled(scored)
        examples = Scored(scored, logits, step, self.champion, bounds, scaled)
        for part in self.parts:
            part.measure(examples)
