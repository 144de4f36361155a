"""Publish a version with a million rows of a pipeline; run in a pod: python3 - PIPELINE URL < million.py

The rows have their initial values: a server reads them as it reads rows that have learned. The script uses
the image's package alone.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.pipeline import load_pipeline
from livectr.store.layout import FEATURES
from livectr.trainer.comm.control import Control
from livectr.trainer.content.contents import Contents
from livectr.trainer.content.precompute import ContentPrecompute
from livectr.trainer.des.step import DesStep
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.version import PublishedModel, Push, VersionSnapshot

ROWS = {"user": 500_000, "ad": 500_000}
"""Table → rows."""


def main() -> None:
    """Publish; prints the number of rows. Raises RuntimeError when Redis does not take them."""
    file, url = sys.argv[1:]
    pipeline = load_pipeline(file)
    contents = Contents(pipeline.content, {}, checkpoint=Path("/tmp/content"), rank=0, world=1)
    step = DesStep(pipeline, seed=1, content=contents.stores)
    for name, rows in ROWS.items():
        step.tables[name].find_or_insert(np.arange(rows))
    weights = dict(step.weights())
    for name, state in Statistics(pipeline.plan).state().items():
        weights[FEATURES + name] = torch.from_numpy(state.copy())
    content: dict[str, ContentPrecompute] = {}
    if step.ams is not None:
        networks, stores = step.ams.networks, step.ams.stores
        content = {name: ContentPrecompute(name, networks[name], stores[name]) for name in networks}
    segments = [(s.name, s.dim) for s in step.spec.layout.segments]
    model = PublishedModel(pipeline.fingerprint, segments, seed=1)
    dim = sum(size for _, size in model.served("rank"))
    published = {}
    for name, table in step.tables.items():
        keys, values = table.export(state=False)
        published[name] = keys, values[:, :dim]
    publisher = Publisher(RedisStore(url, "livectr"), Control(), model)
    publisher.start(None)
    publisher.begin(
        VersionSnapshot(
            step=0,
            rows=published,
            table_rows={name: len(table) for name, table in step.tables.items()},
            dense=safetensors.torch.save(weights),
            content=content,
        )
    )
    while publisher.busy:  # no `until`: a pod has no tests
        publisher.observe([publisher.push.state])
        if publisher.push.state in (Push.FAILED, Push.LOST):
            raise RuntimeError("the version could not be published")
        time.sleep(0.01)
    publisher.close()
    print(sum(ROWS.values()))


if __name__ == "__main__":
    main()
