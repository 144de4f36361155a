"""The Advanced Model Server (DICM §4, Algorithm 1): sub-models run where the raw features of content are.

    own examples ─ unique ids ─► owners of their features          SERVEREMBED: each id once, whoever asked
    vectors of own ids f32[U, out] ◄─ swap ─ features ─► sub-model
    gradients of these ─ swap ─► owners ─► gradients of the sub-model, summed over ranks     SERVERUPDATE

Features live once: id i on the rank that owns its shard. The sub-model is on every rank, a replica like those
of `finish`, so that its gradients are summed over the ranks and its weights stay equal. What crosses are ids
(in few bits), vectors of `out` numbers and their gradients, never features.

Where every rank finishes every sample (⊕ as an all-reduce), the own samples' vectors go on to all ranks.

`prepare` runs a batch ahead: ids travel and features are read while the batch before is learned.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from livectr.ingest.common_features import Common, CommonFeatures
from livectr.ingest.language.content import Content as Declared
from livectr.ingest.plan.features import Features
from livectr.kernels.errors import ConfigError
from livectr.kernels.keys.unique import unique_segments
from livectr.kernels.runtime.recycled import Recycled
from livectr.models.base import Ragged
from livectr.models.embedding import SubModel, SubNetwork
from livectr.trainer import telemetry
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.comm.key_codec import Segments, decode, encode, measure
from livectr.trainer.feature_parts import rows_at

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F16 = NDArray[np.float16]
F32 = NDArray[np.float32]

PREFIX = "content"
"""Sub-models are named "content.<name>.<parameter>" in checkpoints and versions."""
CHUNK = 65_536
"""Ids that are embedded at a time outside of a step."""


class Features16(Protocol):
    """Where raw features are (ingest.content.store.ContentStore)."""

    @property
    def width(self) -> int: ...

    @property
    def shards(self) -> int: ...

    def shard_of(self, ids: I64) -> I64:
        """Of each id, i64[n] below `shards`."""

    def read(self, ids: I64, out: F16 | None = None) -> tuple[F16, NDArray[np.bool_]]:
        """f16[n, width], in `out`, and whether they are there, bool[n]."""

    def refresh(self) -> bool:
        """Takes in what another thread or process has added; whether there was anything."""

    def __len__(self) -> int:
        """Ids that are there."""

    def chunks(self, rows: int) -> Iterator[tuple[I64, F16]]:
        """Every id once: i64[k] and features f16[k, width], k ≤ rows."""


@dataclass(frozen=True)
class ContentRequest:
    """One content of a batch.

    lists: field → of own rows: lengths of lists i32[b], and of each key the number of its vector i64[nnz].
    mine: how many of the own unique ids each rank holds; their vectors come in this order.
    wants: for each rank, which of the rows that are embedded here it wants.
    features: f16[n, width], known bool[n]: what is embedded here.
    """

    lists: dict[str, tuple[I32, I64]]
    mine: tuple[int, ...]
    wants: list[I64]
    features: F16
    known: NDArray[np.bool_]


class Content:
    """One sub-model with the features it embeds: what a rank has of it.

    fields: number and name of the sparse fields whose keys are its ids, in field order.
    """

    def __init__(
        self, name: str, config: SubModel, store: Features16, fields: Mapping[int, str], seed: int
    ) -> None:
        self.name, self.config, self.store, self.fields = name, config, store, dict(fields)
        self.network: SubNetwork = config.network(f"{PREFIX}.{name}", seed)
        self._memory = Recycled()

    def owners(self, ids: I64, world: int) -> I64:
        """The rank that holds the features of each id."""
        return np.asarray(self.store.shard_of(ids) % world)

    def read(self, ids: I64) -> tuple[F16, NDArray[np.bool_]]:
        """f16[n, width] and known bool[n] of ids i64[n], in memory that is used again."""
        numbers = len(ids) * self.store.width
        memory = self._memory.empty(-(-numbers // 4)).view(np.float16)
        return self.store.read(ids, memory[:numbers].reshape(len(ids), self.store.width))

    def embed(self, features: F16, known: NDArray[np.bool_]) -> Tensor:
        """f16[n, width], bool[n] → f32[n, out]."""
        device = self.network.absent.device
        out: Tensor = self.network(torch.from_numpy(features).to(device), torch.from_numpy(known).to(device))
        return out


class Ams:
    """The content of a pipeline's models on one rank; `prepare`, `forward` and `vectors` are collective.

    scatter: whether a rank finishes its own samples only. common: what examples of a user share.
    """

    def __init__(
        self, contents: Sequence[Content], collectives: Collectives, *, scatter: bool, common: Common
    ) -> None:
        self.contents = {one.name: one for one in contents}
        self._collectives = collectives
        self._scatter = scatter
        self._common = common
        for one in contents:
            one.network.to(collectives.device)
            if one.store.shards < collectives.world:
                raise ConfigError(
                    f"content {one.name!r} has {one.store.shards} shards for {collectives.world} ranks; "
                    "make it again with as many shards as ranks, or more (--shards)"
                )

    @property
    def networks(self) -> dict[str, SubNetwork]:
        """Name → sub-model."""
        return {name: one.network for name, one in self.contents.items()}

    @property
    def stores(self) -> dict[str, Features16]:
        """Name → features."""
        return {name: one.store for name, one in self.contents.items()}

    # ── a step ──

    def prepare(self, features: Features | CommonFeatures) -> dict[str, ContentRequest]:
        """The ids of own examples to their owners, and the features that others want of this rank."""
        return {name: self._request(one, features) for name, one in self.contents.items()}

    def _request(self, one: Content, features: Features | CommonFeatures) -> ContentRequest:
        parts = {field: self._cells(number, features) for number, field in one.fields.items()}
        keys = np.concatenate([keys for _, keys, _ in parts.values()])
        unique = unique_segments(keys, np.array([0, len(keys)], np.int64))
        owner = one.owners(unique.keys, self._collectives.world)
        order = np.argsort(owner, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        index = place[unique.index.astype(np.int64)]
        counts = np.bincount(owner, minlength=self._collectives.world)
        bounds, asked = send_to_owners(unique.keys[order], counts, self._collectives)
        held = unique_segments(asked, np.array([0, len(asked)], np.int64))
        started = time.perf_counter()
        raw, known = one.read(held.keys)
        telemetry.CONTENT_READ_SECONDS.labels(one.name).observe(time.perf_counter() - started)
        telemetry.CONTENT_EMBEDDED.labels(one.name).inc(len(held.keys))
        telemetry.CONTENT_ABSENT.labels(one.name).inc(int((~known).sum()))
        wants = np.split(held.index.astype(np.int64), bounds[1:-1])
        return ContentRequest(_lists(parts, index), tuple(counts.tolist()), wants, raw, known)

    def _cells(self, number: int, features: Features | CommonFeatures) -> tuple[I32, I64, I32 | None]:
        """Offsets of a field's cells, their keys, and the cell of each row (None: its own)."""
        if isinstance(features, Features):
            return (*features.field(number), None)
        before = sum(f < number for f in self._common.fields)
        if number in self._common.fields:
            return (*features.common.field(before), features.index)
        return (*features.own.field(number - before), None)

    def forward(self, asked: Mapping[str, ContentRequest]) -> dict[str, Ragged]:
        """Field → vectors f32[nnz, out] of the keys of own samples, or of all where a rank finishes all."""
        found: dict[str, Ragged] = {}
        for name, one in asked.items():
            vectors = self._own_vectors(self.contents[name], one)
            lists = {
                field: Ragged(rows_at(vectors, index), _offsets(lengths, vectors.device))
                for field, (lengths, index) in one.lists.items()
            }
            if not self._scatter and self._collectives.world > 1:
                lists = {field: self._everywhere(part) for field, part in lists.items()}
            found |= lists
        return found

    def _own_vectors(self, content: Content, asked: ContentRequest) -> Tensor:
        """Vectors of the own unique ids f32[U, out], in the order of the ranks that hold them."""
        embedded = content.embed(asked.features, asked.known)
        world, rank, out = self._collectives.world, self._collectives.rank, embedded.shape[1]
        if world == 1:
            return rows_at(embedded, asked.wants[0])
        outgoing = [rows_at(embedded, index) for index in asked.wants]
        incoming = [count * out for count in asked.mine]
        away = sum(len(index) for r, index in enumerate(asked.wants) if r != rank)
        back = sum(count for r, count in enumerate(asked.mine) if r != rank)
        came = self._collectives.all_to_all(outgoing, incoming, {"content": (away + back) * out})
        return torch.cat(came).view(-1, out)

    def _everywhere(self, own: Ragged) -> Ragged:
        """The lists of all ranks' samples, rank-major, out of each rank's own."""
        lengths = own.offsets.diff().cpu().numpy().astype(np.int32)
        rows = np.asarray(self._collectives.all_gather(np.array([len(lengths)], np.int64), "content sizes"))
        told = self._collectives.all_gather_ragged(lengths, rows[:, 0].tolist(), "content")
        width = own.values.shape[1]
        sizes = [int(part.sum()) * width for part in told]
        parts = self._collectives.all_gather_tensors(own.values.reshape(-1), sizes, "content")
        whole = torch.cat([part.view(-1, width) for part in parts])
        return Ragged(whole, _offsets(np.concatenate(told), whole.device))

    # ── outside of a step ──

    @torch.no_grad()
    def vectors(self, name: str, ids: I64) -> F32:
        """Vectors f32[n, out] of ids i64[n] that every rank brings alike."""
        one = self.contents[name]
        own = one.owners(ids, self._collectives.world) == self._collectives.rank
        out = torch.zeros(len(ids), one.config.out, device=self._collectives.device)
        at = np.flatnonzero(own)
        for part in np.split(at, range(CHUNK, len(at), CHUNK)):
            out[torch.from_numpy(part)] = one.embed(*one.read(ids[part]))
        return np.asarray(self._collectives.all_reduce(out, "content").cpu().numpy())


