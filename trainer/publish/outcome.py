"""Outcome of a failed publish, read back from Redis."""

from __future__ import annotations

import logging
import time
from threading import Event

from livectr.store.manifest import VersionManifest
from livectr.system.errors import MismatchError
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.store_errors import STORE_ERRORS, FencedError, HeldError
from livectr.trainer.publish.version import Pending, Push

LOG = logging.getLogger(__name__)
ASK_AGAIN_S = 0.5
SAY_AGAIN_S = 30.0


def outcome_of(store: RedisStore, pending: Pending, before: bytes, closing: Event) -> Push:
    """Ask Redis, however long it is away, for the outcome of a version that was under way.

    A new epoch fences out all earlier commands of this trainer, so that Redis holds the outcome. While the
    namespace is held, nothing is asked: a rollback may be writing under an epoch of its own.

    Args:
        store: whose namespace is asked.
        pending: version that was under way.
        before: text of the manifest before.
        closing: the process ends.

    Returns:
        FLIPPED, FAILED, SUPERSEDED, LOST or FENCED; UNKNOWN once the process is closing.
    """
    say_at = time.monotonic()
    while not closing.is_set():
        try:
            whole, now = store.fence.renew(), store.manifest_text()
            kept = pending.full or (now == before and store.is_complete(VersionManifest.from_json(before)))
        except FencedError:
            return Push.FENCED
        except HeldError:
            closing.wait(ASK_AGAIN_S)
            continue
        except STORE_ERRORS as error:
            if time.monotonic() >= say_at:
                LOG.warning("version %d: Redis cannot be asked: %s", pending.manifest.version, error)
                say_at = time.monotonic() + SAY_AGAIN_S
            closing.wait(ASK_AGAIN_S)
            continue
        if now == pending.text and whole:
            return Push.FLIPPED
        if whole and superseding(now, pending.manifest) is not None:
            return Push.SUPERSEDED
        return Push.FAILED if whole and kept else Push.LOST
    return Push.UNKNOWN


def superseding(text: bytes | None, mine: VersionManifest) -> VersionManifest | None:
    """Manifest in Redis if a rollback of the same run has published it, with a number not below `mine`."""
    try:
        held = VersionManifest.from_json(text or b"")
    except (ValueError, MismatchError):
        return None
    same_run = held.run_id == mine.run_id and held.epoch != mine.epoch
    return held if same_run and held.version >= mine.version else None
