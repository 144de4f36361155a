"""One rank of test_link.py: its link as it is, and as between machines: OUT/rank<r>.json."""

import json
import time
from pathlib import Path

import numpy as np
import torch

from livectr.trainer.comm import link
from livectr.trainer.comm.collectives import Collectives, connect
from tests.waiting import left_s


def main(folder: str) -> None:
    """Measure over both wires."""
    torch.set_num_threads(1)
    with connect(timeout_s=left_s()) as shared:
        found: dict[str, float | None] = {"here": link.link_gbit(shared)}
        link._place = lambda rank: np.array([rank, 0, 0], np.int64)
        start = time.perf_counter()
        found["apart"] = link.link_gbit(shared)
        found["seconds"] = time.perf_counter() - start
        found["bf16"] = link.link_gbit(Collectives(shared.rank, shared.world, wire="bf16"))
        Path(folder, f"rank{shared.rank}.json").write_text(json.dumps(found))
