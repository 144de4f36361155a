"""Feast's online store on Redis and ONNX Runtime, in one process and without a server before it.

    python -m bench.serving.peers.feast_store MODEL.npz REDIS_HOST:PORT FOLDER

Reads requests as JSON lines; answers with the ranked ads and the milliseconds that it took.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
from feast.types import Array, Float32

from bench.serving.peers.network import FLOATS, Network

CONFIG = """
project: contest
registry: {folder}/registry.db
provider: local
online_store:
  type: redis
  connection_string: {redis}
entity_key_serialization_version: 3
"""


def store(redis: str, folder: Path, rows: dict[str, np.ndarray]) -> FeatureStore:
    """A feature store with a view of the users' rows and another of the ads'."""
    folder.mkdir(exist_ok=True)
    (folder / "feature_store.yaml").write_text(CONFIG.format(folder=folder, redis=redis))
    made = FeatureStore(str(folder))
    now = datetime.now(tz=UTC)
    for name, values in rows.items():
        frame = pd.DataFrame({f"{name}_id": np.arange(len(values)), "time": now})
        frame["row"] = list(values.reshape(len(values), -1))
        path = folder / f"{name}.parquet"
        frame.to_parquet(path)
        entity = Entity(name=name, join_keys=[f"{name}_id"], value_type=ValueType.INT64)
        source = FileSource(name=name, path=str(path), timestamp_field="time")
        view = FeatureView(
            name=f"{name}_rows", entities=[entity], schema=[Field(name="row", dtype=Array(Float32))],
            source=source, ttl=timedelta(days=1),
        )  # fmt: skip
        made.apply([entity, view])
        made.write_to_online_store(view.name, df=frame)
    return made


def main() -> None:
    file, redis, folder = sys.argv[1:]
    network = Network(file)
    features = store(redis, Path(folder), {"user": network.users, "ad": network.ads})
    print("ready on stdin", flush=True)

    def rows(view: str, entities: list[dict[str, int]]) -> np.ndarray:
        found = features.get_online_features(features=[f"{view}:row"], entity_rows=entities)
        return np.array(found.to_dict()["row"], np.float32).reshape(len(entities), -1, FLOATS)

    for line in sys.stdin:
        request = json.loads(line)
        started = time.perf_counter()
        visit = request["context"]
        user = rows("user_rows", [{"user_id": visit["user_id"]}])
        ads = rows("ad_rows", [{"ad_id": ad} for ad in request["ads"]])
        ranked = network.rank(visit, user, ads, request["bids"])
        print(json.dumps({**ranked, "ms": (time.perf_counter() - started) * 1000}), flush=True)


if __name__ == "__main__":
    main()
