"""Setup of one rank: what the parts of its run are made from."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, TypeVar

from livectr.ingest.pipeline import Pipeline
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.comm.control import Control
from livectr.trainer.options import TrainOptions


class Closable(Protocol):
    """Part that has to be closed."""

    def close(self) -> None:
        """Free its threads, files and connections."""


T = TypeVar("T", bound=Closable)


@dataclass(frozen=True)
class Setup:
    """Pipeline, settings and connections of one rank.

    Attributes:
        resources: closes parts when the run ends, the newest first.
    """

    pipeline: Pipeline
    options: TrainOptions
    collectives: Collectives
    control: Control
    resources: ExitStack

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        return self.control.rank

    @property
    def world(self) -> int:
        """N ranks."""
        return self.control.world

    def closed(self, part: T) -> T:
        """Close the part with the run."""
        self.resources.callback(part.close)
        return part
