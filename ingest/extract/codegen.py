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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import C_TYPES, Expr, width_of
from livectr.ingest.language.literals import literal
from livectr.ingest.language.resources import Resource

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
        return self._number[id(node)]

    def member(self, node: Expr) -> str:
        return f"c{self.of(node)}"

    def column(self, node: Expr) -> str:
        """Column of an output; a constant becomes a constant column."""
        if node.op == "constant":
            return f"Constant<{C_TYPES[node.dtype]}>{{{literal(node.params[0], node.dtype)}}}"
        return f"p.{self.member(node)}"

    def call(self, node: Expr) -> str:
        """Device call of a node for one row, or for one list item when the node is mapped over a list."""
        device = node.device
        assert device is not None, node
        slots = []
        for source in node.inputs:
            if source.op == "constant":
                slots.append(literal(source.params[0], source.dtype))
            elif not dtypes.is_list(source.dtype):
                slots.append(f"p.{self.member(source)}.at(row)")
            elif device.rowwise:
                slots.append(f"p.{self.member(source)}.row(row)")
            else:
                slots.append("items.at(i)")
        number = self.of(node)
        return device.call.format(*slots, sink="sink", resource=f"p.r{number}", state=f"p.s{number}")

    def body(self, node: Expr, each: str) -> str:
        """`each` once, or for every item of the list that the node is mapped over."""
        lists = [source for source in node.inputs if dtypes.is_list(source.dtype)]
        if node.device is None or node.device.rowwise or not lists:
            return each
        loop = "for (int32_t i = 0; i < items.size(); ++i)"
        return f"const auto items = p.{self.member(lists[0])}.row(row); {loop} {{ {each} }}"


def column_type(node: Expr, host: bool = False) -> str:
    """C++ type of a node's column (kernels/runtime/columns.cuh)."""
    kind = C_TYPES[dtypes.element(node.dtype)]
    if node.is_root and not host:
        items = "Strings" if kind == "Str" else f"Values<{kind}>"
        return f"List<{items}>" if dtypes.is_list(node.dtype) else items
    return f"Lists<{kind}>" if dtypes.is_list(node.dtype) else f"Values<{kind}>"


def state_type(node: Expr) -> str:
    """C++ type of a statistic's values: int64_t for whole numbers, else double."""
    assert node.device is not None and node.device.statistic is not None, node
    return "int64_t" if node.device.statistic.initial().dtype.kind == "i" else "double"


def observed_type(node: Expr) -> str:
    """C++ type in which the first input of a statistic node is observed."""
    return "double" if node.inputs[0].dtype in ("float32", "float64") else "int64_t"


def _column_words(node: Expr) -> int:
    if not node.is_root:
        return 1
    text = dtypes.element(node.dtype) in dtypes.TEXTS
    return (3 if dtypes.is_list(node.dtype) else 0) + (6 if text else 1)


def resource_of(node: Expr) -> Resource | None:
    return node.device.resource if node.device else None


def plan_struct(plan: FeaturePlan, *, host: bool = False) -> Iterator[str]:
    """Generate `struct Plan`. On the host a root has the type of a result; a device reads Arrow's layout."""
    yield '#include "operators/operators.cuh"\n#include "extract/pack.cuh"\n'
    yield from dict.fromkeys(
        node.device.prelude for node in plan.nodes if node.device and node.device.prelude
    )
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
    """Generate `run_<i>` of every node. Host compilers compile separate functions much faster than a huge
    function."""
    names = Names(plan)
    attribute = "__attribute__((noinline))" if host else "__device__ __forceinline__"
    skipped = {id(node) for node in plan.fused.values()} if host else set()
    for node in plan.nodes:
        if not node.is_root and id(node) not in skipped:
            yield f"// {_comment(node)} : {node.dtype}"
            yield "template <typename Block>"
            yield f"static {attribute} void run_{names.of(node)}(const Plan& p, const Block& block) {{"
            yield f"    {(_run_many(node, names, plan) if host else '') or _run(node, names, plan)}"
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


def _run(node: Expr, names: Names, plan: FeaturePlan) -> str:
    assert node.device is not None, node
    out, call = f"p.{names.member(node)}", names.call(node)
    if node.dtype in dtypes.FIXED:
        return f"block.values({out}, [&](int64_t row) {{ return {C_TYPES[node.dtype]}({call}); }});"
    text, many = dtypes.element(node.dtype) in dtypes.TEXTS, dtypes.is_list(node.dtype)
    if text:
        # A mapped call writes one string; a rowwise call ends its strings itself.
        each = call if node.device.rowwise or not many else f"{call}; sink.next()"
        shape = "string_lists" if many else "strings"
    else:
        each = call if node.device.rowwise else f"sink.push({call})"
        shape = "lists"
    body = names.body(node, f"{each};")
    pool = f"p.pool{plan.layout.pools[id(node)]}"
    return f"block.{shape}({out}, {pool}, [&](int64_t row, auto& sink) {{ {body} }});"


def _run_many(node: Expr, names: Names, plan: FeaturePlan) -> str:
    """A call for many values at once, where the host has one; else nothing."""
    assert node.device is not None, node
    if (grams := plan.fused.get(id(node))) is not None:
        pool = f"p.pool{plan.layout.pools[id(node)]}"
        columns = f"p.{names.member(node)}, {pool}, {names.column(grams.inputs[0])}"
        return f"block.gram_keys({columns}, {grams.params[0]});"
    sources = [source for source in node.inputs if source.op != "constant"]
    if node.device.rowwise or len(sources) != 1 or dtypes.element(node.dtype) in dtypes.TEXTS:
        return ""
    out, source = f"p.{names.member(node)}", f"p.{names.member(sources[0])}"
    many = node.op == "key" and dtypes.element(sources[0].dtype) in dtypes.TEXTS
    if not dtypes.is_list(node.dtype):
        return f"block.keys({source}.values, block.rows, {out}.values);" if many else ""
    kind = C_TYPES[dtypes.element(node.dtype)]
    each = names.call(node).replace("items.at(i)", "from[i]")
    body = "block.keys(from, n, to);" if many else f"for (int64_t i = 0; i < n; ++i) to[i] = {kind}({each});"
    pool = f"p.pool{plan.layout.pools[id(node)]}"
    arguments = f"const auto* from, int64_t n, {kind}* to"
    return f"block.map({out}, {pool}, {source}, [&]({arguments}) {{ {body} }});"


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
    """Generate the kernels' bodies that pack outputs into the layout of Features
    (kernels/extract/pack.cuh)."""
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
    """Printable ASCII for a `//` comment. A final backslash, which would continue it on the next line, is
    replaced."""
    text = ascii(str(node))[1:-1]
    return (text if len(text) <= 90 else text[:87] + "...").replace("\\", "/")
