"""One rank of test_gpu_memory.py on GPUs that are not there; files have what ranks took of their memory."""

import os
import time
from pathlib import Path

import numpy as np

from livectr.ingest.plan.placement import place
from livectr.kernels.table.rows import row_layout
from livectr.models.configs import model_configs
from livectr.models.roles import row_segments
from livectr.trainer.comm.collectives import connect
from livectr.trainer.comm.control import Control
from livectr.trainer.options import TrainOptions
from livectr.trainer.tables.gpu_memory import BatchSize, GpuMemory, share_of_memory, with_gpu_budgets
from tests.trainer.ad_logs import ad_pipeline
from tests.trainer.backend_worker import Doubles

GPUS = ("GPU-a", "GPU-b")
FREE = 80 << 30
"""Bytes of each before a rank takes any."""


def main(folder: str) -> None:
    """Take rank RANK's budgets of its GPU, and look at what all ranks have taken."""
    rank, pipeline = int(os.environ["RANK"]), ad_pipeline()
    card = Path(folder) / GPUS[rank % 2]
    given = TrainOptions("file:x", device="gpu", batch_size=4096)

    def free() -> int:
        return FREE - sum(map(int, card.read_text().split())) if card.exists() else FREE

    with connect(device="gpu", gpus=Doubles(*GPUS)) as ranks:
        control = Control(ranks.rank, ranks.world)
        if rank == 2:
            time.sleep(0.3)  # rank 0 would have taken its part of the GPU by then
        options = with_gpu_budgets(given, pipeline, lambda: share_of_memory(ranks.sharers, control, free))
        assert options.gpu_rows is not None
        layout = row_layout(row_segments(model_configs(pipeline), pipeline.features), pipeline.row_values)
        peak = place(pipeline.plan, budget_bytes=None, rows=4096).device_memory.peak
        parts = GpuMemory.of(FREE, peak, BatchSize.of(pipeline, 4096), layout)
        rows = int(options.gpu_rows * parts.row_bytes)
        with card.open("a") as taken:
            taken.write(f"{rows + parts.features + parts.networks + parts.batches}\n")
        first, alone, last = control.gather(np.array([options.gpu_rows]))[:, 0].tolist()
        assert first == last and alone > 2 * first
        assert 0 < free() < FREE / 2, "budgets of the ranks on this GPU fit into it"
