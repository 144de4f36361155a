"""Generations of a checkpoint, by the step of the version that was published from the same state."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from livectr.ingest.pipeline import Pipeline
from livectr.system.errors import CheckpointError, ConfigError, MismatchError
from livectr.system.object_store import refuse_objects
from livectr.trainer.checkpoint.lease import Held, hold
from livectr.trainer.checkpoint.manifest import (
    MANIFEST,
    Folder,
    Manifest,
    check_identity,
    identity_of,
    number,
)

LOG = logging.getLogger(__name__)


class Generations:
    """Follows a checkpoint, whose trainer keeps its newest two generations.

    A version and a generation hold the same state if the run, the step and the examples are the same: both
    are copied at a step boundary, and a run that resumes from a checkpoint repeats its steps.

    Args:
        root: the checkpoint.

    Raises:
        ConfigError: the folder holds no checkpoint.
        MismatchError: the checkpoint belongs to another pipeline.
    """

    def __init__(self, root: Path, pipeline: Pipeline) -> None:
        refuse_objects(root)
        self.root, self._pipeline = root, pipeline
        self._held: dict[int, Manifest] = {}
        self._torn: set[int] = set()
        newest = self.newest()
        check_identity(root, newest.identity, identity_of(pipeline, newest.identity["seed"]))

    def newest(self) -> Manifest:
        """Newest generation. Raises ConfigError if there is none."""
        self._look()
        if not self._held:
            raise ConfigError(f"{self.root} holds no checkpoint; name the folder that training wrote")
        return self._held[max(self._held)]

    def of_version(self, server: Any) -> Manifest | None:
        """Generation of the version that a server describes; None: no generation is of that version.

        Raises:
            MismatchError: the checkpoint is of a training that does not publish what the server serves.
        """
        newest = self.newest()
        run = (newest.cursor or {}).get("run_id")
        if newest.cursor is None:
            raise MismatchError(
                f"the training of {self.root} publishes nothing; name the --checkpoint of the trainer that "
                "publishes what the server serves"
            )
        if run != server.run_id:
            raise MismatchError(
                f"the server serves version {server.version} of another run than that of {self.root}; name "
                "the --checkpoint of the trainer that publishes it"
            )
        for manifest in self._held.values():
            if (manifest.step, manifest.examples) == (server.step, server.examples):
                return manifest
        return None

    def read(self, manifest: Manifest) -> Held | None:
        """A generation, ready to be read until it is closed; None if the trainer has replaced it.

        Raises:
            CheckpointError: it is torn.
        """
        try:
            return hold(Folder(self.root), manifest.generation)
        except FileNotFoundError:
            return None
        except CheckpointError as error:
            raise CheckpointError(
                f"generation {manifest.generation} of {self.root} is torn: {error}; name a whole checkpoint"
            ) from None

    def _look(self) -> None:
        found = {number(path.parent): path for path in self.root.glob(f"gen-*/{MANIFEST}")}
        self._held = {generation: m for generation, m in self._held.items() if generation in found}
        for generation in sorted(found.keys() - self._held.keys() - self._torn):
            try:
                self._held[generation] = Manifest.from_json(found[generation].read_bytes())
            except FileNotFoundError:
                continue  # it was replaced meanwhile
            except CheckpointError as error:
                self._torn.add(generation)
                LOG.warning("generation %d is torn: %s", generation, error)
