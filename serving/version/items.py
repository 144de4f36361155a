"""Item vectors of a version: its blobs, of which some are read already with an earlier version.

A blob holds items with their vectors; of an item in two, the later counts. A blob without vectors lists items
that have left: the other blobs may still hold them. An item of a blob that a version does not share any more
is in one of its new blobs, or has left (trainer.content.item_refresh).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from livectr.serving.version.id_vectors import IdVectors, joined
from livectr.store.layout import F32, I64
from livectr.store.vectors import Blob, decode_vectors


@dataclass(frozen=True)
class ItemVectors:
    """Vectors of a version's items.

    Args:
        matrix: of all items.
        ids: blob → its items i64[n], of blobs that later versions may share.
    """

    matrix: IdVectors
    ids: Mapping[str, I64] = field(default_factory=dict)

    @staticmethod
    def of(
        names: Sequence[str], read: Mapping[str, Blob], before: ItemVectors | None, *, worths: bool = False
    ) -> ItemVectors:
        """Vectors of the blobs of a version.

        Args:
            names: of all its blobs, at least one.
            read: name → blob; the others are of the version before.
            before: vectors of the version before.
            worths: the last number of each vector is the worth of its item.

        Raises:
            ValueError: a blob holds no vectors.
        """
        parts, left = list[tuple[I64, F32]](), list[I64]()
        ids = {name: before.ids[name] for name in names if name not in read} if before is not None else {}
        shared = len(ids) > 0
        for name in (name for name in names if name in read):
            some, vectors = decode_vectors(read[name])
            if vectors.shape[1]:
                parts.append((some, vectors))
                ids[name] = some.copy()  # a view would keep the blob
            else:
                left.append(some)
        absent = np.concatenate(left) if left else np.empty(0, np.int64)
        new = _without(joined([part for part in parts if len(part[0])] or parts[:1]), absent)
        if before is None or not shared:
            last = before.matrix if before is not None else None
            # without a blob of those that left, no later version shares a blob
            some, vectors, worth = _apart(new, worths)
            return ItemVectors(IdVectors(some, vectors, last, worth), ids if left else {})
        replaced = [some for name, some in before.ids.items() if name not in ids]
        gone = np.setdiff1d(np.concatenate([absent, *replaced]), new[0])
        return ItemVectors(_updated(before.matrix, _apart(new, worths), gone), ids)


def _apart(held: tuple[I64, F32], worths: bool) -> tuple[I64, F32, F32 | None]:
    """Ids, vectors, and their last numbers as worths."""
    ids, vectors = held
    return (ids, vectors[:, :-1], vectors[:, -1]) if worths else (ids, vectors, None)


def _without(held: tuple[I64, F32], gone: I64) -> tuple[I64, F32]:
    """Ids and vectors without some of the ids."""
    if not len(gone):
        return held
    stay = ~np.isin(held[0], gone)
    return held[0][stay], held[1][stay]


def _updated(before: IdVectors, new: tuple[I64, F32, F32 | None], gone: I64) -> IdVectors:
    """Vectors with new ones and without ids that are gone; the index is shared while the ids are the same."""
    rows, known = before.find(gone)
    if not known.any():
        return before.with_newer(*new) if len(new[0]) else before
    stay = np.ones(len(before), bool)
    stay[rows[known]] = False
    kept = before.ids[stay], before.vectors[stay]
    worths = None if before.worths is None or new[2] is None else np.append(before.worths[stay], new[2])
    return IdVectors(*joined([kept, new[:2]]), worths=worths)