def send_to_owners(ids: I64, counts: I64, collectives: Collectives) -> tuple[I32, I64]:
    """The own unique ids, i64[U], counts[r] of them to rank r → what came: i32[N + 1] bounds, by rank, of
    ids i64[n]. Collective.

    Ids travel in as many bits as they span (`trainer.comm.key_codec`); before them, of each list, a word
    from which its reader knows its length.
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
    return torch.from_numpy(np.r_[0, np.cumsum(lengths)].astype(np.int64)).to(device)


def _lists(parts: Mapping[str, tuple[I32, I64, I32 | None]], index: I64) -> dict[str, tuple[I32, I64]]:
    """Field → lengths i32[b] and vector numbers i64[nnz] of own rows; index: of the cells' keys, field after
    field."""
    found, start = {}, 0
    for field, (offsets, keys, rows) in parts.items():
        own = index[start : start + len(keys)]
        start += len(keys)
        lengths = np.diff(offsets)
        if rows is not None:
            starts, lengths = offsets[:-1][rows], lengths[rows]
            before = np.cumsum(lengths) - lengths
            own = own[np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))]
        found[field] = (lengths.astype(np.int32), own)
    return found


def ams_of(
    contents: Mapping[str, Declared],
    stores: Mapping[str, Features16],
    fields: Sequence[str],
    wanted: Sequence[str],
    seed: int,
    collectives: Collectives,
    *,
    scatter: bool,
    common: Common,
) -> Ams | None:
    """The content that some model wants; None where none does.

    contents: a pipeline's. stores: by name. wanted: fields of which models
    want content. Raises ConfigError for content without features, or with features of another width.
    """
    found = []
    for name, declared in contents.items():
        config = declared.model
        if not isinstance(config, SubModel):
            raise ConfigError(
                f"content {name!r}: model is {config!r}, but must be one of "
                "livectr.models.embedding, such as EmbeddingModel()"
            )
        used = {i: field for i, field in enumerate(fields) if field in declared.fields and field in wanted}
        if not used:
            continue
        if name not in stores:
            raise ConfigError(
                f"content {name!r} has no features: say --content {name}=DIR, a folder that "
                "`livectr images encode` made"
            )
        if stores[name].width != config.width:
            raise ConfigError(
                f"content {name!r}: features have {stores[name].width} numbers, the sub-model takes "
                f"{config.width}; set its width, or encode with the encoder it was made for"
            )
        found.append(Content(name, config, stores[name], used, seed))
    return Ams(found, collectives, scatter=scatter, common=common) if found else None
