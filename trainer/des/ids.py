"""Keys of a batch's fields, as a rank reads them: on the host, or on the device where its features are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from livectr.ingest.common_features import AnyFeatures, CommonFeatures
from livectr.ingest.extract.device_features import DeviceFeatures

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Ids:
    """Keys of F fields, field-major.

    Attributes:
        offsets: i32[cells + 1]
        keys: i64[nnz]
        ends: i64[F + 1], first key of each field, and nnz; on the host
    """

    offsets: I32 | Tensor
    keys: I64 | Tensor
    ends: I64

    @staticmethod
    def on_host(offsets: I32, keys: I64, cells: Sequence[int]) -> Ids:
        """Ids on the host, by the cells of each field."""
        return Ids(offsets, keys, offsets[ends_of(cells)].astype(np.int64))


def resident_ids(features: AnyFeatures, common: Sequence[int]) -> Ids | None:
    """Keys of features that lie on the device, without a copy if they are not grouped.

    Args:
        features: of own examples.
        common: fields that the examples of a group share.

    Returns:
        None: the features, or a part of them, are on the host.
    """
    if isinstance(features, DeviceFeatures):
        return Ids(*_viewed(features))
    if not isinstance(features, CommonFeatures):
        return None
    parts = (features.own, features.common)
    if not all(isinstance(part, DeviceFeatures) for part in parts):
        return None
    return _merged([part for part in parts if isinstance(part, DeviceFeatures)], common)


def ends_of(counts: Sequence[int] | I64) -> I64:
    """Prefix sum i64[n + 1] of counts."""
    return np.cumsum([0, *counts], dtype=np.int64)


def _viewed(features: DeviceFeatures) -> tuple[Tensor, Tensor, I64]:
    """Offsets and keys as views of the device's memory, and ends."""
    return from_dlpack(features.offsets), from_dlpack(features.keys), ends_of(features.counts)


def _merged(parts: Sequence[DeviceFeatures], common: Sequence[int]) -> Ids:
    """Fields of examples and of groups in the pipeline's order, copied in runs of neighbours of one part.

    Args:
        parts: own features, then common features.
        common: fields of the second part.
    """
    viewed = [(part.rows, *_viewed(part)) for part in parts]
    taken, counts = [0, 0], list[int]()
    offsets, keys = [viewed[0][1][:1]], list[Tensor]()
    for shared, run in itertools.groupby(
        range(sum(len(part.counts) for part in parts)), set(common).__contains__
    ):
        rows, part_offsets, part_keys, ends = viewed[shared]
        first, end = taken[shared], taken[shared] + len(list(run))
        taken[shared] = end
        before = sum(counts) - int(ends[first])
        offsets.append(part_offsets[first * rows + 1 : end * rows + 1] + before)
        keys.append(part_keys[ends[first] : ends[end]])
        counts += np.diff(ends[first : end + 1]).tolist()
    return Ids(torch.cat(offsets), torch.cat(keys), ends_of(counts))
