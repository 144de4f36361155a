"""Advanced Model Server (DICM §4, Algorithm 1): sub-models run where the raw features of content are.

    own examples ─ unique ids ─ all-to-all ─► owners of their features     SERVEREMBED: each id once
    vectors of own ids f32[U, out] ◄─ all-to-all ─ sub-model ◄─ features
    their gradients ─ all-to-all ─► owners ─► gradients of the sub-model, summed over ranks     SERVERUPDATE

Features are stored once: id i on the rank that owns its shard. The sub-model is on every rank, replicated
like `finish`: its gradients are summed over the ranks, and its weights stay equal. Ranks exchange ids
(bit-packed), vectors of `out` numbers and their gradients, never features.

Where every rank finishes every example (⊕ as an all-reduce), the vectors are all-gathered.

Of several ranks, `prepare` runs a batch ahead: ids are sent while the batch before is learned. A thread reads
features, also of a single rank, while keys are exchanged and partial results are computed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from livectr.ingest.common_features import AnyFeatures, Common, CommonFeatures
from livectr.ingest.language.content import Content as Declared
from livectr.ingest.plan.features import Features
from livectr.kernels.keys.unique import unique_segments
from livectr.kernels.runtime.recycled import Recycled
from livectr.models.embedding import SubModel, SubNetwork
from livectr.models.inputs import Ragged
from livectr.system.errors import ConfigError
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.comm.key_codec import Segments, decode, encode, measure
from livectr.trainer.content import telemetry
from livectr.trainer.feature_parts import ragged, rows_at
from livectr.trainer.host_copies import to_device

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F16 = NDArray[np.float16]
F32 = NDArray[np.float32]
Read = tuple[F16, NDArray[np.bool_]]
"""Features f16[n, width], and known bool[n]."""

PREFIX = "content"
"""Sub-models are named "content.<name>.<parameter>" in checkpoints and versions."""
CHUNK = 65_536
"""Ids that are embedded at a time, outside of a step."""


class Features16(Protocol):
    """Store of raw features (ingest.content.store.ContentStore)."""

    @property
    def width(self) -> int:
        """Numbers of an id's features."""

    @property
    def shards(self) -> int:
        """Number of shards, by which ids have their owners."""

    def shard_of(self, ids: I64) -> I64:
        """Shard of each id, i64[n] below `shards`."""

    def read(self, ids: I64, out: F16 | None = None) -> Read:
        """Features f16[n, width], in `out`, and the ids that are stored, bool[n]."""

    def refresh(self) -> bool:
        """Load rows that another thread or process has added; returns True if there were any."""

    def __len__(self) -> int:
        """Number of stored ids."""

    def chunks(self, rows: int) -> Iterator[tuple[I64, F16]]:
        """Every id once: i64[k] and features f16[k, width], k ≤ rows."""


@dataclass(frozen=True)
class References:
    """References of a field to the vectors of own unique ids.

    Attributes:
        lengths: i32[cells], of the lists of own examples or of their groups
        index: i64[nnz], vector number of each key
        group_of: i32[b], the list of each example; None: each has its own
    """

    lengths: I32
    index: I64
    group_of: I32 | None

    @property
    def of_examples(self) -> I32:
        """Lengths i32[b] of the lists of own examples."""
        return self.lengths if self.group_of is None else self.lengths[self.group_of]

    def __len__(self) -> int:
        """References of all examples."""
        return int(self.of_examples.sum())


@dataclass(frozen=True)
class ContentRequest:
    """Ids of a content that a rank requests for a batch, and the features that it embeds for all ranks.

    Attributes:
        lists: field → its references
        received: own unique ids that each rank holds; their vectors come in this order
        requested: rows of the features that each rank requests, i64[·]; none of a single rank, which
            requests all in their order
        reading: features f16[n, width] that this rank embeds, and known bool[n], which of them exist
    """

    lists: dict[str, References]
    received: tuple[int, ...]
    requested: list[I64]
    reading: Future[Read]


