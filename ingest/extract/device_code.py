"""Code generation for devices: the functions that a plan's nodes use, and a kernel per layer.

A layer's kernel is the meta-kernel of FeatureBox §4. Its grid is nodes × blocks of rows; a block takes its
node from a table (`ingest.extract.device_tables`) and calls the node's function. Nodes that differ only in
columns, constants and arguments share a function, so that code grows with the functions that a plan uses,
not with its nodes. On a GPU each kernel is a translation unit of its own: they are compiled side by side, and
a change of one feature compiles its layer only. An emulated device has the same kernels in one unit.

Every plan has the same packing kernels (kernels/extract/pack.cuh).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Literal

from livectr.ingest.extract.codegen import result_type
from livectr.ingest.extract.functions import Function, device_of, function_of
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import C_TYPES, Expr
from livectr.kernels.runtime.device import Unit

if TYPE_CHECKING:
    from livectr.ingest.plan.dag import FeaturePlan

Store = Literal["result", "root", "constant"]
HEAD_WORDS = 3
"""Words of a node before its inputs: function, output, pool."""
MOST_WEIGHT, POOL_WEIGHT = 48, 3
"""About the most that a kernel's functions weigh, and the weight of one whose results are in a pool; others
weigh 1. NVRTC's time grows faster than a kernel's code: 27 functions with pools take 2.3 CPU seconds, and
three times 9 take 1.7."""
PACK_SOURCE = '#include "extract/pack.cuh"\n'
PACK_KERNELS = ("pack_count", "pack_place", "pack_write")


@dataclass(frozen=True)
class DeviceFunction:
    """Function of a node on a device.

    Args:
        function: of the node.
        stores: for each input, the memory that it is read from.
    """

    function: Function
    stores: tuple[Store, ...]

    @property
    def input_places(self) -> tuple[int, ...]:
        """Place of each input among a node's words; the last value is that of the first argument."""
        at = [HEAD_WORDS]
        for dtype, store in zip(self.function.inputs, self.stores, strict=True):
            at.append(at[-1] + (2 if store == "constant" and dtype in dtypes.TEXTS else 1))
        return tuple(at)

    @property
    def word(self) -> str:
        """Words of its call, for compilers' reports and profiles."""
        return "_".join(re.findall(r"[a-z]\w*", re.sub(r"{.*?}", "", self.function.call)))

    def definition(self, name: str) -> str:
        """C++ of the function."""
        function, (*places, first) = self.function, self.input_places
        lines = [f"const auto out = node.result<{result_type(function.output)}>(1);"]
        for number, (dtype, store, place) in enumerate(
            zip(function.inputs, self.stores, places, strict=True)
        ):
            lines.append(f"const auto in{number} = {_read(dtype, store, place)};")
        for number, dtype in enumerate(function.arguments):
            kind = f"const {C_TYPES[dtype[:-2]]}*" if dtype.endswith("[]") else C_TYPES[dtype]
            lines.append(f"const auto a{number} = node.value<{kind}>({first + number});")
        behind = first + len(function.arguments)
        if function.resource:
            lines.append(f"const auto resource = node.value<{function.resource}>({behind});")
        if function.state:
            lines.append(f"const auto* const state = node.state<{function.state}>({behind});")
        lines.append(function.statement(function.terms("node.pool()"), host=False))
        body = "\n".join(f"    {line}" for line in lines)
        return f"NODE_FUNCTION {name}(const Node node, const ThreadBlock block) {{\n{body}\n}}"


def root_type(dtype: str) -> str:
    """C++ type of a column of the batch on a device: Arrow's layout."""
    kind = C_TYPES[dtypes.element(dtype)]
    items = "Strings" if kind == "Str" else f"Values<{kind}>"
    return f"List<{items}>" if dtypes.is_list(dtype) else items


def _read(dtype: str, store: Store, place: int) -> str:
    """C++ of a column among a node's words."""
    if store == "constant":
        return f"Constant<{C_TYPES[dtype]}>{{node.value<{C_TYPES[dtype]}>({place})}}"
    column = root_type(dtype) if store == "root" else result_type(dtype)
    return f"node.{store}<{column}>({place})"


def store_of(node: Expr) -> Store:
    """Memory that a node's values are read from."""
    return "constant" if node.op == "constant" else "root" if node.is_root else "result"


