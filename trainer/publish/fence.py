"""Fencing in Redis: decides which trainer may write and which version is served.

    {namespace}:epoch      number of the trainer that may write; the same in every bucket
    {namespace}:owner      random word of the process that took that number
    {namespace}:highest    highest version number that was ever begun: no number is used for two versions
    {namespace}:pushing    version that is being pushed; its flip removes the mark
    {namespace}:log:v      entry of version v in the publish log (trainer.publish.log.entries)
    {namespace}:pushed:r   mark of the last share that rank r has written, set after its last key: its push,
                           as VERSION-EPOCH-CREATED (store.keyspace.seal_mark), since a version that was
                           held is pushed again under its number

A command whose answer was lost may have been carried out. It may also be carried out later, when a connection
that stalled is read at last. So a trainer that does not know the outcome of a publish takes a new epoch
(RENEW). From then on no earlier command can take effect, and the contents of Redis are the outcome.

A failover to a replica keeps a prefix of what was written, and connections that were idle meanwhile do not
break. So a share counts when the server that has taken its mark is the server that took its first key (its
run id), and a flip needs the marks of all ranks: a server that has them has all that was written before them.

While the namespace is held (store.hold), no version is flipped, and a trainer that was fenced out by a
rollback of its own run waits: RENEW would fence out the rollback. The scripts look at the hold themselves, so
that a hold counts from the moment at which its key is there.

In a cluster the buckets are on other nodes than the keys above: trainer.publish.bucket_seals has the rules.

The scripts (trainer.publish.fence_scripts) answer 'OK', 'FENCED' (another trainer may write), 'LOST' (the
published version is gone) or 'HELD'; TAKE and RENEW answer with numbers.
"""

import uuid

from livectr.store.keyspace import BUCKETS
from livectr.trainer.publish.bucket_seals import claim_buckets
from livectr.trainer.publish.fence_scripts import CLAIM, RENEW, TAKE
from livectr.trainer.publish.store_connection import StoreConnection


class Fence:
    """Epochs of a namespace, as a trainer process takes them.

    Attributes:
        used: highest version number that `renew` has found.
    """

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection
        self.used = 0
        self._owner = uuid.uuid4().hex
        self._takes = False
        """This process takes epochs: rank 0, or a rollback."""

    def highest(self) -> int | None:
        """Highest version number that was ever begun; None if Redis has none, or lost it."""
        return self._connection.number(self._connection.space.highest)

    def take(self, seen: bytes | None, *, epoch: int = 0, version: int = 0) -> int | None:
        """Become the trainer of this namespace: every trainer of a lower epoch is fenced out from now on.

        A compare-and-swap: nothing is done if another manifest stands in Redis than the caller has seen.

        Args:
            seen: text of the manifest that the caller has seen.
            epoch: highest epoch that was used before, whatever Redis says.
            version: highest version number that was used before, whatever Redis says.

        Returns:
            The highest version number that was ever begun; None if nothing was done.

        Raises:
            MismatchError: another program wrote the numbers.
        """
        self._takes = True
        connection, space = self._connection, self._connection.space
        for name in (space.epoch, space.highest):
            connection.number(name)
        epoch = max(epoch, *(held for held, _ in self._fences()), 0)
        keys = [space.epoch, space.owner, space.manifest, space.highest]
        answer = connection.call(TAKE, keys, [epoch, self._owner, seen or b"", version])
        if answer[0] == -1:
            return None
        self.claim(answer[0])
        return int(answer[1])

    def share_owner(self) -> None:
        """Write beside the trainer: an epoch that this process takes can be renewed by the trainer."""
        owner = self._connection.blob(self._connection.space.owner)
        self._owner = (owner or self._owner.encode()).decode()

    def renew(self) -> bool:
        """Take a new epoch, so that no earlier command of this trainer can still take effect.

        Returns:
            True if Redis still held the fences.

        Raises:
            FencedError: another trainer has taken over.
            HeldError: the namespace is held.
        """
        connection, space = self._connection, self._connection.space
        highest = connection.epoch
        for held, owner in self._fences():
            if held > connection.epoch and owner != self._owner:
                connection.check(b"FENCED")
            highest = max(highest, held)
        keys = [space.epoch, space.owner, space.hold, space.highest]
        answer = connection.call(RENEW, keys, [highest, self._owner])
        if answer[0] < 0:
            connection.check(b"FENCED" if answer[0] == -1 else b"HELD")
        self.used = int(answer[2])
        return self.claim(answer[0]) and bool(answer[1])

    def claim(self, epoch: int) -> bool:
        """Set the fence of all buckets to `epoch`.

        Returns:
            True if no bucket had lost its fence.

        Raises:
            FencedError: a bucket has a higher epoch.
        """
        connection = self._connection
        connection.epoch = epoch
        answers = [connection.call(CLAIM, [connection.space.epoch], [epoch])]
        if answers[0] != b"FENCED":
            owner = self._owner if self._takes else ""
            answers += connection.client.call_all([*claim_buckets(connection.space, epoch, owner)])
        for answer in answers:
            if answer != b"LOST":
                connection.check(answer)
        return b"LOST" not in answers

    def _fences(self) -> list[tuple[int, str]]:
        """Epoch and owner of each bucket of a cluster that has a fence."""
        connection, space = self._connection, self._connection.space
        if not space.clustered:
            return []
        every = range(BUCKETS)
        names = [space.bucket_epoch(b) for b in every] + [space.bucket_owner(b) for b in every]
        values = connection.client.fetch([name.encode() for name in names])
        epochs = map(connection.parsed, names[:BUCKETS], values[:BUCKETS])
        pairs = zip(epochs, values[BUCKETS:], strict=True)
        return [(epoch, (owner or b"").decode()) for epoch, owner in pairs if epoch is not None]
