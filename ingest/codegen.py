"""A plan as one C++ translation unit, for the host and for a GPU.

Per node there is a device function of one row. Results of fixed width are written in the measuring phase;
strings and lists are measured, sizes are summed up, memory is given, and then they are written (FeatureBox §5
does the same with a block's prefix sum and one atomic add). Per layer there is one function of each phase
that runs all its nodes: on a GPU two kernels (the meta-kernel of FeatureBox §4), on the host two loops over
rows, with a barrier after each.

    Plan            the columns of all nodes, and the number of rows
    measure_<i>     rows → sizes of node i          write_<i>     rows → values of node i
    layer<l>_measure, layer<l>_write                 the meta-kernels
    create, destroy, extract, emit                   host entry points (kernels/extract.cuh)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ingest import dtypes
from ingest.expr import C_TYPES, ColumnRef, Expr
from ingest.literals import literal

if TYPE_CHECKING:
    from ingest.plan import FeaturePlan


def device_source(plan: FeaturePlan) -> str:
    """The CUDA-clean part: columns, operators, one device function per node and phase, one kernel per
    layer."""
    return "\n".join(_device(plan))


def host_source(plan: FeaturePlan) -> str:
    """The whole translation unit for the host: the device part and its driver."""
    return "\n".join([*_device(plan), *_host(plan)])


class _Names:
    """Numbers of a plan's nodes, and how inputs are written."""

    def __init__(self, plan: FeaturePlan) -> None:
        self._number = {id(node): index for index, node in enumerate(plan.nodes)}

    def of(self, node: Expr) -> int:
        return self._number[id(node)]

    def column(self, node: Expr) -> str:
        return f"p.c{self.of(node)}"

    def call(self, node: Expr) -> str:
        """The node's device call for one row (and one item, when it is mapped over a list)."""
        device = node.device
        assert device is not None, node
        slots = []
        for source in node.inputs:
            if source.op == "constant":
                slots.append(literal(source.params[0], source.dtype))
            elif not dtypes.is_list(source.dtype):
                slots.append(f"{self.column(source)}.at(row)")
            elif device.rowwise:
                slots.append(f"{self.column(source)}.row(row)")
            else:
                slots.append("items.at(i)")
        return device.call.format(*slots, sink="sink")

    def body(self, node: Expr, each: str) -> str:
        """`each` once, or for every item of the list input that the node is mapped over."""
        lists = [source for source in node.inputs if dtypes.is_list(source.dtype)]
        if node.device is None or node.device.rowwise or not lists:
            return each
        loop = "for (int32_t i = 0; i < items.size(); ++i)"
        return f"const auto items = {self.column(lists[0])}.row(row); {loop} {{ {each} }}"


def column_type(node: Expr) -> str:
    """The C++ type of a node's column (kernels/columns.cuh). Arrow packs bools of roots into bits."""
    kind = dtypes.element(node.dtype)
    if kind in dtypes.TEXTS:
        items = "Strings"
    elif kind == "bool" and node.is_root:
        items = "Bits"
    else:
        items = f"Fixed<{C_TYPES[kind]}>"
    return f"List<{items}>" if dtypes.is_list(node.dtype) else items


def _device(plan: FeaturePlan) -> Iterator[str]:
    names = _Names(plan)
    yield '#include "features.cuh"\n#include "strings.cuh"\n'
    yield from dict.fromkeys(
        node.device.prelude for node in plan.nodes if node.device and node.device.prelude
    )
    yield '#line 1 "plan"'
    yield "struct Plan {\n    int32_t rows;"
    yield from (f"    {column_type(node)} c{names.of(node)};  // {_comment(node)}" for node in plan.nodes)
    yield "};\n"
    for node in plan.nodes:
        if not node.is_root:
            yield f"// {_comment(node)} : {node.dtype}"
            for phase, code in _phases(node, names):
                yield _FUNCTION.format(phase=phase, number=names.of(node), code=code)
    yield "#ifdef __CUDACC__"
    for level, layer in enumerate(plan.layers[1:], start=1):
        for phase in ("measure", "write"):
            calls = " ".join(f"{phase}_{names.of(node)}(p, row);" for node in layer if _has(node, phase))
            yield _KERNEL.format(level=level, phase=phase, calls=calls)
    yield "#endif"


_FUNCTION = """\
static __device__ __forceinline__ void {phase}_{number}(const Plan& p, int32_t row) {{
    {code}
}}"""
_KERNEL = """\
extern "C" __global__ void layer{level}_{phase}(Plan p) {{
    const int32_t row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < p.rows) {{ {calls} }}
}}"""


def _has(node: Expr, phase: str) -> bool:
    return phase == "measure" or node.dtype not in dtypes.FIXED


