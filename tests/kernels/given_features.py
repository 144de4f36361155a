"""Features of a request that are given, not extracted."""

from __future__ import annotations

import ctypes
from typing import Protocol

import numpy as np

from livectr.kernels.request.features import FeatureMemory
from livectr.kernels.runtime.arrays import address


class Ragged(Protocol):
    """Ragged keys of some fields of some rows, field-major."""

    @property
    def offsets(self) -> np.ndarray:
        """i32[fields * rows + 1]."""

    @property
    def keys(self) -> np.ndarray:
        """i64[nnz]."""


class GivenFeatures(FeatureMemory):
    """Memory whose call has features already.

    Args:
        shared: keys of the fields that all rows share, of one row.
        own: keys of the rows' own fields.
        dense: f32[rows, width].
        items: i64[rows], keys of the rows' items; None: they have none.
    """

    def __init__(
        self, shared: Ragged, own: Ragged, dense: np.ndarray, items: np.ndarray | None = None
    ) -> None:
        super().__init__()
        call = self.call
        call.rows, call.width = dense.shape
        call.shared, call.own = len(shared.offsets) - 1, (len(own.offsets) - 1) // max(len(dense), 1)
        self._kept = shared, own, dense, items
        call.shared_offsets, call.shared_keys = address(shared.offsets), address(shared.keys)
        call.own_offsets, call.own_keys = address(own.offsets), address(own.keys)
        call.shared_count, call.own_count = len(shared.keys), len(own.keys)
        call.dense, call.extracted = address(dense), 1
        if items is not None:
            call.items = ctypes.c_void_p(address(items))
