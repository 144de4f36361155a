"""Seals of buckets: keys by which each bucket shows that it holds all rows of a version.

A script in a cluster touches the keys of one slot. The flip cannot look at the buckets, which other nodes
hold, and nodes fail over one by one: a replica that takes over keeps a prefix of what its primary took, and
no other node notices. So each bucket has its own proof that it is whole. Its keys, in the bucket's slot:

    {bb-sss}:epoch           the fence: each script compares it, as on a single server
    {bb-sss}:owner           word of the process that took this epoch, or of its trainer
    {bb-sss}:begun           mark of the push that began last, set before its first row
    {bb-sss}:share:r         mark of the last push whose share rank r has written, set after its last key
    …:sentinel               TEXT:mark of the last push that is whole

A mark is VERSION-EPOCH-CREATED (store.keyspace.seal_mark), which no two pushes share. The steps of a push:

    1  begin     epoch, highest number and mark in the namespace's slot; `begun` in every bucket
    2  write     each rank writes rows and values, then its `share` in every bucket. A bucket whose server is
                 another than at step 1 may lack the first rows: the share is lost
    3  seal      a script in every bucket: `begun` and all shares must be of this push, and the sentinels must
                 show the version before (a complete version: every rank's part). They show this version now
    4  flip      the manifest changes by compare-and-swap, after all buckets were sealed

The rules that hold whatever node fails over, and whenever:

A reader never takes a stale row for a right one. It reads version v of a bucket only if the sentinel, read
with the rows, shows v or a later version. A node that lost the tail of v shows an earlier mark; one that
shows v kept all that it took before. A later mark was set where v was whole (step 3).

The trainer notices. Its look-out compares sentinels and blobs with the manifest, and step 3 refuses a delta
on a bucket that lost the version before. In both cases the next version is complete, in a row set of its own.

A zombie cannot damage rows. A trainer that takes over raises the fence of every bucket; then it looks at
`begun`. A push that began under an earlier trainer, though its traces in the namespace's slot may be lost,
has left its mark there: the new trainer begins a row set of its own. A push that had not begun finds the new
epoch when it begins, in the namespace's slot or, if that has failed over, in a bucket, before its first row.
A bucket that fails over and loses the new epoch also lost what was written under it (`LOST`, or an earlier
mark).

No two trainers have an epoch in common. The namespace's slot may lose an epoch that buckets have. So a
trainer that takes an epoch takes more than any bucket has, and a bucket with a higher epoch of another owner
tells a trainer that it was replaced.

A zombie cannot publish. Its flip meets the epoch of the namespace's slot. Where a failover lost that, it may
still flip what it had sealed in all buckets before it was fenced out: a version that is whole, and whose row
set the new trainer does not write to. The new trainer then finds a lower epoch, takes a new one, and
publishes a complete version.

While slots move between nodes, a script on a slot that moves may be refused (TRYAGAIN): the version is
repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from livectr.store.keyspace import BUCKETS, VALUES, Keyspace, seal_mark
from livectr.store.manifest import VersionManifest
from livectr.store.measured_redis import ScriptCall
from livectr.trainer.publish.fence_scripts import CLAIM, FENCE, OPEN, PUSHED, SEAL

CLAIM_BUCKET = """
-- KEYS: epoch, owner; ARGV: epoch, owner or '' to leave it as it is. As CLAIM.
local held, mine = tonumber(redis.call('GET', KEYS[1])), tonumber(ARGV[1])
local owner = redis.call('GET', KEYS[2])
if held and held > mine then return 'FENCED' end
if held == mine and owner and ARGV[2] ~= '' and owner ~= ARGV[2] then return 'FENCED' end
redis.call('SET', KEYS[1], ARGV[1])
if ARGV[2] ~= '' then redis.call('SET', KEYS[2], ARGV[2]) end
return held and 'OK' or 'LOST'
"""

SEAL_BUCKET = (
    FENCE
    + """
-- KEYS: epoch, the rows' sentinel, the values' sentinel, `begun`, all ranks' shares and parts
-- ARGV: epoch, mark of the push, number of ranks, new values of both sentinels; then of a complete version
-- the text of the parts, and of a delta '', values of both sentinels at the version before, and its number
local mark, ranks = ARGV[2], tonumber(ARGV[3])
for i = 4, 4 + ranks do
  if redis.call('GET', KEYS[i]) ~= mark then return 'LOST' end
