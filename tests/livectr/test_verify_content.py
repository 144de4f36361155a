"""`livectr query verify` of replies made with vectors of content and items older than their version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import redis

from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.store.manifest import VersionManifest
from livectr.trainer.options import TrainOptions
from livectr.trainer.run import train
from livectr.verify.report import Report
from livectr.verify.vectors import ITEMS, PublishedVectors, Vectors
from livectr.verify.verify import VerifyOptions, verify
from tests.serving.content_logs import write_logs
from tests.serving.content_world import SEED, make_store, pipeline
from tests.tiers import few
from tests.waiting import left_s


def without_items(found: Mapping[str, Vectors] | None) -> Mapping[str, Vectors] | None:
    return {name: some for name, some in found.items() if name != ITEMS} if found is not None else None


@pytest.mark.parametrize("role", few(["rank", "prerank"], "prerank"))
def test_replies_are_explained_by_the_published_vectors(
    tmp_path: Path,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    role: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    write_logs(tmp_path / "logs", 600)
    make_store(tmp_path / "images")
    train(
        pipeline,
        TrainOptions(
            f"file:{tmp_path / 'logs'}",
            until_end=True,
            batch_size=64,
            batch_ramp=0,
            seed=SEED,
            checkpoint=str(tmp_path / "checkpoint"),
            publish=redis_url,
            publish_interval_s=1e-6,
            min_examples=0,
            content=f"images={tmp_path / 'images'}",
            content_refresh_s=1e9,
        ),
    )
    with redis.Redis.from_url(redis_url) as client:
        manifest = VersionManifest.from_json(client.get("{livectr}:manifest") or b"")
    versions = {int(name.split(":")[2]) for name in manifest.content["images"]}
    assert manifest.step >= 9 and min(versions) < manifest.version, "all vectors are of the first version"
    assert min(int(name.split(":")[2]) for name in manifest.item_vectors) < manifest.version

    app = App(role, pipeline, ServeOptions(redis_url))
    app.start()
    assert app.wait_ready(left_s())

    def verified() -> Report:
        return verify(
            VerifyOptions(
                pipeline,
                app.server.address,
                tmp_path / "checkpoint",
                redis_url,
                requests=12,
                candidates=20,
                source=f"file:{tmp_path / 'logs'}",
                wait_s=60,
                content={"images": tmp_path / "images"},
            )
        )

    try:
        report = verified()
        assert report.compared[role] == report.equal == 12 and report.code == 0
        report.show(as_json=True)
        facts = json.loads(capsys.readouterr().out)
        assert facts["content_as_published"] == ["images"] and facts["items_as_published"]
        # by the sub-model and the item tower of the version's step, the vectors are others
        older = PublishedVectors.older
        if role == "prerank":
            monkeypatch.setattr(PublishedVectors, "older", lambda *a: without_items(older(*a)))
            assert verified().different > 0
        monkeypatch.setattr(PublishedVectors, "older", lambda *_: {})
        assert verified().different > 0
    finally:
        app.stop()
