"""Kafka: JSON events a second from a real broker, one event a message, on this machine.

    decode      the source alone, on one core: bytes of the broker → Arrow columns
    features    source → label join → look-ups → features, on all cores
    write       the producer alone, on one core, acknowledged; and `livectr logs simulate`, which makes events

Peers decode on one core, too: kafka-python's consumer or confluent-kafka's (librdkafka), and orjson. They end
with a Python dictionary for each event, as a user's own code would. All read the same topics in turn.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from bench.environment import python
from bench.rows import row
from livectr.local.kafka import Broker, create_topics

EVENTS, QUICK_EVENTS = 5_000_000, 100_000
ROUNDS = 3
PARTITIONS = 2
PEERS = {"kafka-python, orjson": ("kafka_python", 5.0), "confluent-kafka, orjson": ("confluent", 2.0)}
"""Peer → module, and the goal of the ratio."""
GOAL_DECODE, GOAL_FEATURES, GOAL_WRITE = 500_000, 300_000, 200_000
WRITERS = {"kafka-python": "kafka-python", "confluent-kafka": "confluent"}
"""Peer → its way in `bench.kafka.write`."""


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of the benchmark's table. Raises ConfigError: the peers cannot be installed, or no Java."""
    events = QUICK_EVENTS if quick else EVENTS
    peers = str(
        python(Path(__file__).parent / "peers" / "packages.txt", program="bench kafka", beside_ours=True)
    )
    workload = f"{events:,} JSON events of impressions and clicks, {PARTITIONS} partitions"
    with Broker(heap_mb=1024) as broker:
        create_topics(broker.url, {"impressions": PARTITIONS, "clicks": PARTITIONS, "users": 1, "ads": 1})
        _measured(peers, "bench.kafka.fill", broker.url, str(events))
        rates: dict[str, list[float]] = {}
        for _ in range(1 if quick else ROUNDS):
            rates.setdefault("ours", []).append(_measured(sys.executable, "bench.kafka.decode", broker.url))
            for name, (module, _) in PEERS.items():
                module = f"bench.kafka.peers.{module}"
                rates.setdefault(name, []).append(_measured(peers, module, broker.url))
            features = _measured(sys.executable, "bench.kafka.features", broker.url)
            rates.setdefault("features", []).append(features)
    with Broker(heap_mb=1024) as broker:
        for _ in range(1 if quick else ROUNDS):
            for way in ("ours", *WRITERS.values(), "simulate"):
                written = _measured(peers, "bench.kafka.write", way, broker.url, str(events))
                rates.setdefault(f"write {way}", []).append(written)
    rate = {name: statistics.median(found) for name, found in rates.items()}
    return [
        _own("decode, one core", workload, rate["ours"], GOAL_DECODE),
        *(
            row(
                "decode, one core",
                workload,
                "events/s",
                rate["ours"],
                peer_name=name,
                peer=rate[name],
                goal=goal,
            )
            for name, (_, goal) in PEERS.items()
        ),
        _own("join and features, all cores", workload, rate["features"], GOAL_FEATURES),
        *(
            row(
                "write, one core",
                workload,
                "events/s",
                rate["write ours"],
                peer_name=name,
                peer=rate[f"write {way}"],
            )
            for name, way in WRITERS.items()
        ),
        _own("simulate, one core", workload, rate["write simulate"], GOAL_WRITE),
    ]


def _own(figure: str, workload: str, ours: float, goal: float) -> dict[str, object]:
    return {**row(figure, workload, "events/s", ours), "goal": goal, "met": ours >= goal}


def _measured(python: str, module: str, *arguments: str) -> float:
    """Events a second, the last word that a process prints."""
    process = subprocess.run(
        [python, "-m", module, *arguments], check=True, text=True, stdout=subprocess.PIPE
    )
    return float(process.stdout.split()[-1])
