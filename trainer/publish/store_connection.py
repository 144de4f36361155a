"""Connection of a trainer process to Redis: fenced scripts, blobs, removal of keys.

Every script begins with the fence of its bucket (trainer.publish.fence). What it answers is raised here.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from livectr.store.layout import Keyspace, without_password
from livectr.store.measured_redis import ScriptCall
from livectr.store.redis_client import connect_redis
from livectr.store.redis_errors import REDIS_ERRORS, refusal
from livectr.store.redis_url import is_clustered
from livectr.system.errors import ConfigError, ConnectError
from livectr.trainer.publish.store_types import FencedError, HeldError, LostError

CHUNKS_IN_FLIGHT = 16


class StoreConnection:
    """Connection to a namespace.

    Args:
        url: of `store.redis_url`.
        namespace: prefix of all keys: letters, digits, - and _.

    Attributes:
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

    def scan(self, pattern: str) -> Iterator[list[bytes]]:
        """Names of keys that match a pattern, in parts."""
        return self.client.scan_all(pattern)

    def unlink(self, names: Sequence[bytes]) -> int:
        """Remove keys; returns how many there were."""
        return self.client.remove(names)

    def drop(self, names: Sequence[str]) -> None:
        """Remove blobs that nobody reads any more."""
        self.client.remove(names)

    def interrupt(self) -> None:
        """Break the connections, so that a thread which waits for an answer fails at once."""
        self.client.interrupt()

    def close(self) -> None:
        self.client.close()

    def _chunks(self, calls: Iterator[tuple[str, int, list[bytes], list[Any]]]) -> None:
        """Run script calls, CHUNKS_IN_FLIGHT in one round trip."""
        batch: list[ScriptCall] = []
        for script, bucket, names, args in calls:
            epoch = self.space.bucket_epoch(bucket)
            batch.append(ScriptCall(script, [epoch, *names], [self.epoch, *args]))
            if len(batch) >= CHUNKS_IN_FLIGHT:
                self._run_all(batch)
                batch = []
        self._run_all(batch)

    def _run_all(self, batch: Sequence[ScriptCall]) -> None:
        for answer in self.client.call_all(batch):
            self._check(answer)

    def _call(self, source: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        return self.client.call(ScriptCall(source, keys, args))

    def _check(self, answer: object) -> None:
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
