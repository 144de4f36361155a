"""Records that no trainer likes, written beside the traffic: poison, and events of clocks that are wrong."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
from kafka import KafkaProducer

from livectr.simulator.partition import integer_keys, partitions_of

HOUR_MS = 3_600_000


def poison(pick: random.Random) -> bytes:
    """One value that is no event of the simulator's topics."""
    bomb = io.BytesIO()
    batch = pa.RecordBatch.from_arrays([pa.array([0] * 5_000_000, pa.int64())], ["ts"])
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(bomb, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return pick.choice(
        [
            b'{"request_id":-1,"unused":' + b"[" * 1200 + b"]" * 1200 + b"}",
            b'{"request_id":-1,"user_id":1e999,"ad_id":' + b"9" * 400 + b"}",
            b"\xff\xfe\x00{",
            b"[]",
            b"",
            pick.randbytes(200),
            bomb.getvalue(),
            bomb.getvalue()[:-100],
        ]
    )


def bad_clock(pick: random.Random, user: int, now_ms: int) -> dict[str, Any]:
    """An impression of a device whose clock is wrong; its request id is no other's."""
    wrong = [now_ms + HOUR_MS, now_ms + 23 * HOUR_MS, now_ms - HOUR_MS, now_ms // 1000, 0, 2**62, 2**63 - 1]
    return {
        "request_id": -pick.randrange(1, 2**40),
        "user_id": user,
        "ad_id": 1,
        "ts": pick.choice(wrong),
        "position": 0,
        "page": "home",
        "query": "",
        "context": "{}",
    }


class BadRecords:
    """Writes them to the simulator's topics. users: as the simulator has; partitions: of each topic."""

    def __init__(self, servers: str, users: int, partitions: int, seed: int) -> None:
        self.poisoned = self.clocks = 0
        self._producer: Any = KafkaProducer(bootstrap_servers=servers, max_block_ms=60_000)
        self._users, self._partitions, self._pick = users, partitions, random.Random(seed)

    def write_poison(self, count: int) -> None:
        for _ in range(count):
            topic = self._pick.choice(("impressions", "clicks", "users", "ads", "ad_images"))
            partition = self._pick.randrange(self._partitions)
            self._producer.send(topic, poison(self._pick), key=b"poison", partition=partition)
        self._producer.flush(60)
        self.poisoned += count

    def write_clocks(self, count: int, now_ms: int) -> None:
        """Events of different users, and eight in a row of one."""
        users = [self._pick.randint(1, self._users) for _ in range(count)]
        for user in [*users, *[users[0]] * 8]:
            (key,) = integer_keys(np.array([user]))
            (partition,) = partitions_of([key], self._partitions).tolist()
            value = json.dumps(bad_clock(self._pick, user, now_ms)).encode()
            self._producer.send("impressions", value, key=key, partition=partition)
        self._producer.flush(60)
        self.clocks += len(users) + 8

    def close(self) -> None:
        self._producer.close(10)
