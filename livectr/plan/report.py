"""Report of the user's own run: its speed and its keys in place of the shipped points."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from livectr.system.errors import ConfigError

if TYPE_CHECKING:
    from livectr.ingest.pipeline import Pipeline


@dataclass(frozen=True)
class OwnRun:
    """Measures of a run.

    Attributes:
        file: of the report.
        rate: examples a second.
        ranks: N.
        names: fields.
        keys: of an example.
        batch: mean number of examples of a step.
    """

    file: Path
    rate: float
    ranks: int
    names: frozenset[str]
    keys: float
    batch: float

    @property
    def fields(self) -> int:
        """Number of fields."""
        return len(self.names)

    def core_s(self, cores: float) -> float:
        """Core-seconds of an example: all that the run did, waits included.

        Args:
            cores: that each rank had.
        """
        return self.ranks * cores / self.rate

    def check(self, pipeline: Pipeline) -> None:
        """Raise ConfigError if the report belongs to another pipeline."""
        if differ := sorted(self.names ^ set(pipeline.plan.fields)):
            raise ConfigError(
                f"{self.file} belongs to another pipeline: it differs in the fields {', '.join(differ)}."
            )


def read_report(file: Path) -> OwnRun:
    """Read a report of `livectr train --report`.

    Raises:
        ConfigError: it is none, or the run learned nothing.
    """
    try:
        values = json.loads(file.read_text())
        keys, examples = values["field_keys"], values["examples_trained"]
        found = OwnRun(
            file,
            float(values["examples_per_second"]),
            int(values["world"]),
            frozenset(keys),
            sum(keys.values()) / max(1, examples),
            examples / max(1, int(values["steps"])),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{file} is no report of `livectr train --report` ({type(error).__name__}: {error})."
        ) from None
    if not (found.rate > 0 and found.keys > 0):
        raise ConfigError(f"{file}: the run learned nothing; report a run that did.")
    return found
