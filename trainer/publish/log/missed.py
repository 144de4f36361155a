"""Keys that a restarted trainer's first delta holds beside its own changes: read, and counted as changed.

A key with a row counts as updated, a key without one as erased. From there on they are changes like all
others: they wait for a version that is flipped, and the next checkpoint lists them. Look-up rows need no
list, as every process reads their tables again. The first version of a process removes look-up rows and
histories that Redis has and the trainer lacks (trainer.publish.sweep).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from livectr.ingest.join.examples import ExampleSource
from livectr.store.layout import HISTORY, decode_changed
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.des.step import DesStep
from livectr.trainer.placement.placement import owners_by_key
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.store_errors import STORE_ERRORS

LOG = logging.getLogger(__name__)
I64 = npt.NDArray[np.int64]


def catch_up(publisher: Publisher, step: DesStep, source: ExampleSource, restored: Restored | None) -> None:
    """Count keys as changed by which Redis and the checkpoint may differ.

    Collective, after the first mark of the changes. The next version is complete if the keys cannot be read.
    """
    if publisher.resumption is None or publisher.last is None or restored is None:
        return
    lists = [restored.unpublished()] if publisher.resumption.unpublished else []
    logged = _logged(publisher.store, publisher.resumption.blobs)
    if not publisher.control.gather(np.array([logged is not None])).all():
        publisher.begin_again()
        return
    keys = _merged([*lists, *(logged or ())])
    for name, table in step.tables.items():
        own = keys.get(name, np.empty(0, np.int64))
        if name in step.spec.placement.split:
            own = own[owners_by_key(own, publisher.control.world) == step.rank]
        table.touch(own)
    for name, users in keys.items():
        if name.startswith(HISTORY):
            for behaviors in source.behaviors:
                behaviors.touch(name.removeprefix(HISTORY), users)
    LOG.info(
        "deltas resume from version %d: %d keys may differ",
        publisher.last.version,
        sum(map(len, keys.values())),
    )


def _logged(store: RedisStore, blobs: Sequence[str]) -> list[dict[str, I64]] | None:
    """Changed keys of each blob, by table; None: they cannot be read."""
    try:
        found = [store.connection.blob(name) for name in blobs]
    except STORE_ERRORS as error:
        LOG.warning("the publish log in Redis at %s cannot be read: %s", store.url, error)
        return None
    try:
        return [decode_changed(blob) for blob in found if blob is not None] if None not in found else None
    except ValueError as error:
        LOG.warning("the publish log in Redis at %s cannot be used: %s", store.url, error)
        return None


def _merged(lists: Iterable[Mapping[str, I64]]) -> dict[str, I64]:
    parts: dict[str, list[I64]] = {}
    for keys in lists:
        for table, some in keys.items():
            parts.setdefault(table, []).append(some)
    return {table: np.unique(np.concatenate(keys)) for table, keys in parts.items()}
