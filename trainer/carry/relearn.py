"""Relearning: a changed pipeline continues from an older generation, and learns the log since then again.

A new feature begins with nothing in it. The more it has learned when it is compared and served, the less it
is behind one that was there from the beginning (bench/carry.py). Generations are kept by age
(trainer.keep_rule): what the old run had learned up to one of them is carried, and no weight learns an
example twice. If the broker has deleted what comes next, the run is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from livectr.ingest.join.state import SourceState
from livectr.system.errors import CheckpointError, MismatchError
from livectr.trainer.checkpoint.age import in_words
from livectr.trainer.checkpoint.keeping import readable
from livectr.trainer.checkpoint.lease import TRIES, Held, hold
from livectr.trainer.checkpoint.manifest import Folder, Manifest
from livectr.trainer.checkpoint.stored import Stored, placed


@dataclass(frozen=True)
class Relearned:
    """Part of the log that is learned again.

    Attributes:
        generation: from which the run continues.
        age_ms: time from it to the newest one.
        asked_ms: least age that was asked for.
        examples: that the old run has learned since.
        passed: records of the old and of the new prediction log up to where the old run is.
    """

    generation: int
    age_ms: int
    asked_ms: int
    examples: int
    passed: tuple[int, int]

    def line(self) -> str:
        """Sentence for people."""
        none = f"; none is {in_words(self.asked_ms / 1000)} old" if self.age_ms < self.asked_ms else ""
        return (
            f"learns again: {self.examples:,} examples since generation {self.generation}, which is "
            f"{in_words(self.age_ms / 1000)} older than the newest{none}"
        )


def of_age(manifests: Sequence[Manifest], age_ms: int) -> Manifest:
    """Newest generation that is at least so much older than the newest one; if none is, the oldest.

    Args:
        manifests: at least one, oldest first.
        age_ms: bound in ms.
    """
    newest = manifests[-1]
    old = [m for m in manifests if m.created_ms and newest.created_ms - m.created_ms >= age_ms]
    return old[-1] if old else manifests[0]


def hold_older(address: str, source: str, age_ms: int) -> tuple[Held, Relearned] | None:
    """Hold the generation from which a run relearns; None if there is no generation.

    Args:
        address: folder or s3:// address of the old checkpoint, whose trainer may run.
        source: URL of the log.
        age_ms: least age, as of `of_age`.

    Raises:
        MismatchError: the log no longer holds what comes after the generation.
        CheckpointError: the generation is torn.
        ConnectError: the object store or the brokers are away.
    """
    place = placed(address)
    for _ in range(TRIES):
        manifests = readable(place)
        if not manifests:
            return None
        newest, chosen = manifests[-1], of_age(manifests, age_ms)
        try:
            _check_log(place, source, chosen, manifests)
            held = hold(place, chosen.generation)
        except FileNotFoundError:
            continue  # its trainer has replaced it
        except CheckpointError as error:
            raise CheckpointError(
                f"generation {chosen.generation} of {place.name} is torn: {error}; say another relearn"
            ) from None
        return held, Relearned(
            chosen.generation,
            newest.created_ms - chosen.created_ms,
            age_ms,
            newest.examples - chosen.examples,
            (newest.predictions, newest.predictions - chosen.predictions),
        )
    raise CheckpointError(f"{place.name} is replaced faster than it can be read; stop its trainer first")


def _check_log(place: Folder | Stored, source: str, chosen: Manifest, all_: Sequence[Manifest]) -> None:
    """Raise MismatchError if the brokers have deleted records that come after a generation."""
    if not source.startswith("kafka:"):
        return  # files stay
    from livectr.ingest.sources.kafka import first_offsets

    reads = _positions(place, chosen)
    firsts = first_offsets(source, reads)
    gone = [where for where, offset in reads.items() if offset < firsts[where]]
    if not gone:
        return
    topic, partition = where = gone[0]
    ages_ms = [
        all_[-1].created_ms - manifest.created_ms
        for manifest in all_
        if all(offset >= firsts.get(at, 0) for at, offset in _positions(place, manifest).items())
    ]
    oldest_ms = max(ages_ms, default=0)
    shorter = (
        f"Say a shorter relearn, such as {oldest_ms // 1000}s, or"
        if oldest_ms >= 1000
        else "Leave relearn out, or"
    )
    raise MismatchError(
        f"the log no longer holds what is to be learned again: {topic} partition {partition} begins at "
        f"offset {firsts[where]:,}, and generation {chosen.generation} of {place.name} goes on at "
        f"{reads[where]:,}. {shorter} let the topic retain its records for longer"
    )


def _positions(place: Folder | Stored, manifest: Manifest) -> dict[tuple[str, int], int]:
    """Topic partition → offset at which a generation continues. Raises FileNotFoundError: it has gone."""
    with hold(place, manifest.generation, kinds=("source",)) as held:
        states = [SourceState.from_parts(parts) for parts in held.restored.sources()]
    return {
        (topic, partition): at.offset
        for state in states
        for (topic, partition), at in state.positions().items()
    }
