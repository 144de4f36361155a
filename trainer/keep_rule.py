"""Generations that are kept for rollbacks, by their age: dense for the last minutes, sparse for the last day.

For each age A of the rule, time is cut into spans of that length, and the first generations of the newest two
spans that have any are kept. So there is always one that is between A and 2 A old, once the run is that old.
A trainer that was away for a day keeps what there was. Where an age is a multiple of another, its spans
begin with spans of that, and few generations serve many ages.

The newest two generations, from which a run resumes, are kept anyway. A generation that was written while
versions were held or batches skipped is not kept: its model was never served, and nobody would go back to it.
So what is there when a hold begins stays until it ends.

Generations name the same files as far as they can (trainer.checkpoint.table_chain). What the older ones take
beyond the files of the newest two is bounded; the oldest go first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from livectr.system.durations import duration_ms
from livectr.system.errors import ConfigError

AGES = "1m,5m,15m,1h,6h,1d"
TIMES_NEWEST, LEAST_BYTES = 4, 1 << 30
"""Default of the bytes of older generations: sizes of the newest, but at least so many bytes."""


def parse_ages(text: str) -> tuple[int, ...]:
    """Ages in ms of a setting such as "1m,15m,1h", rising; "none": no age. Raises ConfigError."""
    if text.strip() == "none":
        return ()
    try:
        return tuple(sorted({duration_ms(age.strip(), "keep_ages") for age in text.split(",")}))
    except ConfigError:
        raise ConfigError(
            f'keep_ages is {text!r}, but must be durations with commas between, such as "{AGES}", or none'
        ) from None


class Named(Protocol):
    """File of a generation (trainer.checkpoint.manifest.FileEntry)."""

    @property
    def path(self) -> str:
        """Path, relative to the checkpoint."""

    @property
    def bytes(self) -> int:
        """Size."""


class Generation(Protocol):
    """Generation of a checkpoint (trainer.checkpoint.manifest.Manifest)."""

    @property
    def generation(self) -> int:
        """Number."""

    @property
    def created_ms(self) -> int:
        """Time, ms since 1970; 0: not known."""

    @property
    def examples(self) -> int:
        """Examples that are learned."""

    @property
    def sound(self) -> bool:
        """Tell if versions were published, and batches learned, when it was written."""

    @property
    def files(self) -> Sequence[Named]:
        """Files, of older generations too."""


Kept = TypeVar("Kept", bound=Generation)


@dataclass(frozen=True)
class KeepRule:
    """Rule of the generations that are kept.

    Attributes:
        ages_ms: ages, rising; (): no older generation is kept.
        most_bytes: of files that only older generations name; None: the default.
    """

    ages_ms: tuple[int, ...] = ()
    most_bytes: int | None = None

    def kept(self, older: Sequence[Kept], newest: Sequence[Kept] = ()) -> list[Kept]:
        """Choose among the generations before the newest two, oldest first; the rest may go.

        Args:
            older: generations, oldest first.
            newest: those that are kept anyway: their files take no further space.
        """
        may = [m for m in older if m.created_ms and m.examples and m.sound]
        if not may:
            return []
        chosen = set[int]()
        for age_ms in self.ages_ms:
            first: dict[int, int] = {}  # span → its first generation
            for manifest in may:
                first.setdefault(manifest.created_ms // age_ms, manifest.generation)
            chosen |= {first[span] for span in sorted(first)[-2:]}
        return self._bounded([m for m in may if m.generation in chosen], newest)

    def _bounded(self, chosen: list[Kept], newest: Sequence[Kept]) -> list[Kept]:
        """Leave out the oldest until the others fit."""
        held = {file.path for manifest in newest for file in manifest.files}
        size = sum(file.bytes for file in newest[-1].files) if newest else 0
        left = max(TIMES_NEWEST * size, LEAST_BYTES) if self.most_bytes is None else self.most_bytes
        fit: list[Kept] = []
        for manifest in reversed(chosen):
            more = {file.path: file.bytes for file in manifest.files if file.path not in held}
            left -= sum(more.values())
            if left < 0:
                break
            held |= more.keys()
            fit.append(manifest)
        return fit[::-1]
