"""Precompute of the vectors of all images for a version, beside the limit of the machine.

The limit is the slower of two: the sub-model's FLOPs at the rate of its bare matrix products, or the
features' bytes at the rate at which memory is read. Both are measured in the same run, in float32, with
equal threads. The features are read from files in the page cache.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.images.limits import flops, product_flops, read_bandwidth
from bench.images.store import random_store
from bench.rows import row
from livectr.models.embedding import EmbeddingModel
from livectr.trainer.content.precompute import ContentPrecompute

GOAL = 0.3
MILLION_GOAL_S = 60.0


@dataclass(frozen=True)
class Size:
    """Images of `width` numbers; rounds, and MiB that are read to know memory."""

    images: int = 100_000
    width: int = 4096
    rounds: int = 5
    megabytes: int = 512


QUICK = Size(images=2000, width=256, rounds=1, megabytes=16)


def rows(quick: bool) -> list[dict[str, object]]:
    """Images a second, the limits, and the time of a million images at that rate."""
    size = QUICK if quick else Size()
    config = EmbeddingModel(size.width)
    layers = (size.width, *config.hidden, config.out)
    with tempfile.TemporaryDirectory(prefix="livectr-bench-") as folder:
        store = random_store(Path(folder), size.images, size.width)
        sweep = ContentPrecompute("images", config.network("content.images", 1), store)
        seconds, by_flops, by_memory = [], [], []
        for turn in range(-1, size.rounds):
            start = time.perf_counter()
            swept = sum(len(ids) for ids, _ in sweep.run(lambda: False))
            spent = time.perf_counter() - start
            if swept != size.images:
                raise RuntimeError(f"{swept} of {size.images} images were swept")
            limits = (
                product_flops(layers, 3) / flops(layers),
                read_bandwidth(size.megabytes, 3) / (2 * size.width),
            )
            if turn >= 0:
                seconds.append(spent)
                by_flops.append(limits[0])
                by_memory.append(limits[1])
    rate = size.images / statistics.median(seconds)
    products, memory = statistics.median(by_flops), statistics.median(by_memory)
    million = 1e6 / rate
    workload = (
        f"{size.images:,} images, {'-'.join(map(str, layers))}, float16 in mapped files, "
        f"{torch.get_num_threads()} threads"
    )
    limit = "matrix products" if products < memory else "memory"
    return [
        row("sweep of all vectors", workload, "images/s", rate, peer_name=f"limit by {limit}",
            peer=min(products, memory), goal=GOAL),
        row("limit by matrix products", workload, "images/s", products),
        row("limit by memory", workload, "images/s", memory),
        row("a million images at that rate", workload, "s", million)
        | {"goal": MILLION_GOAL_S, "met": million < MILLION_GOAL_S},
    ]  # fmt: skip
