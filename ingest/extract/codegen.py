"""Code generation: a feature plan becomes C++ for the host, for a GPU, or for an emulated GPU.

Each node becomes a function that runs it over a block of rows, and each layer a function that runs all its
nodes: the meta-kernel of FeatureBox §4. They are templates of the block, so that one text runs in three ways:

    host_source       RowBlock (kernels/extract/rowblock.hpp): blocks of rows over threads, all layers of a
                      block at a time, so that its results stay in the cache (ingest/extract/host_code.py)
    device_source     ThreadBlock (kernels/runtime/threadblock.cuh): one `__global__` kernel per layer
    emulation_source  the same kernels as loops over their blocks, for tests without a GPU

`Plan` is a struct of pointers to a batch, in the order of `members`: the argument of every kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from livectr.ingest.extract.functions import (
    Terms,
    argument_terms,
    device_of,
    function_of,
    gram_keys,
    resource_of,
    state_type,
)
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import C_TYPES, Expr, width_of
from livectr.ingest.language.literals import literal

if TYPE_CHECKING:
    from livectr.ingest.plan.dag import FeaturePlan

Kind = Literal["rows", "failed", "pool", "column", "resource", "state", "outputs"]


@dataclass(frozen=True)
class Member:
    """Member of the struct `Plan`. words: its size in units of 8 bytes."""

    name: str
    ctype: str
    words: int
    kind: Kind
    node: Expr | None = None


def members(plan: FeaturePlan) -> tuple[Member, ...]:
    """Members of `Plan`, in order."""
    names = Names(plan)
    all_members = [Member("rows", "int64_t", 1, "rows"), Member("failed", "uint8_t*", 1, "failed")]
    all_members += [Member(f"pool{i}", "Pool", 3, "pool") for i in range(len(plan.layout.regions))]
    all_members += [
        Member(names.member(node), column_type(node), _column_words(node), "column", node)
        for node in plan.nodes
    ]
    for node in plan.nodes:
        if resource := resource_of(node):
            words = len(resource.arrays) + len(resource.scalars)
            all_members.append(Member(f"r{names.of(node)}", resource.ctype, words, "resource", node))
    for node in plan.statistics:
        all_members.append(Member(f"s{names.of(node)}", f"const {state_type(node)}*", 1, "state", node))
    return (*all_members, Member("outputs", "Outputs", 7, "outputs"))


def device_source(plan: FeaturePlan) -> str:
    """Generate CUDA C++: `layer<l>` and the packing kernels, each with one argument, a `const Plan*`."""
    return "\n".join([*plan_struct(plan), *_layers(plan), *_packing(plan), *_kernels(plan)])


def emulation_source(plan: FeaturePlan) -> str:
    """Generate the kernels of `device_source` as host functions (const Plan*, number of blocks)."""
    head = '#include "runtime/threads.hpp"\n#include <mutex>'
    body = [*plan_struct(plan), *_layers(plan), *_packing(plan), *_kernels(plan, emulated=True)]
    return "\n".join([head, *body])


def kernel_names(plan: FeaturePlan) -> tuple[str, ...]:
    """Names of the kernels in launch order."""
    layers = [f"layer{layer}" for layer in range(1, len(plan.layers))]
    return (*layers, "pack_count", "pack_place", "pack_write")


class Names:
    """Names of a plan's nodes in C++, and expressions that read them."""

    def __init__(self, plan: FeaturePlan) -> None:
        self._number = {id(node): index for index, node in enumerate(plan.nodes)}

    def of(self, node: Expr) -> int:
        """Number of a node in the plan."""
        return self._number[id(node)]

    def member(self, node: Expr) -> str:
        """Name of the member with a node's result."""
        return f"c{self.of(node)}"

    def column(self, node: Expr) -> str:
        """Column of an output; a constant becomes a constant column."""
        if node.op == "constant":
            return f"Constant<{C_TYPES[node.dtype]}>{{{literal(node.params[0], node.dtype)}}}"
        return f"p.{self.member(node)}"

    def terms(self, node: Expr, pool: str) -> Terms:
        """Terms of a node's function."""
        number = self.of(node)
        return Terms(
            f"p.{self.member(node)}",
            tuple(
                literal(source.params[0], source.dtype)
                if source.op == "constant"
                else f"p.{self.member(source)}"
                for source in node.inputs
            ),
            tuple(source.op == "constant" for source in node.inputs),
            argument_terms(device_of(node))[0],
            f"p.r{number}",
            f"p.s{number}",
            pool,
        )


def column_type(node: Expr, host: bool = False) -> str:
    """C++ type of a node's column (kernels/runtime/columns.cuh)."""
    kind = C_TYPES[dtypes.element(node.dtype)]
    if node.is_root and not host:
        items = "Strings" if kind == "Str" else f"Values<{kind}>"
        return f"List<{items}>" if dtypes.is_list(node.dtype) else items
    return f"Lists<{kind}>" if dtypes.is_list(node.dtype) else f"Values<{kind}>"


def observed_type(node: Expr) -> str:
    """C++ type in which the first input of a statistic node is observed."""
    return "double" if node.inputs[0].dtype in ("float32", "float64") else "int64_t"


def _column_words(node: Expr) -> int:
    if not node.is_root:
        return 1
    text = dtypes.element(node.dtype) in dtypes.TEXTS
    return (3 if dtypes.is_list(node.dtype) else 0) + (6 if text else 1)


