"""Steps of many small batches in one call (`network/small_steps.hpp`)."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.network.small_batch import SmallBatchNetwork
from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.library import kernel_library
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.native import checked

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

HYPERS = 8
_RATES = np.dtype(
    [
        ("network", np.float64),
        ("bias", np.float32),
        ("scale", np.float32),
        ("online_scale", np.float32),
        ("number", np.float32),
        ("first", np.float32, HYPERS),
        ("second", np.float32, HYPERS),
    ],
    align=True,
)


@dataclass(frozen=True)
class SmallRole:
    """Role of a step.

    Attributes:
        network: of the role; it has `fields` of the front.
        start: first of its values in a row.
        first: segment of the first order that is learned example by example; None: none.
        second: segment of FM's second order that is learned so; None: none.
    """

    network: SmallBatchNetwork
    start: int
    first: str | None = None
    second: str | None = None


@dataclass(frozen=True)
class RoleRates:
    """Learning rates of a role.

    Attributes:
        network: of Adam, for a batch of many examples.
        bias, scale: of the AdaGrads of bias and scales.
        online_scale: of the AdaGrad of scales whose first order is learned example by example.
        number: of the normalised AdaGrad of the first order's dense features; 0: there are none.
        first, second: hyper-parameters of the segments that are learned so; at most HYPERS.
    """

    network: float
    bias: float
    scale: float
    online_scale: float
    number: float
    first: Sequence[float] = ()
    second: Sequence[float] = ()


@dataclass(frozen=True)
class Block:
    """n examples in P batches.

    Attributes:
        bounds: i64[P + 1], of the batches.
        offsets: i32[F · n + 1], keys of each field and example, field-major.
        keys: i64[nnz].
        dense: f32[n, D].
        label: f32[n], targets in [0, 1]; above 1 is 1.
    """

    bounds: I64
    offsets: I32
    keys: I64
    dense: F32
    label: F32


class SmallSteps:
    """Steps of small batches on a rank that holds all rows.

    Args:
        front: tables of the F fields, which are in one block.
        by_table: numbers of the fields, sorted by table.
        roles: in the order of their gradients' check.
        dense: D.
        most: examples of the largest batch.
        online: examples of the largest batch whose orders are learned example by example.

    Attributes:
        weights: numbers of all networks that a step learns.

    Raises:
        MemoryError: no memory.
    """

    def __init__(
        self,
        front: FieldTables,
        by_table: Sequence[int],
        roles: Sequence[SmallRole],
        *,
        dense: int,
        most: int,
        online: int,
    ) -> None:
        self._front, self._roles, self._dense, self._most = front, tuple(roles), dense, most
        self.weights = sum(role.network.weights for role in roles)
        shapes = np.array(
            [
                [role.network.handle, role.start, *front.place(role.first), *front.place(role.second)]
                for role in roles
            ],
            np.int64,
        )
        order, library = np.array(by_table, np.int32), _library()
        self._handle = library.small_steps_new(
            front.handle, address(order), address(shapes), len(shapes), dense, most, online
        )
        if not self._handle:
            raise MemoryError("no memory for the steps of small batches")
        weakref.finalize(self, library.small_steps_delete, self._handle)

    def learn(
        self, block: Block, part: int, rates: Sequence[RoleRates], steps: int, logits: F32
    ) -> tuple[int, int]:
        """Learns batches one after the other, up to one whose gradients are not finite: that is scored only.

        Args:
            block: batches of at most `most` examples.
            part: number of the first batch.
            rates: of each role.
            steps: number of steps that the networks have learned.
            logits: f32[R, n], gets the scores of each role.

        Returns:
            Number of the batch that follows, and of steps that the networks have learned here.
        """
        bounds = contiguous(block.bounds, np.int64, (None,))
        n, sizes = int(bounds[-1]), np.diff(bounds)
        if bounds[0] or sizes.min() < 0 or sizes.max() > self._most:
            raise ValueError(f"bounds {bounds} must rise from 0 in steps of at most {self._most}")
        offsets = contiguous(block.offsets, np.int32, (len(self._front.fields) * n + 1,))
        keys = contiguous(block.keys, np.int64, (int(offsets[-1]),))
        dense = contiguous(block.dense, np.float32, (n, self._dense))
        label = contiguous(block.label, np.float32, (n,))
        given = np.zeros(len(rates), _RATES)
        for each, rate in zip(given, rates, strict=True):
            each["network"], each["bias"], each["scale"] = rate.network, rate.bias, rate.scale
            each["online_scale"], each["number"] = rate.online_scale, rate.number
            each["first"][: len(rate.first)] = rate.first
            each["second"][: len(rate.second)] = rate.second
        assert logits.shape == (len(self._roles), n) and logits.flags.c_contiguous
        count = np.array([steps], np.int64)
        arrays = (bounds, offsets, keys, dense, label, given, count, logits)
        parts = len(bounds) - 1
        following = _library().small_steps_learn(self._handle, part, parts, *map(address, arrays))
        return checked(following), int(count[0])


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    array, size = ctypes.c_void_p, ctypes.c_int64
    library.small_steps_new.restype = array
    library.small_steps_new.argtypes = [array, array, array, size, size, size, size]
    library.small_steps_delete.restype, library.small_steps_delete.argtypes = None, [array]
    library.small_steps_learn.restype, library.small_steps_learn.argtypes = (
        size,
        [array, size, size, *[array] * 8],
    )
    return library
