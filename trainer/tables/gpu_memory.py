"""Default budgets of a rank's GPU: rows get what features, networks and batches leave of its free memory.

    features    the columns of the batches in flight (ingest.plan.memory), at most FEATURES_SHARE of all
    networks    weights, gradients and Adam's two moments
    batches     a batch's vectors and activations with their gradients, and the tables' working memory
    reserve     CUDA's context, workspaces of libraries, and what PyTorch's pool keeps without a use
    rows        the rest, at least ROWS_SHARE of all

Ranks on a GPU have equal parts of its free memory (`share_of_memory`).

All but the free memory are estimates, from the settings alone: lists have as many keys as the placement of
features assumes (ingest.plan.memory.Sizes). A budget that is set is taken as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from livectr.ingest.language import dtypes
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.memory import Sizes, items_per_row
from livectr.ingest.plan.placement import place
from livectr.kernels.gpu_table.device_store import BUCKET_BYTES, BUCKET_SLOTS, HEADER_BYTES, LOAD, Slabs
from livectr.kernels.gpu_table.gpu_cache import SPACES
from livectr.kernels.runtime.device import free_memory
from livectr.kernels.runtime.device_memory import GROWTH
from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.rows import row_layout
from livectr.models.configs import model_configs
from livectr.models.roles import row_segments
from livectr.system.byte_units import show_bytes
from livectr.trainer.comm.control import Control
from livectr.trainer.options import TrainOptions

LOG = logging.getLogger(__name__)
FEATURES_SHARE, ROWS_SHARE = 1 / 4, 1 / 8
"""Largest part of the memory that features may take if no budget is set, and least part of rows."""
RESERVE_BYTES, RESERVE_SHARE = 1 << 30, 1 / 16
FEATURE_BATCHES = 3
"""Batches of features in flight: one that is learned, one that is extracted, one that is copied."""
NETWORK_COPIES = 4
ACTIVATION_COPIES = 4
"""Floats of an activation: before and after its function, and the gradients of both."""
MOST_ROWS = 2**31
KEY_BYTES, SHARED_KEY_BYTES, CELL_BYTES = 44, 36, 8
"""Working memory of the tables (DeviceTable.number, DeviceTable.search): bytes per key of a batch on the
device, and once per key; per cell of a batch on the device."""


@dataclass(frozen=True)
class BatchSize:
    """Sizes of a batch's largest parts, in numbers.

    Attributes:
        rows: examples
        keys: keys of all fields
        cells: vectors of all fields
        parameters: of all networks
        activations: floats of an example's activations
    """

    rows: int
    keys: int
    cells: int
    parameters: int
    activations: int

    @staticmethod
    def of(pipeline: Pipeline, rows: int) -> BatchSize:
        """Sizes for batches of some rows, all fields being on this rank."""
        sizes, plan = Sizes(), pipeline.plan
        lists = {name: dtypes.is_list(node.dtype) for name, node in plan.sparse.items()}
        keys = sum(items_per_row(node, sizes) if lists[name] else 1 for name, node in plan.sparse.items())
        parameters = activations = vectors = 0
        for config in model_configs(pipeline).values():
            model = config.build(plan.fields, plan.fields, plan.dense_names, True, 0)
            shapes = [tuple(parameter.shape) for parameter in model.parameters()]
            numbers = [parameter.numel() for parameter in model.parameters()]
            sequences = config.gathers(plan.fields).sequences
            # A matrix has an input and an output; a list's network has them for each item.
            widths = (number // shape[-1] + shape[-1] for number, shape in zip(numbers, shapes, strict=True)
                      if len(shape) > 1)  # fmt: skip
            parameters += sum(numbers)
            activations += sum(widths) * (sizes.list_items if sequences else 1)
            vectors += sum(sizes.list_items for _ in sequences)
        return BatchSize(rows, rows * keys, rows * (len(lists) + vectors), parameters, activations)

    def bytes_on_device(self, layout: RowLayout) -> int:
        """Device memory of a batch's vectors, activations and working memory."""
        # With gradients; as rows of the front, and of the network; gradients of the batch before are kept.
        vectors = 4 * 5 * self.cells * layout.dim
        work = self.keys * (SPACES * KEY_BYTES + SHARED_KEY_BYTES + 4 * (layout.dim + layout.stride))
        work += SPACES * self.cells * CELL_BYTES
        return int(vectors + GROWTH * work + 4 * ACTIVATION_COPIES * self.rows * self.activations)


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of a GPU's free memory by use.

    Attributes:
        row_bytes: of a row with its part of the index
    """

    free: int
    features: int
    networks: int
    batches: int
    reserve: int
    row_bytes: float

    @staticmethod
    def of(free: int, peak: int, size: BatchSize, layout: RowLayout) -> GpuMemory:
        """Divide the memory.

        Args:
            free: bytes.
            peak: bytes of a batch's features without a budget, or the budget.
            size: of a batch.
            layout: of the rows.
        """
        return GpuMemory(
            free=free,
            features=min(FEATURE_BATCHES * peak, int(FEATURES_SHARE * free)),
            networks=4 * NETWORK_COPIES * size.parameters,
            batches=size.bytes_on_device(layout),
            reserve=RESERVE_BYTES + int(RESERVE_SHARE * free),
            row_bytes=row_bytes(layout),
        )

    @property
    def rows(self) -> int:
        """Number of rows that the rest holds."""
        rest = self.free - self.features - self.networks - self.batches - self.reserve
        return min(int(max(rest, ROWS_SHARE * self.free) / self.row_bytes), MOST_ROWS)

    def told(self, rows: int) -> str:
        """Line for the log.

        Args:
            rows: budget of rows, this or another.
        """
        parts = [f"{show_bytes(getattr(self, part))} {part}" for part in ("features", "networks", "batches")]
        taken = show_bytes(int(rows * self.row_bytes))
        return (
            f"GPU memory: {show_bytes(self.free)} free; at most {', '.join(parts)}, "
            f"{show_bytes(self.reserve)} for CUDA and PyTorch, {taken} for {rows:,} rows"
        )


def row_bytes(layout: RowLayout) -> float:
    """Most device memory of a row in bytes, with its part of the index, which is half full after a rehash."""
    return Slabs.of(layout).pitch + HEADER_BYTES + BUCKET_BYTES / BUCKET_SLOTS / (LOAD / 2)


def share_of_memory(sharers: Sequence[int], control: Control, free: Callable[[], int] = free_memory) -> int:
    """Measure this rank's part of its GPU's free memory, in bytes. Collective among all ranks.

    No rank goes on before all have measured: what one allocates is not taken from another's part.

    Args:
        sharers: ranks on this GPU, this rank among them.
        control: of this rank.
        free: measures the free memory in bytes.

    Raises:
        ConfigError: there is no GPU.
    """
    measured = control.gather(np.array([free()]))[list(sharers), 0]
    part = int(measured.min()) // len(sharers)
    if len(sharers) > 1:
        LOG.info("%d ranks share this rank's GPU: it has %s of its memory", len(sharers), show_bytes(part))
    return part


def with_gpu_budgets(
    options: TrainOptions, pipeline: Pipeline, free: Callable[[], int], *, on_gpu: bool = True
) -> TrainOptions:
    """Options with `gpu_budget` and `gpu_rows`, where `device` is not cpu; tells what goes where.

    `device` auto becomes cpu where a rank has no GPU. Tables with admission stay on the host with auto.

    Args:
        options: a budget that is set stays.
        pipeline: what the run learns.
        free: measures this rank's part of the free memory, in bytes (`share_of_memory`).
        on_gpu: ranks agreed on GPUs (`trainer.comm.backend`).

    Raises:
        ConfigError: there is no GPU, or features exceed their budget.
    """
    if options.device == "auto" and not on_gpu:
        return replace(options, device="cpu", gpu_rows=None)
    if options.device == "auto" and any(policy.admit_after for policy in pipeline.table_policies.values()):
        options = replace(options, gpu_rows=0)
    if options.device == "cpu":
        return options
    layout = row_layout(row_segments(model_configs(pipeline), pipeline.features), pipeline.row_values)
    placed = place(pipeline.plan, budget_bytes=options.gpu_budget, rows=options.batch_size)
    size = BatchSize.of(pipeline, options.batch_size)
    memory = GpuMemory.of(free(), placed.device_memory.peak, size, layout)
    budget, rows = options.gpu_budget, options.gpu_rows
    if budget is None and FEATURE_BATCHES * placed.device_memory.peak > memory.features:
        budget = memory.features // FEATURE_BATCHES
    rows = memory.rows if rows is None else rows
    LOG.info(memory.told(rows))
    return replace(options, gpu_budget=budget, gpu_rows=rows)
