"""Taking over a namespace in Redis: look at what it holds, then claim the next epoch."""

from __future__ import annotations

import logging
import uuid
from dataclasses import asdict, dataclass
from typing import Any

from livectr.system.errors import ConnectError, MismatchError
from livectr.trainer.comm.control import Control
from livectr.trainer.publish.log.resumption import Resumption, resumption_at
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.store_errors import STORE_ERRORS
from livectr.trainer.publish.succession import LOST_NUMBERS, Cursor, refusal
from livectr.trainer.publish.watch import PublishedWatch

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Claim:
    """Outcome of a take-over, which rank 0 broadcasts.

    Attributes:
        refused: reason why this run may not take over; "" if it has.
        epoch: number of this trainer.
        version: highest version number that was ever begun.
        run_id: of the run, in all of its versions.
        least_examples: examples that the model must have learned to be published.
        manifest: text of the version from which deltas resume; "": the next version is complete.
        resumption: lists of the rows that the first delta holds, too; None: no lists.
    """

    refused: str = ""
    epoch: int = 0
    version: int = 0
    run_id: str = ""
    least_examples: int = 0
    manifest: str = ""
    resumption: Resumption | None = None

    @staticmethod
    def from_json(values: dict[str, Any]) -> Claim:
        """Decode `dataclasses.asdict` that went through JSON."""
        return Claim(**{**values, "resumption": Resumption.of(values["resumption"])})


@dataclass(frozen=True)
class Claimant:
    """Trainer that asks for a namespace.

    Attributes:
        cursor: of the checkpoint that its run resumes from; None: a new run.
        learned: examples of that checkpoint.
        fingerprint: of its pipeline.
        take_over: replace another run's version, or a newer version.
    """

    cursor: Cursor | None
    learned: int
    fingerprint: str
    take_over: bool


def claim_namespace(
    store: RedisStore, lookout: PublishedWatch | None, control: Control, claimant: Claimant
) -> Claim:
    """Fence out all other trainers, if this trainer may; from then on nobody else writes. Collective.

    Args:
        store: whose namespace is claimed.
        lookout: rank 0's, started once the namespace is claimed; None on other ranks.
        control: broadcasts rank 0's claim.
        claimant: this trainer.

    Raises:
        MismatchError: this run may not take over (trainer.publish.succession); nothing has been touched.
        ConnectError: Redis does not answer.
    """
    claim = Claim()
    if lookout is not None:
        try:
            claim = _claimed(store, lookout, claimant)
        except STORE_ERRORS as error:
            raise ConnectError(
                f"Redis at {store.url} cannot be used ({error or type(error).__name__}); "
                "mend it or change --publish"
            ) from None
    claim = Claim.from_json(control.broadcast_json(asdict(claim)))
    if claim.refused:
        raise MismatchError(claim.refused)
    store.connection.epoch = claim.epoch
    return claim


def _claimed(store: RedisStore, lookout: PublishedWatch, claimant: Claimant) -> Claim:
    """Claim of rank 0.

    Raises:
        MismatchError: another program wrote the manifest.
        STORE_ERRORS: Redis did not answer.
    """
    cursor, take_over = claimant.cursor, claimant.take_over
    where = f"namespace {store.space.namespace!r} in Redis at {store.url}"
    while True:
        text = store.manifest_text()
        try:
            held = store.manifest_of(text)
        except MismatchError:
            if not take_over:
                raise
            held = None
        why = refusal(held, cursor, learned=claimant.learned, fingerprint=claimant.fingerprint, where=where)
        if why is not None and not take_over:
            return Claim(refused=why)
        used = [(held.version, held.epoch)] if held is not None else []
        if cursor is not None:
            skipped = LOST_NUMBERS if store.fence.highest() is None and cursor.version else 0
            used.append((cursor.version + skipped, cursor.epoch + skipped))
        versions, epochs = zip((0, 0), *used, strict=True)
        highest = store.fence.take(text, epoch=max(epochs), version=max(versions))
        if highest is not None:  # else another manifest stands there by now
            break
    if why is not None:
        LOG.warning("taken over as asked, although %s", why)
    resumption = None
    if held is not None and cursor is not None and why is None:
        resumption = resumption_at(store, held, cursor, highest)
    exact = cursor is not None and cursor.is_at(held) and not store.pushing(held)
    same = exact or resumption is not None
    lookout.start()
    if held is not None and same:
        same = store.is_complete(held) and not lookout.evictions.lost_since(held.evictions)
    return Claim(
        epoch=store.connection.epoch,
        version=highest,
        run_id=cursor.run_id if cursor is not None and cursor.run_id else uuid.uuid4().hex,
        least_examples=held.examples if held is not None and why is None else 0,
        manifest=text.decode() if same and text else "",
        resumption=resumption if same else None,
    )
