"""Choice of the generation from which a run relearns, and a log that no longer holds what comes after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import TopicPartition

from livectr import ops
from livectr.ingest.addresses import connect_admin
from livectr.system.errors import ConfigError, MismatchError
from livectr.trainer.carry.relearn import of_age
from livectr.trainer.checkpoint.manifest import Manifest, newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.options import TrainOptions
from livectr.trainer.run import train
from tests.trainer.ad_logs import ad_pipeline, write_kafka

MINUTE_MS = 60_000


def generation(number: int, created_ms: int) -> Manifest:
    return Manifest(
        number, 1, 0, 0, 0, {}, None, (), (), {}, {}, {}, predictions_sha256="", created_ms=created_ms
    )


@pytest.mark.parametrize("minutes, chosen", [(0, 4), (1, 3), (5, 3), (6, 2), (15, 2), (16, 1), (90, 1)])
def test_the_newest_that_is_old_enough_is_chosen_or_the_oldest(minutes: int, chosen: int) -> None:
    ages = {1: 59, 2: 15, 3: 5, 4: 0}
    kept = [generation(number, (1000 - age) * MINUTE_MS) for number, age in ages.items()]
    assert of_age(kept, minutes * MINUTE_MS).generation == chosen


def test_a_broker_that_has_deleted_what_comes_next(
    tmp_path: Path, kafka_url: str, topic_name: Callable[[str], str]
) -> None:
    """The run is refused with what to do, leaves nothing behind, and begins where the old one is."""
    prefix = topic_name("again-")
    write_kafka(kafka_url, prefix, 200)
    old = ad_pipeline(prefix)
    hours = ops.cross(ops.hour(old.log.ts), old.log.ad_id)
    new = replace(old, sparse={**old.sparse, "hour_x_ad": hours})

    def run(pipeline: object, name: str, **options: object) -> object:
        given = dict(batch_size=64, batch_ramp=0, until_end=True, threads=1, checkpoint=str(tmp_path / name))
        return train(pipeline, TrainOptions(kafka_url, **{**given, **options}))  # type: ignore[arg-type]

    run(old, "old")
    before = positions(tmp_path / "old")
    write_kafka(kafka_url, prefix, 200, seed=1)
    run(old, "old")
    after = positions(tmp_path / "old")
    topic, partition = next(place for place in after if after[place] > before[place])
    with connect_admin(kafka_url) as admin:
        admin.delete_records({TopicPartition(topic, partition): after[topic, partition]})
    again = dict(warm_start=str(tmp_path / "old"), warm_parts="run")
    at = rf"{topic} partition {partition} begins at offset \d+, and generation \d+ of"
    says = rf"{at} .*old goes on at \d+\. Leave relearn out"
    with pytest.raises(MismatchError, match=says):
        run(new, "new", relearn="1h", **again)
    assert not list((tmp_path / "new").glob("gen-*"))
    run(new, "new", **again)


def positions(checkpoint: Path) -> dict[tuple[str, int], int]:
    """Topic partition → offset at which the newest generation continues."""
    manifest = newest_manifest(checkpoint)
    assert manifest is not None
    found = Restored(checkpoint, manifest).source().positions()
    return {place: at.offset for place, at in found.items()}


def test_what_does_not_go_together_is_refused() -> None:
    for options, says in (
        (dict(relearn="1h"), "relearn is for a run that continues another one"),
        (dict(relearn="1h", warm_start="old", warm_parts="full"), "relearn is for a run that continues"),
        (dict(relearn="soon", warm_start="old", warm_parts="run"), "'soon' is not a duration"),
        (dict(relearn="all", warm_start="old", warm_parts="run"), "leave warm_start out"),
    ):
        with pytest.raises(ConfigError, match=says):
            TrainOptions("file:logs", checkpoint="new", **options)  # type: ignore[arg-type]
