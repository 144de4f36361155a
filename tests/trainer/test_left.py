"""Users and ads that left are in Redis no longer: a version removes their histories and look-up rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import redis

from livectr.kernels.process.children import with_parent
from livectr.protos.store import Keyspace

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
        (root / topic / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    return f"file:{root}"


@pytest.mark.parametrize("world", [1, 2])
def test_redis_holds_those_who_have_not_left(
    tmp_path: Path, redis_url: str, client: redis.Redis, world: int
) -> None:
    source, report = write(tmp_path / "logs"), tmp_path / "report.json"
    words = [sys.executable, "-m", "livectr", "train", "--pipeline", str(PIPELINE), "--source", source]
    words += ["--until-end", "--publish", redis_url, "--ranks", str(world), "--report", str(report)]
    done = subprocess.run(with_parent(words), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(report.read_text())["published_versions"] > 3
    count = ROWS // LIVE
    past = client.mget(Keyspace().histories(ROOT, np.arange(count)))
    kept = [user for user, value in enumerate(past) if value is not None]
    assert kept and min(kept) > count - 20  # a minute of clicks, and what a record may be late
    rows = client.mget(Keyspace().lookup_rows("ads", np.arange(count)))
    kept = [ad for ad, value in enumerate(rows) if value is not None]
    assert kept and count - 60 < min(kept)  # ten minutes, a sixteenth, and what a record may be late
    assert max(kept) == count - 1
