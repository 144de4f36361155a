"""A thread of the trainer that dies ends the run, after its last commit, and says so."""

from pathlib import Path

import pytest
import redis

from livectr.system.errors import InternalError
from livectr.trainer.publish.garbage import GarbageCollector
from livectr.trainer.run import TrainOptions, train
from tests.redis_values import manifest_in
from tests.trainer.ad_logs import ad_pipeline, write_files


def test_a_thread_that_dies_ends_the_run(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    monkeypatch.setattr(GarbageCollector, "_collect", lambda *_: dict[str, object]()["no such key"])
    source = write_files(tmp_path, 500)
    options = TrainOptions(
        source,
        batch_size=64,
        batch_ramp=0,
        publish=redis_url,
        publish_interval_s=0.1,
        min_examples=0,
        until_idle_s=600,
    )
    with pytest.raises(InternalError, match="thread 'garbage' ended by KeyError"):
        train(ad_pipeline(), options)
    assert manifest_in(client).step > 0
