"""Warm start: a new run begins with parts of the model that another run has learned.

DICM's partial warm-up (Ge et al. 2018, §7.2): parts of a model converge at different speed. Embeddings of ids
overfit soon, and networks on images need long. So the best start (Table 5) takes all but the embeddings from
the day before.

    network      weights of all models and of the sub-models of content; running statistics, since these
                 weights were learned on features that depend on them
    content      weights of the sub-models of content alone
    embeddings   rows of the tables with their optimisers' state, the state of their policies, and the
                 statistics, since learned bins are keys

The paper initialises parameters and says nothing of optimisers. A row's state (sums of squares, numbers of
updates) comes with the row, or an old row would learn as fast as a new row. The networks' Adam moments start
at zero and schedules at their beginning, as in any new run. The batch ramp (trainer.ramp) continues
where the other run was if both its networks and its embeddings are loaded. The first batch does not move
trained biases (trainer.des.step). Positions in the log, joins, histories and counters are the new run's own.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from livectr.ingest.extract.statistics import Statistics
from livectr.system.errors import ConfigError, MismatchError
from livectr.trainer.checkpoint.lease import Held, hold_newest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.comm.control import Control
from livectr.trainer.des.dense import SIZES_KEY, of_number
from livectr.trainer.des.step import DesStep
from livectr.trainer.options import TrainOptions
from livectr.trainer.tables.policies import Policies
from livectr.trainer.warm_parts import parse_warm_parts

LOG = logging.getLogger(__name__)
NAMED = 5
"""Parameters that an error names at most."""


@dataclass(frozen=True)
class WarmStart:
    """Generation of another run to start from.

    Attributes:
        held: the generation; `close` lets it go.
        parts: names of the parts that are loaded (trainer.warm_parts).
    """

    held: Held
    parts: frozenset[str]
    control: Control

    @property
    def restored(self) -> Restored:
        """The generation."""
        return self.held.restored

    @staticmethod
    def of(options: TrainOptions, control: Control, *, resumed: bool) -> "WarmStart | None":
        """Find the newest whole generation of `warm_start`; only read it: its run may continue. Collective.

        Args:
            options: `warm_start` and `warm_parts`.
            control: of this rank.
            resumed: this run has a checkpoint of its own.

        Returns:
            None if the run has no warm start, or is resumed.

        Raises:
            ConfigError: there is no generation.
            CheckpointError: generations exist, but none is whole.
        """
        if options.warm_start is None or options.continues:
            return None
        parts = parse_warm_parts(options.warm_parts)
        if resumed:
            LOG.info("%s is resumed; warm_start %s is for a new run", options.checkpoint, options.warm_start)
            return None
        help = "bring its files back, or name another --warm-start"
        held = hold_newest(options.warm_start, help, control)
        if held is None:
            raise ConfigError(
                f"warm_start: {options.warm_start} holds no checkpoint; name what was another run's "
                "--checkpoint"
            )
        return WarmStart(held, parts, control)

    def close(self) -> None:
        """Let the generation go, once it is loaded; a second call does nothing."""
        self.held.close()

    @property
    def examples(self) -> int:
        """Examples that the other run had learned; 0 if neither its networks nor its rows are loaded."""
        return 0 if self.parts.isdisjoint(("network", "embeddings")) else self.restored.manifest.examples

    @property
    def seen(self) -> int:
        """Examples from which the batch ramp resumes: a model that lacks networks or rows starts it again."""
        return self.restored.manifest.ramped if self.parts >= {"network", "embeddings"} else 0

    def statistics(self, fresh: Statistics) -> Statistics:
        """Running statistics to start with.

        Args:
            fresh: statistics of a new run.

        Raises:
            MismatchError: the other run has statistics of other features.
        """
        if self.parts.isdisjoint(("network", "embeddings")):
            return fresh
        return fresh.load(self.restored.statistics())

    def load(self, step: DesStep, policies: Policies) -> None:
        """Load the parts into a step that has learned nothing. Collective.

        Raises:
            MismatchError: the other run's model lacks a parameter or a table, or has it in another shape; on
                every rank alike.
        """
        if "content" in self.parts:
            step.start_from(self._weights(step), trained="network" in self.parts)
        if "embeddings" in self.parts:
            self._check_rows(step)
            split, rank, world = step.spec.placement.split, self.control.rank, self.control.world
            self.restored.load_tables(step.tables, split, rank=rank, world=world)
            step.storage.drop()
            policies.load(self.restored.policies())
        at = self.restored.manifest.step
        parts = ", ".join(sorted(self.parts)) or "nothing"
        LOG.info("starts with %s of %s after step %d", parts, self.held.name, at)

    def _weights(self, step: DesStep) -> Mapping[str, torch.Tensor]:
        """Weights of the other run, after every rank has found its own among them. Collective."""
        state = self.restored.dense()
        theirs = {n: t for n, t in state.items() if not n.startswith(("adam.", "des."))}
        if SIZES_KEY in state and "network" in self.parts:
            theirs |= {n: t for n, t in state.items() if of_number(n)}
        ours = step.dense.weights(shared=True)
        if "network" not in self.parts:
            theirs, ours = _of_content(theirs), _of_content(ours)
            if not ours:
                raise ConfigError("warm_parts names content, but no model of the pipeline looks at any")
        wrong = [
            f"{name} ({_shape(theirs.get(name))} there, {_shape(tensor)} here)"
            for name, tensor in ours.items()
            if name not in theirs or theirs[name].shape != tensor.shape
        ]
        wrong_names = sorted({name for share in self.control.gather_json(wrong) for name in share})
        if wrong_names:
            more = f" and {len(wrong_names) - NAMED:,} more" if len(wrong_names) > NAMED else ""
            raise MismatchError(
                f"the model in {self.held.name} is another one: {', '.join(wrong_names[:NAMED])}{more}; "
                "start from a run with these parameters, or leave their part out of warm_parts"
            )
        return theirs

    def _check_rows(self, step: DesStep) -> None:
        root, manifest = self.held.name, self.restored.manifest
        if lacks := sorted({*step.spec.table_of} - {*manifest.table_rows}):
            raise MismatchError(
                f"the model in {root} has no embedding table {', '.join(lacks)}; start from a run with "
                "these tables, or leave embeddings out of warm_parts"
            )
        if manifest.row != (here := step.spec.layout.describe()):
            raise MismatchError(
                f"rows of the embeddings in {root} hold {', '.join(manifest.row)}, those of this pipeline "
                f"{', '.join(here)}; start from a run with the same, or leave embeddings out of warm_parts"
            )


def _of_content(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in weights.items() if name.startswith("content.")}


def _shape(tensor: torch.Tensor | None) -> str:
    return "none" if tensor is None else str(list(tensor.shape))
