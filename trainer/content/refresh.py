"""Content refresh: which vectors of images or texts a version computes again (`content_refresh_s`).

    an id's own features are new     its vector is computed with the next version, always
    its slot is due                  once in `content_refresh_s` of event time; slots take turns
    its slot has moved               beyond `content_tolerance` since it was computed (trainer.content.drift)
    the version is complete          all vectors: a process's first version; after a loss or a new champion

Ids are in slots of 65,536 (trainer.content.slots). A slot has a blob, which versions share until the slot is
computed again. The ids whose features came after their slot's blob are in a blob of each rank, `NEWER`, which
every version writes again. It counts more than the slots'. A slot with more than 1/16 of such ids is computed
again, so that the blob stays small.

What is due depends on event times of the examples, on the store's files and on the earlier versions of this
process, and not on the clock or on the number of ranks. Servers embed only ids that are in no blob.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from livectr.ingest.content.refresh_rule import RefreshRule
from livectr.ingest.content.store import ContentStore
from livectr.ingest.pipeline import Pipeline
from livectr.models.embedding import SubNetwork
from livectr.system.errors import ConfigError
from livectr.trainer.comm.control import Control
from livectr.trainer.content import precompute, telemetry
from livectr.trainer.content.drift import Drift
from livectr.trainer.content.precompute import F16, F32, I64, Embedder
from livectr.trainer.content.slots import SLOT_IDS, Slots
from livectr.trainer.content.turns import NEVER, Turns

NEWER = "newer"
"""Tag of the blob of ids whose features are newer than their slot's blob."""
NEWER_SHARE = 16
"""A slot is computed again when more than 1/NEWER_SHARE of its ids are newer."""

I32 = npt.NDArray[np.int32]