def device_function(node: Expr) -> DeviceFunction:
    """Function of a computed node."""
    return DeviceFunction(function_of(node), tuple(store_of(source) for source in node.inputs))


@dataclass(frozen=True)
class NodeKernel:
    """Kernel of a layer's nodes.

    Args:
        name: of the kernel.
        number: of the kernel, in launch order.
        layer: of its nodes.
        functions: of its nodes; a node's words begin with the place of its function here.
        nodes: in the order of their functions, so that blocks side by side run the same code.
    """

    name: str
    number: int
    layer: int
    functions: tuple[DeviceFunction, ...]
    nodes: tuple[Expr, ...]


def node_kernels(plan: FeaturePlan) -> tuple[NodeKernel, ...]:
    """Kernels of a plan's nodes in launch order, one for each layer.

    A layer whose functions weigh more than MOST_WEIGHT has several.
    """
    found: list[NodeKernel] = []
    for layer, nodes in enumerate(plan.layers):
        of: dict[DeviceFunction, list[Expr]] = {}
        for node in nodes:
            if not node.is_root:
                of.setdefault(device_function(node), []).append(node)
        functions = sorted(of, key=_order)
        for part, group in enumerate(_parts(functions)):
            name = f"layer{layer}" if part == 0 else f"layer{layer}_{part + 1}"
            computed = tuple(node for function in group for node in of[function])
            found.append(NodeKernel(name, len(found), layer, tuple(group), computed))
    return tuple(found)


def weight(function: DeviceFunction) -> int:
    """Weight of a function in a kernel's compilation."""
    return 1 if function.function.output in dtypes.FIXED else POOL_WEIGHT


def _order(each: DeviceFunction) -> tuple[object, ...]:
    """Functions whose results are in a pool come first: they take longest. A family's stand side by side."""
    return each.function.output in dtypes.FIXED, each.function.name, each.stores


def _parts(functions: Sequence[DeviceFunction]) -> Iterator[list[DeviceFunction]]:
    """Parts of about equal weight. Functions of a name mostly share a part, and with it what they call."""
    ends = list(accumulate(map(weight, functions)))
    parts = -(-ends[-1] // MOST_WEIGHT) if ends else 0
    placed = zip(functions, ends, strict=True)
    for _, group in groupby(placed, key=lambda pair: (pair[1] - 1) * parts // ends[-1]):
        yield [function for function, _ in group]


def device_units(plan: FeaturePlan) -> tuple[Unit, ...]:
    """Units for a GPU: one for each kernel of nodes, and the packing kernels'."""
    return (*(_unit([kernel]) for kernel in node_kernels(plan)), Unit(PACK_SOURCE, PACK_KERNELS))


def emulation_units(plan: FeaturePlan) -> tuple[Unit, ...]:
    """Units for an emulated device: the kernels of `device_units` in one unit, each function once."""
    unit = _unit(node_kernels(plan))
    return (Unit(unit.source + PACK_SOURCE, (*unit.kernels, *PACK_KERNELS)),)


def _unit(kernels: Sequence[NodeKernel]) -> Unit:
    every = dict.fromkeys(function for kernel in kernels for function in kernel.functions)
    names = {function: f"{function.word}_{number}" for number, function in enumerate(every)}
    devices = [device_of(node) for kernel in kernels for node in kernel.nodes]
    lines = ['#include "extract/device_plan.cuh"', '#include "operators/operators.cuh"']
    lines += dict.fromkeys(device.prelude for device in devices if device.prelude)
    lines.append('#line 1 "plan"')
    for function, name in names.items():
        lines += [f"// {function.function.name}", function.definition(name)]
    for kernel in kernels:
        lines += _kernel(kernel, [names[function] for function in kernel.functions])
    return Unit("\n".join([*lines, ""]), tuple(kernel.name for kernel in kernels))


def _kernel(kernel: NodeKernel, functions: Sequence[str]) -> Iterator[str]:
    yield f"BOUNDED_KERNEL({kernel.name}, __launch_bounds__(THREADS)) {{"
    yield f"    const Node node = node_at(p, {kernel.number}, index);"
    yield "    const ThreadBlock rows = rows_at(p, block, index);"
    yield "    switch (node.words[0]) {"
    yield from (f"        case {number}: return {name}(node, rows);" for number, name in enumerate(functions))
    yield "    }\n}"
