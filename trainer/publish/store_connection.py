"""Connection of a trainer process to a namespace in Redis: blobs, and scripts that are fenced by its epoch.

Every script begins with the fence of its bucket (trainer.publish.fence). What it answers is raised here.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from livectr.store.layout import Keyspace, without_password
from livectr.store.measured_redis import ScriptCall
from livectr.store.redis_client import connect_redis
from livectr.store.redis_errors import REDIS_ERRORS, refusal
from livectr.store.redis_url import is_clustered
from livectr.system.errors import ConfigError, ConnectError, MismatchError
from livectr.trainer.publish.store_errors import FencedError, HeldError, LostError

CHUNKS_IN_FLIGHT = 16


class StoreConnection:
    """Connection to a namespace.

    Args:
        url: of `store.redis_url`.
        namespace: prefix of all keys: letters, digits, - and _.

    Attributes:
        url: without its password.
        space: names of the namespace's keys.
        client: of Redis.
        epoch: number of this trainer.

    Raises:
        ConnectError: Redis does not answer.
        ConfigError: the URL or the namespace cannot be used.
    """

    def __init__(self, url: str, namespace: str) -> None:
        if not namespace or not all(c.isalnum() or c in "_-" for c in namespace):
            raise ConfigError(f"namespace {namespace!r}: use letters, digits, - and _")
        self.url = without_password(url)
        self.space = Keyspace(namespace, clustered=is_clustered(url))
        self.epoch = 0
        try:
            self.client = connect_redis("publish", url, timeout_s=30)
            self.client.ping()
        except REDIS_ERRORS as error:
            raise ConnectError(refusal(self.url, error, "--publish")) from None

    def blob(self, name: str) -> bytes | None:
        """Read a blob; None if it is gone."""
        value = self.client.get(name)
        return value.encode() if isinstance(value, str) else value

    def write_blob(self, name: str, value: bytes) -> None:
        """Set a blob. Its name holds the epoch, so no other trainer writes it."""
        self.client.set(name, value)

    def number(self, name: str) -> int | None:
        """Read a number; None if there is none. Raises MismatchError if another program wrote it."""
        return self.parsed(name, self.client.get(name))

    def parsed(self, name: str, value: bytes | str | None) -> int | None:
        """Number that a key holds. Raises MismatchError if another program wrote it."""
        try:
            return None if value is None else int(value)
        except ValueError:
            raise MismatchError(
                f"{name} in Redis at {self.url} was written by another program ({value!r:.40}); "
                "use another namespace"
            ) from None

    def call(self, source: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Answer of one script, which its caller checks."""
        return self.client.call(ScriptCall(source, keys, args))

    def run(self, source: str, keys: Sequence[str], args: Sequence[Any]) -> None:
        """Run one script of the namespace's slot, fenced by its epoch.

        Args:
            source: Lua text of the script.
            keys: after the epoch's key.
            args: after the own epoch.

        Raises:
            FencedError, LostError, HeldError: see `check`.
        """
        self.check(self.call(source, [self.space.epoch, *keys], [self.epoch, *args]))

    def run_all(self, calls: Iterator[tuple[str, int, list[bytes], list[Any]]]) -> None:
        """Run scripts of buckets (`bucket_seals.Calls`), CHUNKS_IN_FLIGHT in one round trip.

        Raises:
            FencedError, LostError: see `check`.
        """
        batch: list[ScriptCall] = []
        for script, bucket, names, args in calls:
            epoch = self.space.bucket_epoch(bucket)
            batch.append(ScriptCall(script, [epoch, *names], [self.epoch, *args]))
            if len(batch) >= CHUNKS_IN_FLIGHT:
                self._run_batch(batch)
                batch = []
        self._run_batch(batch)

    def _run_batch(self, batch: Sequence[ScriptCall]) -> None:
        for answer in self.client.call_all(batch):
            self.check(answer)

    def check(self, answer: object) -> None:
        """Raise what a script's answer says, unless it is OK.

        Raises:
            FencedError: another trainer has taken over.
            HeldError: the namespace is held.
            LostError: Redis was emptied.
        """
        if answer == b"OK":
            return
        if answer == b"FENCED":
            raise FencedError(
                f"another trainer has taken over namespace {self.space.namespace!r} in Redis at {self.url}; "
                "this one ends (run one trainer for each namespace)"
            )
        if answer == b"HELD":
            raise HeldError(f"namespace {self.space.namespace!r} in Redis at {self.url} is held")
        raise LostError(f"Redis at {self.url} no longer holds the version that was published there")