end
for i = 5 + ranks, #KEYS do
  if redis.call('GET', KEYS[i]) ~= ARGV[6] then return 'LOST' end
end
if ARGV[6] == '' then
  for i = 2, 3 do
    local now, before = redis.call('GET', KEYS[i]), ARGV[5 + i]
    if not now then return 'LOST' end
    if now ~= before then
      local head = string.match(before, '^(.*:)')
      if string.sub(now, 1, #head) ~= head then return 'LOST' end
      local version = tonumber(string.match(string.sub(now, #head + 1), '^%d+'))
      if version <= tonumber(ARGV[9]) then return 'LOST' end
    end
  end
end
redis.call('MSET', KEYS[2], ARGV[4], KEYS[3], ARGV[5])
return 'OK'
"""
)

Calls = Iterator[tuple[str, int, list[bytes], list[Any]]]
"""Script, bucket, keys after the bucket's epoch, arguments after the trainer's."""


def claim_buckets(space: Keyspace, epoch: int, owner: str) -> Iterator[ScriptCall]:
    """Raise the fence of every bucket, in any layout.

    Args:
        space: keys of the namespace.
        epoch: of this trainer.
        owner: of the epoch; "": another rank of the same trainer has said it.
    """
    for b in range(BUCKETS):
        if space.clustered:
            yield ScriptCall(CLAIM_BUCKET, [space.bucket_epoch(b), space.bucket_owner(b)], [epoch, owner])
        else:
            yield ScriptCall(CLAIM, [space.bucket_epoch(b)], [epoch])


def begin_buckets(space: Keyspace, manifest: VersionManifest) -> Calls:
    """Step 1."""
    return ((PUSHED, b, [space.begun(b).encode()], [seal_mark(manifest)]) for b in range(BUCKETS))


def open_buckets(space: Keyspace, rank: int, manifest: VersionManifest) -> Calls:
    """Begin a rank's share of a complete version, in any layout."""
    args = [manifest.sentinel, manifest.fingerprint]
    for b in range(BUCKETS):
        keys = [space.part(b, manifest.row_set, rank).encode(), *space.sentinels(VALUES, [b])]
        yield OPEN, b, keys, args


def seal_server(space: Keyspace, manifest: VersionManifest) -> Calls:
    """Seal a complete version on a single server."""
    args = [manifest.sentinel, manifest.fingerprint]
    for b in range(BUCKETS):
        parts = [space.part(b, manifest.row_set, rank).encode() for rank in range(manifest.world)]
        sentinels = [*space.sentinels(manifest.row_set, [b]), *space.sentinels(VALUES, [b])]
        yield SEAL, b, [*sentinels, *parts], args


def mark_shares(space: Keyspace, rank: int, manifest: VersionManifest) -> Calls:
    """End of step 2."""
    return ((PUSHED, b, [space.share(b, rank).encode()], [seal_mark(manifest)]) for b in range(BUCKETS))


def seal_buckets(space: Keyspace, manifest: VersionManifest, before: VersionManifest | None) -> Calls:
    """Step 3.

    Args:
        space: keys of the namespace.
        manifest: of the version.
        before: version that a delta extends; None: the version is complete.
    """
    ranks = range(manifest.world)

    def values(of: VersionManifest) -> list[str]:
        return [space.sentinel_value(of.sentinel, of), space.sentinel_value(of.fingerprint, of)]

    args = [seal_mark(manifest), manifest.world, *values(manifest)]
    args += [manifest.sentinel] if before is None else ["", *values(before), before.version]
    for b in range(BUCKETS):
        keys = [*space.sentinels(manifest.row_set, [b]), *space.sentinels(VALUES, [b])]
        keys += [name.encode() for name in (space.begun(b), *(space.share(b, rank) for rank in ranks))]
        if before is None:
            keys += [space.part(b, manifest.row_set, rank).encode() for rank in ranks]
        yield SEAL_BUCKET, b, keys, args