class ContentRefresh:
    """Vectors of one content that are in use, on one rank.

    Args:
        name: of the content.
        store: features of this rank.
        slot_ids: ids of a full slot.
    """

    def __init__(
        self, name: str, store: ContentStore, control: Control, rule: RefreshRule, slot_ids: int = SLOT_IDS
    ) -> None:
        self.name, self.store = name, store
        self._rule, self._slots = rule, Slots(store, slot_ids)
        self._crowd = max(1, slot_ids // NEWER_SHARE)
        self._drift = Drift(store, control, rule.tolerance) if rule.tolerance else None
        self._moment = self._plans = 0
        self._begun = False  # a version of this process is served; alike on every rank
        self._turns = Turns(rule.period_ms)
        self._versions: I64 = np.empty(0, np.int64)
        """Number of the plan that computed each slot."""
        self._newer: I64 = np.empty(0, np.int64)
        """Numbers of the ids in the blob of newer ids, ascending."""
        self._vectors: F32 = np.empty((0, 0), np.float32)

    def plan(self, network: SubNetwork, now_ms: int, *, whole: bool, first_ms: int = 0) -> RefreshPlan:
        """Plan the vectors of a version, and copy the sub-model. Collective.

        Args:
            network: sub-model of the content, which the plan copies.
            now_ms: event time of the version's step.
            whole: nothing of the version before stays.
            first_ms: event time of this process's first example; 0 before it.
        """
        changed, moment = self.store.changed(self._moment)
        self._slots.extend()
        self._plans += 1
        self._grow()
        self._turns.date(first_ms)
        moved = (
            set()
            if self._drift is None
            else self._drift.moved(network, set(self._versions.tolist()) - {NEVER})
        )
        redrawn = self._drift is not None and self._drift.redrawn
        whole = whole or not self._begun
        due = self._turns.due(self._slots.phases, now_ms) | np.isin(self._versions, list(moved))
        of_ids = self._slots.of_ids
        if whole or redrawn:
            due[:] = True
        new_again = np.zeros(len(of_ids), bool)
        new_again[changed] = True
        stay = ~new_again[self._newer]
        newer = np.bincount(of_ids[changed], minlength=len(due))
        newer += np.bincount(of_ids[self._newer[stay]], minlength=len(due))
        due |= newer > self._crowd
        computed = changed[~due[of_ids[changed]]]
        stay &= ~due[of_ids[self._newer]]
        return RefreshPlan(
            refresh=self,
            embedder=Embedder(self.name, network),
            number=self._plans,
            now_ms=now_ms,
            moment=moment,
            whole=whole,
            due=np.flatnonzero(due),
            of_ids=of_ids,
            ids=self._slots.ids,
            stay=(self._newer[stay], self._vectors[stay] if len(stay) else self._vectors),
            computed=computed,
        )

    def tag(self, slot: int) -> str:
        """Part of a slot's blobs' names."""
        return self._slots.tags[slot]

    def _grow(self) -> None:
        """Make room for new slots."""
        more = len(self._slots) - len(self._versions)
        self._versions = np.append(self._versions, np.full(more, NEVER))
        self._turns.grow(len(self._slots))

    def published(self, plan: RefreshPlan, newer: tuple[I64, F32]) -> None:
        """Take over a plan whose version is served."""
        self._begun, self._moment = True, plan.moment
        self._turns.computed(plan.due, plan.now_ms)
        self._versions[plan.due] = plan.number
        self._newer, self._vectors = newer
        telemetry.OLDEST_CONTENT.labels(self.name).set(self._turns.oldest_s(plan.now_ms))
        if self._drift is not None:
            self._drift.published(plan.number)
            telemetry.CONTENT_DRIFT.labels(self.name).set(self._drift.most)


@dataclass(eq=False)
class RefreshPlan:
    """Vectors that one version computes on this rank (`trainer.content.precompute.Precompute`).

    Args:
        refresh: whose state the plan was made from.
        number: of the plan.
        now_ms: event time of the version.
        moment: of the store, up to which features are known.
        whole: nothing of the version before stays; alike on every rank.
        due: slots i64[m].
        of_ids, ids: slot of each id i32[n], and the ids i64[n].
        stay: newer ids whose vectors stay: numbers i64[k], vectors f32[k, out].
        computed: numbers i64[c] of further newer ids, whose vectors are computed.
    """

    refresh: ContentRefresh
    embedder: Embedder
    number: int
    now_ms: int
    moment: int
    whole: bool
    due: I64
    of_ids: I32
    ids: I64
    stay: tuple[I64, F32]
    computed: I64
    _newer: tuple[I64, F32] | None = None

    @property
    def tags(self) -> list[str]:
        """See `Precompute`."""
        return [*map(self.refresh.tag, self.due.tolist()), NEWER]

    def run(self, stopped: Callable[[], bool]) -> Iterator[tuple[I64, F32]]:
        """Yield ids and vectors of each due slot, and of the newer ids; see `Precompute`."""
        started = time.perf_counter()
        embedded = self.embedder.over(self._blocks(), stopped)
        sizes = np.bincount(self.of_ids, minlength=len(self.due))[self.due]
        for size in sizes.tolist():
            yield self._gathered(embedded, size)
        ids, vectors = self._gathered(embedded, len(self.computed))
        for _ in embedded:
            raise AssertionError("more blocks than ids")
        numbers, earlier = self.stay
        if len(numbers):
            ids, vectors = np.r_[self.ids[numbers], ids], np.concatenate([earlier, vectors])
        numbers = np.r_[numbers, self.computed]
        order = np.argsort(numbers, kind="stable")
        self._newer = numbers[order], vectors[order]
        telemetry.PRECOMPUTE_SECONDS.labels(self.embedder.name).observe(time.perf_counter() - started)
        yield ids[order], vectors[order]

    def published(self) -> None:
        """See `Precompute`."""
        assert self._newer is not None
        self.refresh.published(self, self._newer)

    def _blocks(self) -> Iterator[tuple[I64, Callable[[], F16]]]:
        for numbers in (*(np.flatnonzero(self.of_ids == slot) for slot in self.due), self.computed):
            for start in range(0, len(numbers), precompute.ROWS):
                ids = self.ids[numbers[start : start + precompute.ROWS]]
                yield ids, partial(self._features, ids)

    def _features(self, ids: I64) -> F16:
        return self.refresh.store.read(ids)[0]

    def _gathered(self, embedded: Iterator[tuple[I64, F32]], size: int) -> tuple[I64, F32]:
        """Ids and vectors of the next blocks, `size` in all."""
        ids: list[I64] = [np.empty(0, np.int64)]
        vectors: list[F32] = [np.empty((0, self.embedder.out), np.float32)]
        while size:
            some, part = next(embedded)
            ids.append(some)
            vectors.append(part)
            size -= len(some)
        return np.concatenate(ids), np.concatenate(vectors)


def refreshes_of(
    pipeline: Pipeline, stores: Mapping[str, ContentStore], control: Control, rule: RefreshRule
) -> dict[str, ContentRefresh]:
    """Content → its refresh; none where every version computes all vectors.

    Raises:
        ConfigError: the pipeline has no content, or no event times.
    """
    if not rule.period_ms:
        return {}
    if not pipeline.content and (pipeline.prerank is None or pipeline.items is None):
        raise ConfigError(
            "content_refresh_s is for images, texts and item vectors; the pipeline has none, leave it out"
        )
    if pipeline.log.impressions.time is None:
        raise ConfigError("content_refresh_s needs event times: name the impressions' time column (time=)")
    return {name: ContentRefresh(name, store, control, rule) for name, store in stores.items()}