def plan_struct(plan: FeaturePlan, *, host: bool = False) -> Iterator[str]:
    """Generate `struct Plan`. On the host a root has the type of a result; a device reads Arrow's layout."""
    yield '#include "operators/operators.cuh"\n#include "extract/pack.cuh"\n'
    devices = [node.device for node in plan.nodes if node.device]
    yield from dict.fromkeys(device.prelude for device in devices if device.prelude)
    yield from dict.fromkeys(text for device in devices for text in argument_terms(device)[1])
    yield '#line 1 "plan"'
    yield "struct Plan {"
    words = 0
    for member in members(plan):
        words += 1 if host and member.kind == "column" else member.words
        ctype = (
            column_type(member.node, host)
            if member.node is not None and member.kind == "column"
            else member.ctype
        )
        comment = (
            f"  // {_comment(member.node)}" if member.kind == "column" and member.node is not None else ""
        )
        yield f"    {ctype} {member.name};{comment}"
    yield "};"
    yield f'static_assert(sizeof(Plan) == {8 * words}, "Plan has no padding");\n'


def node_functions(plan: FeaturePlan, *, host: bool) -> Iterator[str]:
    """Generate `run_<i>` of every node.

    Host compilers compile separate functions much faster than a huge function.
    """
    names = Names(plan)
    attribute = "__attribute__((noinline))" if host else "__device__ __forceinline__"
    skipped = {id(node) for node in plan.fused.values()} if host else set()
    for node in plan.nodes:
        if not node.is_root and id(node) not in skipped:
            yield f"// {_comment(node)} : {node.dtype}"
            yield "template <typename Block>"
            yield f"static {attribute} void run_{names.of(node)}(const Plan& p, const Block& block) {{"
            yield f"    {_run(node, names, plan, host=host)}"
            yield "}"


def _layers(plan: FeaturePlan) -> Iterator[str]:
    """Generate the nodes' functions and `run_layer<l>` of every layer."""
    names = Names(plan)
    yield from node_functions(plan, host=False)
    for level, layer in enumerate(plan.layers[1:], start=1):
        calls = " ".join(f"run_{names.of(node)}(p, block);" for node in layer if not node.is_root)
        yield "template <typename Block>"
        yield f"static __device__ inline void run_layer{level}(const Plan& p, const Block& block) {{"
        yield f"    {calls}\n}}"


def _run(node: Expr, names: Names, plan: FeaturePlan, *, host: bool) -> str:
    pools = plan.layout.pools
    pool = f"p.pool{pools[id(node)]}" if id(node) in pools else ""
    terms, function = names.terms(node, pool), function_of(node)
    grams = plan.fused.get(id(node)) if host else None
    if grams is not None:
        function, below = gram_keys(), names.terms(grams, pool)
        terms = replace(terms, inputs=below.inputs, constant=below.constant, arguments=below.arguments)
    return function.statement(terms, host=host)


def hand_outputs(plan: FeaturePlan, sink: str) -> Iterator[str]:
    """Generate calls that pass every output to `sink`, in order."""
    names = Names(plan)
    yield from (f"    {sink}.field({names.column(node)});" for node in plan.sparse.values())
    place = 0
    for node in plan.dense.values():
        width = width_of(node)
        many = f"numbers({names.column(node)}, {place}, {width})" if dtypes.is_list(node.dtype) else ""
        yield f"    {sink}.{many or f'number({names.column(node)}, {place})'};"
        place += width
    for index, node in enumerate(plan.statistics):
        word, column = observed_type(node), names.column(node.inputs[0])
        yield f"    {sink}.template words<{word}>({column}, {index});"


def _packing(plan: FeaturePlan) -> Iterator[str]:
    """Generate the kernels' bodies that pack outputs into the layout of Features.

    See kernels/extract/pack.cuh.
    """
    for step in ("Count", "Write"):
        name = f"pack_{step.lower()}_outputs"
        yield f"static __device__ inline void {name}(const Plan& p, const ThreadBlock& block) {{"
        yield f"    Pack{step} pack{{p.outputs, block, {len(plan.sparse)}, {len(plan.dense_names)}}};"
        yield from hand_outputs(plan, "pack")
        yield "}"


def _kernels(plan: FeaturePlan, *, emulated: bool = False) -> Iterator[str]:
    bodies = {f"layer{layer}": f"run_layer{layer}(p, block);" for layer in range(1, len(plan.layers))}
    bodies["pack_count"] = "pack_count_outputs(p, block);"
    bodies["pack_place"] = f"pack_place(p.outputs, block, {len(plan.sparse)});"
    bodies["pack_write"] = "pack_write_outputs(p, block);"
    for name in kernel_names(plan):
        yield (_EMULATED if emulated else _KERNEL).format(name=name, body=bodies[name])


_KERNEL = """\
extern "C" __global__ void __launch_bounds__(THREADS) {name}(const Plan* plan) {{
    __shared__ ThreadBlock::Shared shared;
    const Plan& p = *plan;
    const ThreadBlock block{{shared, int64_t(blockIdx.x) * THREADS, p.rows, p.failed}};
    {body}
}}"""
_EMULATED = """\
extern "C" void {name}(const Plan* plan, int64_t blocks) {{
    livectr::parallel_for(blocks, [&](int64_t index) {{
        ThreadBlock::Shared shared;
        const Plan& p = *plan;
        const ThreadBlock block{{shared, index * THREADS, p.rows, p.failed}};
        {body}
    }});
}}"""


def _comment(node: Expr) -> str:
    """Printable ASCII for a `//` comment.

    A final backslash, which would continue it on the next line, is replaced.
    """
    text = ascii(str(node))[1:-1]
    return (text if len(text) <= 90 else text[:87] + "...").replace("\\", "/")
