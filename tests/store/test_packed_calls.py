"""Packed script calls: the bytes of redis-py's packing, and scripts that Redis does not know any more."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import redis
from hiredis import pack_command

from livectr.store.keyspace import Keyspace, by_bucket, key_bytes
from livectr.store.layout import encode_slots, row_bytes, slot_head
from livectr.store.measured_cluster import MeasuredCluster
from livectr.store.packed_calls import PackedCall, framed, sha
from livectr.store.redis_client import connect_redis
from tests.redis_cluster import Cluster

KEYS = np.arange(-50, 50)
ROWS = np.arange(300, dtype=np.float32).reshape(100, 3)
SPACE = Keyspace()
WRITE = "for i = 2, #KEYS do redis.call('SET', KEYS[i], ARGV[1 + i]) end return ARGV[1]"


def calls(space: Keyspace) -> Iterator[PackedCall]:
    """A call for each key, so that servers have more under way than they may."""
    for i in range(len(KEYS)):
        keys = KEYS[i : i + 1]
        bucket = space.bucket_of(space.rows("1-0", "ad", keys)[0])
        names = framed(key_bytes(keys), space.row_head("1-0", "ad", bucket))
        slots = framed(row_bytes(ROWS[i : i + 1]), slot_head(7))
        yield PackedCall(WRITE, space.bucket_epoch(bucket), [i, b"two"], names, slots)


def test_the_bytes_are_those_of_redis_py() -> None:
    (bucket, at), *_ = by_bucket(KEYS)
    assert len(at) > 1
    names = framed(key_bytes(KEYS[at]), SPACE.row_head("1-0", "ad", bucket))
    slots = framed(row_bytes(ROWS[at]), slot_head(7))
    call = PackedCall(WRITE, "key", [12, b"a\r\nb"], names, slots)
    plain = call.plain()
    assert plain.keys == ["key", *SPACE.rows("1-0", "ad", KEYS[at])]
    assert plain.args == [12, b"a\r\nb", *encode_slots(7, ROWS[at])]
    words = ["EVALSHA", sha(WRITE), len(plain.keys), *plain.keys, *plain.args]
    assert call.command == pack_command(tuple(words))
    empty = PackedCall(WRITE, "key", [], names[:0], slots[:0])
    assert empty.command == pack_command(("EVALSHA", sha(WRITE), 1, "key"))  # type: ignore[arg-type]  # one-tuple in hiredis' stub
    assert (empty.plain().keys, empty.plain().args) == (["key"], [])


@pytest.mark.parametrize("clustered", [False, True])
def test_every_call_is_answered(redis_url: str, redis_cluster: Cluster, clustered: bool) -> None:
    """Also those on a server that loses the script meanwhile."""
    redis_cluster.empty()
    redis.Redis.from_url(redis_url).flushall()
    url, space = (redis_cluster.url, Keyspace(clustered=True)) if clustered else (redis_url, SPACE)
    client = connect_redis("test", url, timeout_s=60)
    assert isinstance(client, MeasuredCluster) == clustered
    servers = redis_cluster.clients() if clustered else [redis.Redis.from_url(redis_url)]

    def forgetful() -> Iterator[PackedCall]:
        for i, call in enumerate(calls(space)):
            if i == 40:
                for server in servers:
                    server.script_flush()
            yield call

    found = [int(answer) for answer in client.call_packed(forgetful(), WRITE)]
    assert sorted(found) == list(range(len(KEYS)))
    assert client.fetch(space.rows("1-0", "ad", KEYS)) == encode_slots(7, ROWS)
    wrong = "return redis.error_reply('wrong')"
    names = framed(np.zeros((0, 1), np.uint8))
    with pytest.raises(redis.ResponseError, match="wrong"):
        list(client.call_packed([PackedCall(wrong, "key", [], names, names)], wrong))
    assert client.ping()
    client.close()
