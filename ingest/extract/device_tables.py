"""Tables of a plan on a device: which columns, constants and data each node and each output reads.

They are the words that kernels/extract/device_plan.cuh declares, and go to the device once:

    node      function of its layer, slot of the result, pool, then inputs, arguments, resource and state
    input     result: its slot; column of the batch: word of its struct; constant: its bytes
    argument  its bytes; array and text: an address
    field     type, store, column, place, width (`Field` of kernels/extract/pack.cuh)

Only the columns of the batch and the memory of results change from batch to batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from livectr.ingest.extract.device_code import (
    device_function,
    node_kernels,
    store_of,
)
from livectr.ingest.extract.functions import device_of
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr, width_of

if TYPE_CHECKING:
    from livectr.ingest.plan.dag import FeaturePlan

Array = npt.NDArray[Any]
_TYPES: Final = dtypes.FIXED
"""Types in the order of `Type` in kernels/extract/pack.cuh."""
_STORES: Final = ("result", "result list", "root", "root list", "constant")
"""Stores in the order of `Store` there."""


def root_words(root: Expr) -> int:
    """Words of the struct of a column of the batch (kernels/runtime/columns.cuh)."""
    text = dtypes.element(root.dtype) in dtypes.TEXTS
    return (3 if dtypes.is_list(root.dtype) else 0) + (6 if text else 1)


class Tables:
    """Tables of a plan, before they are on a device.

    Args:
        plan: the plan.

    Attributes:
        kernels: of the plan's nodes, in launch order.
        arrays: texts and arrays of the plan's constants and arguments, and the resources' arrays.
        roots: id of a root → first word of its struct among the batch's words.
        root_words: words of all roots.
    """

    def __init__(self, plan: FeaturePlan) -> None:
        self._plan = plan
        self.kernels = node_kernels(plan)
        self.arrays: list[Array] = []
        self.roots: dict[int, int] = {}
        self.root_words = 0
        for node in plan.nodes:
            if node.is_root:
                self.roots[id(node)] = self.root_words
                self.root_words += root_words(node)
        self._addresses: list[tuple[int, int]] = []  # a word, and the array whose address it is
        sizes = [len(kernel.nodes) for kernel in self.kernels]
        self._words = np.cumsum([0, *sizes]).tolist()
        self._nodes, self._records = len(self._words), len(self._words) + sum(sizes)
        self._words += [0] * sum(sizes)
        number = self._nodes
        for kernel in self.kernels:
            functions = {function: place for place, function in enumerate(kernel.functions)}
            for node in kernel.nodes:
                self._words[number] = len(self._words) - self._records
                self._node(node, functions[device_function(node)])
                number += 1
        self._fields = len(self._words)
        self._outputs()

    @property
    def begins(self) -> tuple[int, ...]:
        """Word at which each table begins: kernels, nodes, words of nodes, fields."""
        return 0, self._nodes, self._records, self._fields

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return 8 * len(self._words)

    def _node(self, node: Expr, function: int) -> None:
        layout, device = self._plan.layout, device_of(node)
        self._words += [function, layout.slots[id(node)], layout.pools.get(id(node), 0)]
        for source in node.inputs:
            if source.op == "constant":
                self._value(source.params[0], source.dtype)
            else:
                self._words.append(self._column(source))
        for dtype, value in device.arguments:
            if isinstance(value, tuple):
                self._address(np.array(value, dtype))
            else:
                self._value(value, dtype)
        if device.resource is not None:
            for array in device.resource.arrays:
                self._address(array)
            self._words += device.resource.scalars
        if device.statistic is not None:
            self._words.append(next(i for i, other in enumerate(self._plan.statistics) if other is node))

    def _outputs(self) -> None:
        for node in self._plan.sparse.values():
            self._field(node, 0, 0)
        place = 0
        for node in self._plan.dense.values():
            self._field(node, place, width_of(node))
            place += width_of(node)
        for number, node in enumerate(self._plan.statistics):
            self._field(node.inputs[0], number, 0)

    def _field(self, node: Expr, place: int, width: int) -> None:
        store = store_of(node) + (" list" if dtypes.is_list(node.dtype) else "")
        kind = _TYPES.index(dtypes.element(node.dtype))
        self._words.append(kind | _STORES.index(store) << 32)
        if node.op == "constant":
            self._value(node.params[0], node.dtype)
        else:
            self._words.append(self._column(node))
        self._words += [place, width]

    def _column(self, node: Expr) -> int:
        """Word by which a node's column is found."""
        return self.roots[id(node)] if node.is_root else self._plan.layout.slots[id(node)]

    def _value(self, value: Any, dtype: str) -> None:
        """Adds the bytes of a value: one word, or address and size of a text."""
        if dtype in dtypes.TEXTS:
            data = value.encode() if isinstance(value, str) else value
            self._address(np.frombuffer(data, np.uint8))
            self._words.append(len(data))
            return
        word = np.zeros(8, np.uint8)
        number = np.array([value], dtype).view(np.uint8)
        word[: len(number)] = number
        self._words.append(int(word.view(np.int64)[0]))

    def _address(self, array: Array) -> None:
        """Adds a word that is the address of an array."""
        self._addresses.append((len(self._words), len(self.arrays)))
        self._words.append(0)
        self.arrays.append(array)

    def at(self, addresses: Sequence[int]) -> npt.NDArray[np.int64]:
        """Words of the tables, given the addresses of `arrays`."""
        words = np.array(self._words, np.int64)
        for word, array in self._addresses:
            words[word] = addresses[array]
        return words