def _phases(node: Expr, names: _Names) -> Iterator[tuple[str, str]]:
    out, call, kind = names.column(node), names.call(node), dtypes.element(node.dtype)
    assert node.device is not None, node
    if node.dtype in dtypes.FIXED:
        yield "measure", f"{out}.values[row] = {call};"
    elif not dtypes.is_list(node.dtype):
        yield "measure", f"CountBytes sink; {call}; {out}.offsets[row + 1] = saturated(sink.bytes);"
        yield "write", f"WriteBytes sink{{{out}.bytes, {out}.offsets[row], nullptr}}; {call};"
    elif kind in dtypes.TEXTS:
        body = names.body(node, call + ";" if node.device.rowwise else f"{call}; sink.next();")
        ends = f"{out}.items.offsets + {out}.offsets[row] + 1"
        yield (
            "measure",
            f"CountBytes sink; {body} {out}.offsets[row + 1] = saturated(sink.items);"
            f" {out}.row_bytes[row + 1] = saturated(sink.bytes);",
        )
        yield "write", f"WriteBytes sink{{{out}.items.bytes, {out}.row_bytes[row], {ends}}}; {body}"
    else:
        each = call if node.device.rowwise else f"sink.push({call})"
        body = names.body(node, f"{each};")
        yield "measure", f"CountItems sink; {body} {out}.offsets[row + 1] = saturated(sink.items);"
        at = f"{out}.items.values + {out}.offsets[row]"
        yield "write", f"WriteItems<{C_TYPES[kind]}> sink{{{at}}}; {body}"


def _host(plan: FeaturePlan) -> Iterator[str]:
    names = _Names(plan)
    yield '#include "extract.cuh"\nusing namespace livectr;\n'
    yield "struct Context { Plan plan; Arena arena; };"
    yield 'extern "C" Context* create() { return new Context(); }'
    yield 'extern "C" void destroy(Context* context) { delete context; }\n'

    roots = [node for node in plan.nodes if node.is_root]
    yield "static void load_roots(Plan& p, const ArrowArray& batch, const int32_t* columns) {"
    for index, node in enumerate(roots):
        array = f"*batch.children[columns[{index}]], batch.offset"
        yield f"    load({names.column(node)}, {array}{_fill(node)});"
    yield "}\n"

    for level, layer in enumerate(plan.layers[1:], start=1):
        for phase in ("measure", "write"):
            yield f"static void layer{level}_{phase}(const Plan& p, int64_t begin, int64_t end) {{"
            for node in layer:
                if _has(node, phase):
                    call = f"{phase}_{names.of(node)}(p, int32_t(row));"
                    yield f"    for (int64_t row = begin; row < end; ++row) {call}"
            yield "}"

    yield "\nstatic int64_t run(Plan& p, Arena& arena) {"
    for level, layer in enumerate(plan.layers[1:], start=1):
        yield from (f"    reserve({names.column(node)}, arena, p.rows);" for node in layer)
        yield _PARALLEL.format(level=level, phase="measure")
        yield from (
            f"    allocate({names.column(node)}, arena, p.rows);" for node in layer if _has(node, "write")
        )
        if any(_has(node, "write") for node in layer):
            yield _PARALLEL.format(level=level, phase="write")
    yield "    int64_t keys = 0;"
    yield from (f"    keys += {_key_count(node, names)};" for node in plan.sparse.values())
    yield "    if (keys > INT32_MAX) throw TOO_LONG;"
    yield "    return keys;\n}\n"

    yield _EXTRACT
    yield 'extern "C" int64_t emit(Context* context, int32_t* offsets, int64_t* keys, float* dense) {'
    yield "    const Plan& p = context->plan;"
    yield "    int64_t base = 0, replaced = 0;"
    yield "    offsets[0] = 0;"
    for index, node in enumerate(plan.sparse.values()):
        yield f"    pack({_operand(node, names)}, p.rows, base, offsets + {index}ll * p.rows, keys);"
        yield f"    base += {_key_count(node, names)};"
    for index, node in enumerate(plan.dense.values()):
        target = f"dense + {index}, {len(plan.dense)}"
        yield f"    replaced += pack_dense({_operand(node, names)}, p.rows, {target});"
    yield "    return replaced;\n}"


_PARALLEL = """\
    parallel_chunks(p.rows, ROWS_PER_TASK, [&](int64_t begin, int64_t end) {{ layer{level}_{phase}(p, begin,
    end); }});"""
_EXTRACT = """\
// Runs all layers over a batch and returns the number of keys, or a Failure. The batch stays the
// caller's and must live until emit() has been called.
extern "C" int64_t extract(Context* context, const ArrowArray* batch, const int32_t* columns) {
    try {
        context->arena.reset();
        context->plan.rows = int32_t(batch->length);
        load_roots(context->plan, *batch, columns);
        return run(context->plan, context->arena);
    } catch (Failure failure) {
        return failure;
    } catch (const std::bad_alloc&) {
        return OUT_OF_MEMORY;
    }
}
"""


def _operand(node: Expr, names: _Names) -> str:
    return (
        f"Constant<{C_TYPES[node.dtype]}>{{{literal(node.params[0], node.dtype)}}}"
        if node.op == "constant"
        else names.column(node)
    )


def _key_count(node: Expr, names: _Names) -> str:
    return f"key_count({_operand(node, names)}, p.rows)"


def _fill(node: Expr) -> str:
    ref = node.ref
    if isinstance(ref, ColumnRef) and ref.fill is not None:
        return f", {literal(ref.fill, node.dtype)}"
    return ""


def _comment(node: Expr) -> str:
    """One line of printable ASCII that cannot end in a backslash (which would swallow the next line)."""
    text = ascii(str(node))[1:-1]
    return (text if len(text) <= 90 else text[:87] + "...").replace("\\", "/")
