"""Pre-rank over gRPC while the trainer refreshes items, is killed, is rolled back, and loses its Redis."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

import livectr.versions.rollback
from livectr.client.clients import PreRankClient
from livectr.config.settings import Settings
from livectr.serving.app import App
from livectr.serving.version.items import ItemVectors
from livectr.store.keyspace import Keyspace
from livectr.store.manifest import VersionManifest
from livectr.verify.verify import VerifyOptions, verify
from livectr.versions.holding import release
from tests.ranks import Processes
from tests.redis_values import value
from tests.serving.content_world import ADS, NOW_MS, USERS, make_store, pipeline
from tests.trainer.processes import finish
from tests.waiting import left_s, until

IMPRESSIONS = 300
WAITING = 20
"""More than the impressions that wait for clicks while the log continues."""


def write_part(root: Path, part: int) -> list[int]:
    """Write one more file of each topic: impressions, and from the second on ten new ads; returns all ads."""
    rng = np.random.default_rng(part)
    shown, clicked, ads = [], [], [*ADS, *range(200, 200 + 10 * part)]
    for i in range(part * IMPRESSIONS, (part + 1) * IMPRESSIONS):
        event: dict[str, Any] = {
            "request_id": f"r{i}",
            "user_id": int(rng.choice(USERS)),
            "ad_id": int(rng.choice(ads)),
            "ts": NOW_MS + i * 60_000,
        }
        shown.append(event)
        if rng.random() < 0.3:
            clicked.append({**event, "ts": event["ts"] + 500, "image_id": event["ad_id"] + 5000})
    new = ads if part == 0 else ads[-10:]
    rows = [{"ad_id": ad, "image_id": ad + 5000, "category": f"cat{ad % 4}"} for ad in new]
    for topic, events in {"impressions": shown, "clicks": clicked, "ads": rows}.items():
        (root / topic).mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(event) + "\n" for event in events)
        (root / topic / f"0-{part}.jsonl").write_text(text)
    return ads


def test_a_server_follows_refreshes_a_killed_trainer_and_an_empty_redis(
    tmp_path: Path,
    redis_url: str,
    client: redis.Redis,
    serve: Callable[..., App],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_store(tmp_path / "images")

    def train(**more: object) -> Processes:
        options = {
            "source": f"file:{tmp_path / 'logs'}", "batch_size": 64, "batch_ramp": 0, "threads": 1,
            "publish": redis_url, "publish_interval_s": 0.05, "min_examples": 0, "content_refresh_s": 1e9,
            "content": f"images={tmp_path / 'images'}", "checkpoint": str(tmp_path / "checkpoint"),
            "idle_partition_s": 0.1, "batch_wait_s": 0.05, "seed": 5, **more,
        }  # fmt: skip
        return Processes(1, "tests.trainer.refresh_once", (json.dumps(options),))

    def manifest() -> VersionManifest | None:
        text = client.get(Keyspace().manifest)
        return VersionManifest.from_json(text) if text is not None else None

    def check(ads: list[int], *, shared: bool | None = None) -> VersionManifest:
        """Compare the server's vectors with those that a new server loads, and ask for all items.

        shared: older versions computed some of them. None: either; a short run's only version is whole.
        """
        served = app.follower.current
        assert served is not None and served.items is not None
        held = served.manifest
        names = held.item_vectors
        fresh = ItemVectors.of(names, {name: value(client, name) for name in names}, None).matrix
        assert served.items.ids.tolist() == fresh.ids.tolist() == ads
        np.testing.assert_array_equal(served.items.vectors, fresh.vectors)
        assert shared is None or shares(held) == shared
        with PreRankClient(app.server.address) as prerank:
            reply = prerank.prerank({"user_id": 3, "ts": NOW_MS}, None, len(ads))
        assert sorted(reply.ids.values) == ads and not reply.degraded
        return held

    def shares(held: VersionManifest) -> bool:
        """Tell if all slots of vectors are of older versions."""
        slots = {int(name.split(":")[2]) for name in held.item_vectors if name.rpartition("-")[2].isdigit()}
        return max(slots) < held.version

    def learned(examples: int) -> Callable[[], bool]:
        return lambda: (found := manifest()) is not None and found.examples >= examples - WAITING

    def follows() -> bool:
        current, found = app.follower.current, manifest()
        return current is not None and found is not None and current.number == found.version

    def verified() -> None:
        report = verify(
            VerifyOptions(
                pipeline, app.server.address, tmp_path / "checkpoint", redis_url, requests=8, candidates=20,
                source=f"file:{tmp_path / 'logs'}", wait_s=30, content={"images": tmp_path / "images"},
            )
        )  # fmt: skip
        assert report.compared["prerank"] == report.equal == 8
        found = manifest()
        assert found is not None and ("item vectors" in report.vectors) == shares(found)

    ads = write_part(tmp_path / "logs", 0)
    trainer = train()
    try:
        until(lambda: manifest() is not None)
        app = serve("prerank", pipeline)
        until(learned(IMPRESSIONS))
        first = manifest()
        # new ads, while it runs
        ads = write_part(tmp_path / "logs", 1)
        until(learned(2 * IMPRESSIONS))
        until(follows)
        second = check(ads, shared=True)
        assert first is not None and second.version > first.version
        trainer.send_signal(signal.SIGKILL)
    finally:
        trainer.kill()
    trainer.wait(left_s())
    ads = write_part(tmp_path / "logs", 2)
    finish(train(until_end=True))
    until(follows)
    third = check(ads)
    assert third.row_set == second.row_set, "it resumed with what Redis held"
    verified()
    # a rollback has all vectors of its own, and the trainer after it begins again
    monkeypatch.setattr(livectr.versions.rollback, "COLLECT_AFTER_S", 0.0)
    newest = max(int(path.name[4:]) for path in (tmp_path / "checkpoint").glob("gen-*"))
    settings = Settings(
        source=f"file:{tmp_path / 'logs'}", checkpoint=str(tmp_path / "checkpoint"), redis=redis_url,
        content=f"images={tmp_path / 'images'}",
    )  # fmt: skip
    livectr.versions.rollback.roll_back(pipeline, settings, newest, "test")
    until(follows)
    check(ads, shared=False)
    release(redis_url, "livectr")
    ads = write_part(tmp_path / "logs", 3)
    finish(train(until_end=True, take_over=True))
    until(learned(4 * IMPRESSIONS))
    until(follows)
    fourth = check(ads)
    verified()
    client.flushall()
    ads = write_part(tmp_path / "logs", 4)
    finish(train(until_end=True))
    until(lambda: (found := manifest()) is not None and found.row_set != fourth.row_set)
    until(follows)
    check(ads)
    verified()
