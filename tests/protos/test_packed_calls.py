"""Packed script calls: the bytes of redis-py's packing, and scripts that Redis does not know any more."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import redis
from hiredis import pack_command

from livectr.local.redis_servers import Cluster
from livectr.protos.keyspace import Keyspace
from livectr.protos.measured_cluster import MeasuredCluster
from livectr.protos.packed_calls import PackedCall, framed, sha
from livectr.protos.redis_client import connect_redis
from livectr.protos.store import encode_slots, slot_matrix

KEYS = np.arange(-50, 50)
ROWS = np.arange(300, dtype=np.float32).reshape(100, 3)
SPACE = Keyspace()
WRITE = "for i = 2, #KEYS do redis.call('SET', KEYS[i], ARGV[1 + i]) end return ARGV[1]"


def calls(space: Keyspace) -> Iterator[PackedCall]:
    """A call for each key, so that servers have more under way than they may."""
    names, slots = framed(space.row_matrix("1-0", "ad", KEYS)), framed(slot_matrix(7, ROWS))
    for i in range(len(KEYS)):
        key = space.bucket_epoch(space.bucket_of(space.rows("1-0", "ad", KEYS[i : i + 1])[0]))
        yield PackedCall(WRITE, key, [i, b"two"], names[i : i + 1], slots[i : i + 1])


def test_the_bytes_are_those_of_redis_py() -> None:
    names, slots = framed(SPACE.row_matrix("1-0", "ad", KEYS)), framed(slot_matrix(7, ROWS))
    call = PackedCall(WRITE, "key", [12, b"a\r\nb"], names, slots)
    plain = call.plain()
    assert plain.keys == ["key", *SPACE.rows("1-0", "ad", KEYS)]
    assert plain.args == [12, b"a\r\nb", *encode_slots(7, ROWS)]
    words = ["EVALSHA", sha(WRITE), len(plain.keys), *plain.keys, *plain.args]
    assert call.command == pack_command(tuple(words))
    empty = PackedCall(WRITE, "key", [], names[:0], slots[:0])
    assert empty.command == pack_command(("EVALSHA", sha(WRITE), 1, "key"))
    assert (empty.plain().keys, empty.plain().args) == (["key"], [])


@pytest.mark.parametrize("clustered", [False, True])
def test_every_call_is_answered(redis_url: str, redis_cluster: Cluster, clustered: bool) -> None:
    """Also those on a server that loses the script meanwhile."""
    redis_cluster.empty()
    redis.Redis.from_url(redis_url).flushall()
    url, space = (redis_cluster.url, Keyspace(clustered=True)) if clustered else (redis_url, SPACE)
    client = connect_redis("test", url, timeout_s=10)
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
