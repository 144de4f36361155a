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


@dataclass(frozen=True)
class Lessons:
    """Targets and weights of the b examples of a batch, in place of its labels.

    Attributes:
        target, weight: f32[R, b], of each role.
        shift: f32[R, b], of the logits in the loss.
        inertia: f64[R], is added to the curvature of the bias.
        settles: as of `trainer.des.dense.DenseAdam.step`.
    """

    target: F32
    weight: F32
    shift: F32
    inertia: npt.NDArray[np.float64]
    settles: bool


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

    def open(self, block: Block, rates: Sequence[RoleRates], logits: F32) -> OpenBlock:
        """Makes a block ready to be learned.

        Args:
            block: batches of at most `most` examples.
            rates: of each role, in all batches.
            logits: f32[R, n], gets the scores of each role.
        """
        bounds = contiguous(block.bounds, np.int64, (None,))
        n, sizes = int(bounds[-1]), np.diff(bounds)
        if bounds[0] or sizes.min() < 0 or sizes.max() > self._most:
            raise ValueError(f"bounds {bounds} must rise from 0 in steps of at most {self._most}")
        offsets = contiguous(block.offsets, np.int32, (len(self._front.fields) * n + 1,))
        keys = contiguous(block.keys, np.int64, (int(offsets[-1]),))
        dense = contiguous(block.dense, np.float32, (n, self._dense))
        label = contiguous(block.label, np.float32, (n,))
        assert logits.shape == (len(self._roles), n) and logits.flags.c_contiguous
        given = np.zeros(len(rates), _RATES)
        for each, rate in zip(given, rates, strict=True):
            each["network"], each["bias"], each["scale"] = rate.network, rate.bias, rate.scale
            each["online_scale"], each["number"] = rate.online_scale, rate.number
            each["first"][: len(rate.first)] = rate.first
            each["second"][: len(rate.second)] = rate.second
        return OpenBlock(self, Block(bounds, offsets, keys, dense, label), given, logits)

    @property
    def handle(self) -> int:
        """Address of the compiled steps."""
        return int(self._handle)


class _Block(ctypes.Structure):
    _fields_ = (
        ("parts", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("bounds", "offsets", "keys", "dense", "label")),
    )


class _Lessons(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("target", "weight", "shift", "inertia")),
        ("settles", ctypes.c_bool),
    )


class OpenBlock:
    """Block whose batches are learned, one after the other; made by `SmallSteps.open`.

    Attributes:
        bounds, label: of the block.
    """

    def __init__(self, steps: SmallSteps, block: Block, rates: npt.NDArray[np.void], logits: F32) -> None:
        self._steps, self._block, self._rates, self._logits = steps, block, rates, logits
        self.bounds, self.label = block.bounds, block.label
        arrays = (block.bounds, block.offsets, block.keys, block.dense, block.label)
        self._given = _Block(len(self.bounds) - 1, *(address(array) for array in arrays))

    def learn(self, part: int, steps: int) -> tuple[int, int]:
        """Learns batches one after the other, up to one whose gradients are not finite: that is scored only.

        Args:
            part: number of the first batch.
            steps: number of steps that the networks have learned.

        Returns:
            Number of the batch that follows, and of steps that the networks have learned here.
        """
        count = np.array([steps], np.int64)
        following = _library().small_steps_learn(
            self._steps.handle,
            ctypes.byref(self._given),
            part,
            address(self._rates),
            address(count),
            address(self._logits),
        )
        return checked(following), int(count[0])

    def score(self, part: int) -> F32:
        """Logits f32[R, b] of a batch with examples, from before it is learned; `teach` follows."""
        before = np.empty((len(self._logits), self.bounds[part + 1] - self.bounds[part]), np.float32)
        given = ctypes.byref(self._given)
        checked(_library().small_steps_score(self._steps.handle, given, part, len(before), address(before)))
        return before

    def teach(self, part: int, lessons: Lessons, steps: int) -> bool:
        """Learns the batch that `score` has read; returns whether its gradients are finite, else it does not.

        Args:
            part: number of the batch.
            lessons: take the place of its labels.
            steps: number of steps that the networks have learned.
        """
        each = (lessons.target, lessons.weight, lessons.shift, lessons.inertia)
        given = _Lessons(*(address(array) for array in each), lessons.settles)
        learned = _library().small_steps_teach(
            self._steps.handle,
            ctypes.byref(self._given),
            part,
            ctypes.byref(given),
            address(self._rates),
            steps,
            address(self._logits),
        )
        return bool(checked(learned))


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    array, size = ctypes.c_void_p, ctypes.c_int64
    library.small_steps_new.restype = array
    library.small_steps_new.argtypes = [array, array, array, size, size, size, size]
    library.small_steps_delete.restype, library.small_steps_delete.argtypes = None, [array]
    for call, counts in (
        (library.small_steps_learn, (array, size, array, array, array)),
        (library.small_steps_score, (array, size, size, array)),
        (library.small_steps_teach, (array, size, array, array, size, array)),
    ):
        call.restype, call.argtypes = size, [array, *counts]
    return library
