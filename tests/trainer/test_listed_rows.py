"""Look-up rows that a run writes: its versions list their keys, so that servers read them again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import redis

from livectr.store.layout import LOOKUP, Keyspace, decode_changed
from livectr.store.manifest import VersionManifest
from livectr.trainer.run import TrainOptions, train
from tests.trainer.ad_logs import ADS, USERS, ad_pipeline, write_files


def listed(client: redis.Redis, since: int) -> tuple[VersionManifest, dict[str, list[int]]]:
    """Newest manifest, and the look-up keys that a server of version `since` is told of, by topic."""
    manifest = VersionManifest.from_json(client.get(Keyspace().manifest))  # type: ignore[arg-type]
    names = manifest.changed_since(since, manifest.row_set)
    assert names is not None
    keys: dict[str, list[int]] = {"ads": [], "users": []}
    for name in names:
        for table, found in decode_changed(client.get(name)).items():  # type: ignore[arg-type]
            if table.startswith(LOOKUP):
                keys[table.removeprefix(LOOKUP)] += found.tolist()
    return manifest, keys


def test_versions_list_the_look_up_rows_that_they_wrote(
    tmp_path: Path, redis_url: str, client: redis.Redis
) -> None:
    source = write_files(tmp_path / "logs", 2_000)

    def run(since: int, **more: Any) -> tuple[VersionManifest, dict[str, list[int]]]:
        options: dict[str, Any] = dict(
            batch_size=128, batch_ramp=0, min_examples=0, checkpoint=str(tmp_path / "c")
        )
        train(ad_pipeline(), TrainOptions(source, publish=redis_url, **options, **more))
        return listed(client, since)

    first, keys = run(1, max_steps=3, publish_interval_s=0.01)
    assert first.version > 1 and keys == {"ads": [], "users": []}, (
        "no row has changed since the first version"
    )
    # A process that resumes reads all tables again.
    second, keys = run(first.version, max_steps=6, publish_interval_s=1000)
    assert second.version > first.version and second.row_set == first.row_set
    assert (
        sorted(keys["ads"]) == np.arange(ADS).tolist() and sorted(keys["users"]) == np.arange(USERS).tolist()
    )
