"""Publishing of a run: the store in Redis, and a publisher that has taken over its namespace."""

from __future__ import annotations

from livectr.trainer.des.step import DesStep
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.succession import Cursor
from livectr.trainer.publish.version import PublishedModel
from livectr.trainer.setup import Setup


def open_store(setup: Setup, address: str) -> RedisStore:
    """Store at a Redis URL. Raises UserError if it cannot be one."""
    rate = setup.options.publish_rate / setup.world
    return setup.closed(RedisStore(address, setup.options.namespace, full_rate=rate))


def open_publisher(
    setup: Setup, store: RedisStore, step: DesStep, cursor: Cursor | None, *, learned: int, warmed: int
) -> Publisher:
    """Publisher that has taken over its namespace. Collective; raises as `Publisher.start` does.

    Args:
        setup: of this rank.
        store: whose namespace is taken over.
        step: whose model is published.
        cursor: point that an earlier process of the run had reached; None: none has published.
        learned: examples of the checkpoint.
        warmed: examples of the run whose parts this run began with.
    """
    options = setup.options
    segments = [(s.name, s.dim) for s in step.spec.layout.segments]
    model = PublishedModel(setup.pipeline.fingerprint, segments, options.seed, tuple(sorted(step.from_zero)))
    publisher = setup.closed(
        Publisher(store, setup.control, model, min_examples=options.min_examples - warmed)
    )
    publisher.start(cursor, learned=learned, take_over=options.take_over)
    return publisher
