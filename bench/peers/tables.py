"""The peers' embeddings, and DeepFM on top of them: runs in the peers' environment (packages.txt).

FBGEMM's table-batched embedding (TBE), static tables, fused Adagrad; TorchRec's sharded collection over the
same kernels, table-wise and row-wise; TorchRec's managed collision (MCH), its dynamic ids. All are fp32,
start from N(0, 0.01²), and pool by sum. A width must be a multiple of 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan
from torchrec.modules.mc_modules import (
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)

from bench.peer import Head
from bench.peers.workloads import Batch, Workload

Embed = Callable[[Tensor, Tensor], Tensor]
"""keys i64[nnz], offsets i64[F B + 1], both field-major → pooled f32[B, F · width]."""
Sharding = Literal["table-wise", "row-wise"]
RATE, DENSE_RATE, EPSILON, SCALE = 0.02, 8e-3, 1e-8, 0.01
"""The rates are the best of 0.005 to 0.2 and 0.001 to 0.008 on a log of bench.quality with another seed."""
CPU = torch.device("cpu")


def tbe(work: Workload, width: int, *, rowwise: bool) -> Embed:
    """FBGEMM's TBE on this process."""
    rule = EmbOptimType.EXACT_ROWWISE_ADAGRAD if rowwise else EmbOptimType.EXACT_ADAGRAD
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, width, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows in work.cardinality],
        optimizer=rule,
        learning_rate=RATE,
        eps=EPSILON,
    )
    for weight in tables.split_embedding_weights():
        nn.init.normal_(weight, std=SCALE)
    return lambda keys, offsets: tables(keys, offsets)


def sharded(work: Workload, width: int, sharding: Sharding) -> Embed:
    """TorchRec's DistributedModelParallel over the ranks of the process group."""
    collection = EmbeddingBagCollection(tables=_configs(work, width), device=torch.device("meta"))
    sharder = EmbeddingBagCollectionSharder(fused_params=_fused())
    return _embed(work, _parallel(work, collection, sharder, sharding))


def managed(work: Workload, width: int, interval: int) -> Embed:
    """TorchRec's managed collision: any 64-bit id, mapped to a row of a table that can hold all of them.

    The map stands before `tbe`: TorchRec's own sharded module cannot evict on a CPU, where FBGEMM has no
    `reset_weight_momentum`. A row is not cleared when it gets another id, which saves the peer that work.

    interval: batches between evictions, when new ids get their rows; until then they have none.
    """
    configs = _configs(work, width)
    maps = {
        config.name: MCHManagedCollisionModule(
            zch_size=config.num_embeddings,
            device=CPU,
            eviction_policy=LRU_EvictionPolicy(),
            eviction_interval=interval,
        )
        for config in configs
    }
    collection = ManagedCollisionCollection(maps, configs)
    tables, names = tbe(work, width, rowwise=True), _names(work)

    def embed(keys: Tensor, offsets: Tensor) -> Tensor:
        given = KeyedJaggedTensor(keys=names, values=keys & 0x7FFFFFFFFFFFFFFF, lengths=offsets.diff().int())
        with torch.no_grad():
            found = collection(given)
            collection.evict()
        return tables(found.values(), found.offsets().long())

    return embed


def _names(work: Workload) -> list[str]:
    return [f"C{f}" for f in range(work.fields)]


def _configs(work: Workload, width: int) -> list[EmbeddingBagConfig]:
    def start(weight: Tensor) -> None:
        nn.init.normal_(weight, std=SCALE)

    return [
        EmbeddingBagConfig(
            name=f"t{f}", embedding_dim=width, num_embeddings=rows, feature_names=[f"C{f}"], init_fn=start
        )
        for f, rows in enumerate(work.cardinality)
    ]


def _fused() -> dict[str, object]:
    return {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": RATE, "eps": EPSILON}


def _parallel(work: Workload, module: nn.Module, sharder: object, sharding: Sharding) -> nn.Module:
    """Fields in turn to the ranks, as ours does (DES §5), or every table's rows over all ranks."""
    world, kernel = dist.get_world_size(), "fused"  # the default on a CPU has dense gradients
    place = {
        f"t{f}": table_wise(rank=f % world, compute_kernel=kernel)
        if sharding == "table-wise"
        else row_wise(compute_kernel=kernel)
        for f in range(work.fields)
    }
    plan: EmbeddingModuleShardingPlan = construct_module_sharding_plan(
        module, place, sharder=sharder, local_size=world, world_size=world, device_type="cpu"
    )
    whole = ShardingPlan({"": plan})
    return DistributedModelParallel(  # type: ignore[no-any-return]
        module, device=CPU, plan=whole, sharders=[sharder], init_data_parallel=False
    )


def _embed(work: Workload, module: nn.Module) -> Embed:
    names = _names(work)

    def embed(keys: Tensor, offsets: Tensor) -> Tensor:
        found = module(KeyedJaggedTensor(keys=names, values=keys, lengths=offsets.diff().int()))
        pooled: Tensor = found.wait().values()
        return pooled

    return embed


class PeerStep:
    """Trainer of DeepFM on a peer's embeddings; `step` takes a batch of `Workload.batches`.

    first_order: ids have first-order weights, like ours. TorchRec's own DeepFM has none. With them a row is 4
    wider (the width must be a multiple of 4), so speeds are compared without: the peer has less to compute
    and to send.
    """

    def __init__(
        self, work: Workload, make: Callable[[Workload, int], Embed], *, raw: bool, first_order: bool = False
    ) -> None:
        torch.manual_seed(1)
        self.work, self.raw, self.first_order = work, raw, first_order
        self.embed = make(work, work.dim + 4 * first_order)
        head = Head(work.fields, work.dense, work.dim, work.hidden)
        parallel = dist.is_initialized() and dist.get_world_size() > 1
        self.head: nn.Module = DistributedDataParallel(head) if parallel else head
        self.dense = torch.optim.Adam(head.parameters(), lr=DENSE_RATE, fused=True)

    def logits(self, batch: Batch) -> Tensor:
        """f32[b] of a rank's own examples."""
        keys = torch.from_numpy(batch.features.keys if self.raw else batch.ids)
        offsets = torch.from_numpy(batch.features.offsets).long()
        values = self.embed(keys, offsets).view(batch.features.rows, self.work.fields, -1)
        first = values[..., 0].sum(1) if self.first_order else 0.0
        vectors = values[..., 4:] if self.first_order else values
        logits: Tensor = self.head(vectors, first, torch.from_numpy(batch.features.dense))
        return logits

    def step(self, batch: Batch) -> Tensor:
        """One batch; returns the logits of before it was learned."""
        logits = self.logits(batch)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.label))
        self.dense.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.dense.step()
        return logits.detach()