class Content:
    """Sub-model of one content, with the features that this rank holds.

    Args:
        name: of the content.
        config: of the sub-model.
        store: raw features.
        fields: number → name of the sparse fields whose keys are ids, in field order.
        seed: of the initial parameters.
    """

    def __init__(
        self, name: str, config: SubModel, store: Features16, fields: Mapping[int, str], seed: int
    ) -> None:
        self.name, self.config, self.store, self.fields = name, config, store, dict(fields)
        self.network: SubNetwork = config.network(f"{PREFIX}.{name}", seed)
        self._memory = Recycled()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="content")

    def owners(self, ids: I64, world: int) -> I64:
        """Rank that holds the features of each id, i64[n]."""
        return np.asarray(self.store.shard_of(ids) % world)

    def begin_read(self, ids: I64) -> Future[Read]:
        """Read in a thread, while keys are exchanged and partial results are computed."""
        return self._reader.submit(self._counted, ids)

    def _counted(self, ids: I64) -> Read:
        started = time.perf_counter()
        raw, known = self.read(ids)
        telemetry.CONTENT_READ_SECONDS.labels(self.name).observe(time.perf_counter() - started)
        telemetry.CONTENT_EMBEDDED.labels(self.name).inc(len(ids))
        telemetry.CONTENT_ABSENT.labels(self.name).inc(int((~known).sum()))
        return raw, known

    def read(self, ids: I64) -> Read:
        """Features f16[n, width] and known bool[n] of ids i64[n], in memory that later calls reuse."""
        numbers = len(ids) * self.store.width
        memory = self._memory.empty(-(-numbers // 4)).view(np.float16)
        return self.store.read(ids, memory[:numbers].reshape(len(ids), self.store.width))

    def embed(self, features: F16, known: NDArray[np.bool_]) -> Tensor:
        """Vectors f32[n, out] of features f16[n, width] and known bool[n]."""
        device = self.network.absent.device
        out: Tensor = self.network(to_device(features, device), torch.from_numpy(known))
        return out


class Ams:
    """Content of a pipeline's models on one rank. `prepare`, `forward` and `vectors` are collective.

    Args:
        contents: sub-models with their features.
        collectives: of this rank.
        scatter: True where a rank finishes its own examples only.
        common: fields that the examples of a group share.

    Attributes:
        ahead: collectives of `prepare`

    Raises:
        ConfigError: a store has fewer shards than there are ranks.
    """

    def __init__(
        self, contents: Sequence[Content], collectives: Collectives, *, scatter: bool, common: Common
    ) -> None:
        self.contents = {content.name: content for content in contents}
        self.ahead = self._collectives = collectives
        self._scatter = scatter
        self._common = common
        for content in contents:
            content.network.to(collectives.device)
            if content.store.shards < collectives.world:
                shards, world = content.store.shards, collectives.world
                raise ConfigError(
                    f"content {content.name!r} has {shards} shards for {world} ranks; "
                    "make it again with as many shards as ranks, or more (--shards)"
                )

    @property
    def networks(self) -> dict[str, SubNetwork]:
        """Name → sub-model."""
        return {name: content.network for name, content in self.contents.items()}

    @property
    def stores(self) -> dict[str, Features16]:
        """Name → features."""
        return {name: content.store for name, content in self.contents.items()}

    # ── a step ──

    def prepare(self, features: AnyFeatures) -> dict[str, ContentRequest]:
        """Send own examples' ids to their owners, and begin to read the features that ranks request here."""
        ids = features.ids()
        return {name: self._request(content, ids) for name, content in self.contents.items()}

    def _request(self, content: Content, features: Features | CommonFeatures) -> ContentRequest:
        parts = {field: self._cells(number, features) for number, field in content.fields.items()}
        keys = np.concatenate([keys for _, keys, _ in parts.values()])
        unique = unique_segments(keys, np.array([0, len(keys)], np.int64))
        index, counts, requested = unique.index.astype(np.int64), [len(unique.keys)], []
        held = unique.keys
        if self._collectives.world > 1:
            owner = content.owners(held, self._collectives.world)
            order = np.argsort(owner, kind="stable")
            place = np.empty(len(order), np.int64)
            place[order] = np.arange(len(order))
            index, counts = place[index], np.bincount(owner, minlength=self._collectives.world).tolist()
            bounds, ids = send_to_owners(held[order], np.array(counts), self.ahead)
            unique = unique_segments(ids, np.array([0, len(ids)], np.int64))
            held, requested = unique.keys, np.split(unique.index.astype(np.int64), bounds[1:-1])
        return ContentRequest(references_of(parts, index), tuple(counts), requested, content.begin_read(held))

    def _cells(self, number: int, features: Features | CommonFeatures) -> tuple[I32, I64, I32 | None]:
        """Offsets of a field's cells, their keys, and the group of each example; None: cells are examples."""
        if isinstance(features, Features):
            return (*features.field(number), None)
        before = sum(f < number for f in self._common.fields)
        if number in self._common.fields:
            return (*features.common.ids().field(before), features.index)
        return (*features.own.ids().field(number - before), None)

    def forward(self, requests: Mapping[str, ContentRequest]) -> dict[str, Ragged]:
        """Field → vectors f32[nnz, out] of own examples' keys, or of all where a rank finishes all."""
        by_field: dict[str, Ragged] = {}
        for name, request in requests.items():
            vectors = self._own_vectors(self.contents[name], request)
            lists = {
                field: ragged(rows_at(vectors, part.index), part.lengths, part.group_of)
                for field, part in request.lists.items()
            }
            if not self._scatter and self._collectives.world > 1:
                lists = {
                    field: self._all_gather(part, request.lists[field].of_examples)
                    for field, part in lists.items()
                }
            by_field |= lists
        return by_field

    def _own_vectors(self, content: Content, request: ContentRequest) -> Tensor:
        """Exchange embedded features: vectors f32[U, out] of own unique ids, by the rank that holds them."""
        embedded = content.embed(*request.reading.result())
        world, rank, out = self._collectives.world, self._collectives.rank, embedded.shape[1]
        if world == 1:
            return embedded  # of ids that are unique already, in their order
        outgoing = [rows_at(embedded, index) for index in request.requested]
        incoming = [count * out for count in request.received]
        forward = sum(len(index) for r, index in enumerate(request.requested) if r != rank)
        backward = sum(count for r, count in enumerate(request.received) if r != rank)
        vectors = self._collectives.all_to_all(outgoing, incoming, {"content": (forward + backward) * out})
        return torch.cat(vectors).view(-1, out)

    def _all_gather(self, own: Ragged, lengths: I32) -> Ragged:
        """All-gather the lists of own examples, i32[b] long: lists of all examples, rank-major."""
        rows = np.asarray(self._collectives.all_gather(np.array([len(lengths)], np.int64), "content sizes"))
        all_lengths = self._collectives.all_gather_ragged(lengths, rows[:, 0].tolist(), "content")
        width = own.values.shape[1]
        sizes = [int(part.sum()) * width for part in all_lengths]
        parts = self._collectives.all_gather_tensors(own.values.reshape(-1), sizes, "content")
        values = torch.cat([part.view(-1, width) for part in parts])
        return Ragged(values, _offsets(np.concatenate(all_lengths), values.device))

    # ── outside of a step ──

    @torch.no_grad()
    def vectors(self, name: str, ids: I64) -> F32:
        """Vectors f32[n, out] of ids i64[n]; every rank passes the same ids."""
        content = self.contents[name]
        own = content.owners(ids, self._collectives.world) == self._collectives.rank
        out = torch.zeros(len(ids), content.config.out, device=self._collectives.device)
        at = np.flatnonzero(own)
        for part in np.split(at, range(CHUNK, len(at), CHUNK)):
            out[torch.from_numpy(part)] = content.embed(*content.read(ids[part]))
        return np.asarray(self._collectives.all_reduce(out, "content").cpu().numpy())


def send_to_owners(ids: I64, counts: I64, collectives: Collectives) -> tuple[I32, I64]:
    """Send own unique ids to their owners: all-to-all of ids, bit-packed by `trainer.comm.key_codec`.

    Args:
        ids: i64[U], sorted by owner.
        counts: i64[N], ids for each rank.
        collectives: of this rank.

    Returns:
        Bounds by sender i32[N + 1], and the received ids i64[n].
    """
    rank, world = collectives.rank, collectives.world
    lists = Segments.lists(ids, np.r_[0, np.cumsum(counts)]).plain(np.arange(world) == rank)
    coded = encode(lists)
    header = np.asarray(collectives.all_gather(coded.header, "content sizes"))[:, rank]
    _, sizes = measure(header, lists.cells)
    outgoing = [coded.payload[a:b] for a, b in itertools.pairwise(coded.bounds)]
    sent = {"content ids": len(coded.payload) - len(outgoing[rank])}
    messages = collectives.all_to_all_bytes(outgoing, sizes.tolist(), sent)
    return decode(header, lists.cells, messages, np.arange(world), np.zeros(world, np.int64))


def _offsets(lengths: I32, device: torch.device) -> Tensor:
    return to_device(np.r_[0, np.cumsum(lengths)].astype(np.int64), device)


def references_of(parts: Mapping[str, tuple[I32, I64, I32 | None]], index: I64) -> dict[str, References]:
    """Field → its references.

    Args:
        parts: field → offsets of its cells, keys, and group of each example (None: cells are examples).
        index: i64, vector number of the keys of all cells, by field.
    """
    references, start = {}, 0
    for field, (offsets, keys, group_of) in parts.items():
        lengths = np.diff(offsets).astype(np.int32)
        references[field] = References(lengths, index[start : start + len(keys)], group_of)
        start += len(keys)
    return references


def ams_of(
    contents: Mapping[str, Declared],
    stores: Mapping[str, Features16],
    fields: Mapping[int, str],
    seed: int,
    collectives: Collectives,
    *,
    scatter: bool,
    common: Common,
) -> Ams | None:
    """Content that the models read; None where they read none.

    Args:
        contents: of the pipeline, by name.
        stores: raw features, by name.
        fields: number → name of the fields whose content models gather.
        seed: of the sub-models' initial parameters.
        collectives: of this rank.
        scatter: True where a rank finishes its own examples only.
        common: fields that the examples of a group share.

    Raises:
        ConfigError: content has no features, or features of another width.
    """
    used_contents = []
    for name, declared in contents.items():
        config = declared.model
        if not isinstance(config, SubModel):
            raise ConfigError(
                f"content {name!r}: model is {config!r}, but must be one of "
                "livectr.models.embedding, such as EmbeddingModel()"
            )
        used = {number: field for number, field in fields.items() if field in declared.fields}
        if not used:
            continue
        if name not in stores:
            raise ConfigError(
                f"content {name!r} has no features: set content to {name}=DIR, a folder that "
                "`livectr features encode` made"
            )
        if stores[name].width != config.width:
            raise ConfigError(
                f"content {name!r}: features have {stores[name].width} numbers, the sub-model takes "
                f"{config.width}; set its width, or encode with the encoder it was made for"
            )
        used_contents.append(Content(name, config, stores[name], used, seed))
    return Ams(used_contents, collectives, scatter=scatter, common=common) if used_contents else None
