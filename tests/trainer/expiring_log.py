"""Log of users and ads who come for a while and never again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import redis

from livectr.store.layout import Keyspace

PIPELINE = Path(__file__).with_name("left_pipeline.py")
ROWS, LIVE, PAUSE_MS, START_MS = 12_000, 20, 1_000, 1_700_000_000_000
ROOT = "recent(clicks.ad,3,60000)"


def write(root: Path) -> str:
    """Users and ads come for a while and never again."""
    rng = np.random.default_rng(0)
    shown = [
        {"id": i, "user": i // LIVE, "ad": i // LIVE, "ts": START_MS + i * PAUSE_MS} for i in range(ROWS)
    ]
    clicked = [{**row, "ts": row["ts"] + 500} for row in shown if rng.random() < 0.5]
    ads = [{"ad": ad, "ts": START_MS + ad * LIVE * PAUSE_MS, "kind": ad % 7} for ad in range(ROWS // LIVE)]
    for topic, log in (("shown", shown), ("clicks", clicked), ("ads", ads)):
        (root / topic).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(log), root / topic / "0.parquet", row_group_size=100)
    return f"file:{root}"


def check_redis(client: redis.Redis) -> None:
    """Redis has the histories and look-up rows of the log's end."""
    count = ROWS // LIVE
    past = client.mget(Keyspace().histories(ROOT, np.arange(count)))
    kept = [user for user, value in enumerate(past) if value is not None]
    assert kept and min(kept) > count - 20  # a minute of clicks, and what a record may be late
    rows = client.mget(Keyspace().lookup_rows("ads", np.arange(count)))
    kept = [ad for ad, value in enumerate(rows) if value is not None]
    assert kept and count - 60 < min(kept)  # ten minutes, a sixteenth, and what a record may be late
    assert max(kept) == count - 1
