"""Plan of calls: a feature plan in words, which kernels/extract/program.hpp runs without a compiler.

    node ─► function of the library ─► step: function, columns, conversions, arguments
    constant ─► column of one repeated value, a block long

`Words` builds what `Program` reads; both name the parts in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from livectr.ingest.extract.functions import device_of, function_of, gram_keys
from livectr.ingest.extract.host_code import recall_bytes
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr, width_of
from livectr.ingest.plan.layout import column_bytes
from livectr.kernels.extract.program import find_function
from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.columns import BLOCK_ROWS
from livectr.system.errors import InternalError

if TYPE_CHECKING:
    from livectr.ingest.plan.dag import FeaturePlan

TYPES: Final = ("int64", "int32", "float32", "float64", "bool", "string")
"""Types in the order of `Kind` in kernels/extract/program.hpp."""
_LIST: Final = 8
_BUFFER: Final = 16
"""Bytes per row of a column of scratch."""


class Program:
    """Description of a plan for kernels/extract/program.hpp.

    Args:
        plan: without users' operators.

    Raises:
        InternalError: the library lacks a function.
    """

    def __init__(self, plan: FeaturePlan) -> None:
        self._plan = plan
        self._kept: list[object] = []
        self._numbers = {id(node): number for number, node in enumerate(plan.nodes)}
        self._constants: dict[tuple[str, str], int] = {}
        self._columns: list[int] = []
        self._scratch = 0
        outputs = [*self._parts(), *self._outputs()]
        steps = [word for node in self._computed() for word in self._step(node)]
        head = [*self._nodes(), *self._constant_columns()]
        layout = [plan.layout.bytes_per_row, self._scratch, int(plan.layout.has_output_pool)]
        count = len(self._computed())
        #: int64[words], as `Program` of kernels/extract/program.hpp reads them
        self.words = np.array([*head, *layout, *self._roots(), count, *steps, *outputs], np.int64)

    def _computed(self) -> list[Expr]:
        """Nodes with a step, in plan order: n-grams that are hashed at once have none."""
        skipped = {id(node) for node in self._plan.fused.values()}
        return [node for node in self._plan.nodes if not node.is_root and id(node) not in skipped]

    def _nodes(self) -> list[int]:
        fields, slots = {id(node) for node in self._plan.sparse.values()}, self._plan.layout.slots
        words = [len(self._plan.nodes)]
        for node in self._plan.nodes:
            kept = not node.is_root and node.dtype == "int64" and id(node) in fields
            words += [_kind(node.dtype), -1 if node.is_root else slots[id(node)], int(kept)]
        return words

    def _constant_columns(self) -> list[int]:
        return [len(self._columns), *self._columns]

    def _roots(self) -> list[int]:
        fields = {id(node) for node in self._plan.sparse.values()}
        alone = {id(part.root): number for number, part in enumerate(self._plan.recalled) if part.alone}
        roots = [node for node in self._plan.nodes if node.is_root]
        words = [len(roots)]
        for node in roots:
            fill = node.ref.fill if isinstance(node.ref, ColumnRef) else None
            value = (0, 0) if fill is None else self._value(node.dtype, fill)
            words += [self._numbers[id(node)], alone.get(id(node), -1), int(fill is not None)]
            words += [int(id(node) in fields), *value]
        return words

    def _step(self, node: Expr) -> list[int]:
        grams = self._plan.fused.get(id(node))
        source = node if grams is None else grams
        function = function_of(node) if grams is None else gram_keys()
        kinds = [dtypes.element(dtype) if function.each else dtype for dtype in function.inputs]
        inputs: list[int] = []
        own = 0  # inputs that differ from row to row
        for below, kind, cast, convert in zip(
            source.inputs, kinds, function.casts, function.conversions(), strict=True
        ):
            if below.op == "constant":
                inputs += [self._constant(below.params[0], cast or kind), 0, column_bytes(cast or kind)]
            else:
                found = find_function(convert.name) if convert is not None else 0
                if convert is not None and not found:
                    raise InternalError(f"the library has no conversion {convert.name!r}")
                inputs += [self._numbers[id(below)], found, column_bytes(kind)]
                own += 1
        self._scratch = max(self._scratch, 2 * _BUFFER * len(source.inputs))
        address_of = find_function(function.in_library().name)
        if not address_of:
            raise InternalError(f"the library has no function {function.in_library().name!r} for {node}")
        outputs = self._plan.layout.has_output_pool and self._plan.layout.pools.get(id(node)) == 0
        listed = function.listed[0] if function.each else -1
        part, place = self._recalled(node)
        state = next((i for i, other in enumerate(self._plan.statistics) if other is node), -1)
        return [
            *(self._numbers[id(node)], address_of, int(outputs)),
            *(listed, int(own == 1), column_bytes(dtypes.element(node.dtype)), part, place, state),
            *(self._arguments(source), self._resource(node), len(source.inputs)),
            *inputs,
        ]

    def _recalled(self, node: Expr) -> tuple[int, int]:
        """Part that a node belongs to, and its place among the part's kept values; -1 for none."""
        for number, part in enumerate(self._plan.recalled):
            if any(own is node for own in part.nodes):
                return number, next((i for i, kept in enumerate(part.kept) if kept is node), -1)
        return -1, -1

    def _parts(self) -> list[int]:
        roots = [node for node in self._plan.nodes if node.is_root]
        words = [len(self._plan.recalled)]
        for part in self._plan.recalled:
            at = next(number for number, root in enumerate(roots) if root is part.root)
            widths = [column_bytes(node.dtype) for node in part.kept]
            nodes = [self._numbers[id(node)] for node in part.nodes]
            words += [at, int(part.keeps_text), recall_bytes(self._plan)]
            words += [len(widths), *widths, len(nodes), *nodes]
        return words

    def _outputs(self) -> list[int]:
        plan, place = self._plan, 0
        words = [len(plan.sparse)]
        for node in plan.sparse.values():
            words += [self._column(node), _kind(node.dtype)]
        words.append(len(plan.dense))
        for node in plan.dense.values():
            words += [self._column(node), _kind(node.dtype), place, width_of(node)]
            place += width_of(node)
        words.append(len(plan.statistics))
        for node in plan.statistics:
            below = node.inputs[0]
            words += [self._column(below), _kind(below.dtype), int(below.dtype not in ("float32", "float64"))]
        return [*words, len(plan.dense_names)]

    def _column(self, node: Expr) -> int:
        if node.op == "constant":
            return self._constant(node.params[0], node.dtype)
        return self._numbers[id(node)]

    def _constant(self, value: Any, dtype: str) -> int:
        """Number of the column that repeats a constant."""
        key = dtype, repr(value)
        if key not in self._constants:
            self._constants[key] = len(self._plan.nodes) + len(self._columns)
            if dtype in dtypes.TEXTS:
                words = np.array(self._value(dtype, value), np.int64)
                column: npt.NDArray[Any] = np.tile(words, (BLOCK_ROWS, 1))
            else:
                column = np.full(BLOCK_ROWS, value, dtype)
            self._columns.append(self._keep(column))
        return self._constants[key]

    def _value(self, dtype: str, value: Any) -> tuple[int, int]:
        """Words of a value: its bytes, or pointer and size of a text."""
        if dtype in dtypes.TEXTS:
            data = value.encode() if isinstance(value, str) else value
            return self._text(data), len(data)
        word = np.zeros(8, np.uint8)
        number = np.array([value], dtype).view(np.uint8)
        word[: len(number)] = number
        return int(word.view(np.int64)[0]), 0

    def _text(self, data: bytes) -> int:
        # Operators read eight bytes at a time, but none behind a text's end.
        return self._keep(np.frombuffer(data or b"\0", np.uint8))

    def _arguments(self, node: Expr) -> int:
        words = []
        for dtype, value in device_of(node).arguments:
            many = isinstance(value, tuple)
            words.append(self._keep(np.array(value, dtype)) if many else self._value(dtype, value)[0])
        return self._keep(np.array(words, np.int64)) if words else 0

    def _resource(self, node: Expr) -> int:
        resource = device_of(node).resource
        if resource is None:
            return 0
        words = [*map(address, resource.arrays), *resource.scalars]
        return self._keep(np.array(words, np.int64))

    def _keep(self, array: npt.NDArray[Any]) -> int:
        """Address of an array that lives as long as the description."""
        self._kept.append(array)
        return address(array)


def _kind(dtype: str) -> int:
    number = TYPES.index(dtypes.element(dtype).replace("binary", "string"))
    return number + _LIST * dtypes.is_list(dtype)
