"""Taking over a namespace in Redis: look at what it holds, then claim the next epoch."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

from livectr.system.errors import MismatchError
from livectr.trainer.publish.log.resumption import Resumption, resumption_at
from livectr.trainer.publish.redis_store import RedisStore
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


def claim_namespace(
    store: RedisStore,
    lookout: PublishedWatch,
    cursor: Cursor | None,
    *,
    learned: int,
    fingerprint: str,
    take_over: bool,
) -> Claim:
    """Fence out all other trainers, if this trainer may; from then on nobody else writes. Rank 0 only.

    Args:
        lookout: started once the namespace is claimed.
        cursor: of the checkpoint that this run resumes from; None: a new run.
        learned: examples of that checkpoint.
        fingerprint: of the pipeline.
        take_over: replace another run's version, or a newer version.

    Raises:
        MismatchError: another program wrote the manifest.
        STORE_ERRORS: Redis did not answer.
    """
    where = f"namespace {store.space.namespace!r} in Redis at {store.url}"
    while True:
        text = store.manifest_text()
        try:
            held = store.manifest_of(text)
        except MismatchError:
            if not take_over:
                raise
            held = None
        why = refusal(held, cursor, learned=learned, fingerprint=fingerprint, where=where)
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
