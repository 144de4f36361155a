"""Code generation for the host: `Generated` of kernels/extract/extract.hpp, and the C interface."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from livectr.ingest.extract.codegen import (
    Names,
    hand_outputs,
    node_functions,
    plan_struct,
    resource_of,
    state_type,
)
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr
from livectr.ingest.language.literals import literal

if TYPE_CHECKING:
    from livectr.ingest.plan.dag import FeaturePlan


def host_source(plan: FeaturePlan) -> str:
    """Generate the translation unit of the host extractor."""
    return "\n".join([*plan_struct(plan, host=True), *node_functions(plan, host=True), *_host(plan)])


def _host(plan: FeaturePlan) -> Iterator[str]:
    names, layout = Names(plan), plan.layout
    yield '#include "extract/extract.hpp"\nusing namespace livectr;\n'
    lists = [dtypes.is_list(node.dtype) for node in plan.sparse.values()]
    sizes = dict(FIELDS=len(lists), LISTS=sum(lists), DENSE=len(plan.dense_names))
    sizes |= dict(OBSERVED=len(plan.statistics), BYTES_PER_ROW=layout.bytes_per_row)
    sizes |= dict(NODES=len(plan.nodes))
    yield "struct Generated {"
    yield f"    static constexpr int64_t {', '.join(f'{name} = {size}' for name, size in sizes.items())};"
    flags = ", ".join(str(int(is_list)) for is_list in lists)
    yield f"    static std::vector<uint8_t> list_fields() {{ return {{{flags}}}; }}"
    kept = {id(node) for node in plan.sparse.values()}
    yield "    static void place(Plan& p, uint8_t* memory, int64_t rows, HostPool& kept) {"
    for node in plan.nodes:
        values = f"p.{names.member(node)}.values"
        if not node.is_root and node.dtype == "int64" and id(node) in kept:
            yield f"        {values} = room<int64_t>(kept, rows);"
        elif not node.is_root:
            at = f"memory + {layout.slots[id(node)]}ll * BLOCK_ROWS"
            yield f"        {values} = reinterpret_cast<decltype({values})>({at});"
    yield "    }"
    yield "    static void place_shared(Plan& p, uint8_t* memory) {"
    for node in plan.nodes:
        if not node.is_root:
            values = f"p.{names.member(node)}.values"
            yield f"        {values} = reinterpret_cast<decltype({values})>(memory + {16 * names.of(node)});"
    yield "    }"
    roots = [node for node in plan.nodes if node.is_root]
    yield "    static void load(Plan& p, const Plan& shared, const uint8_t* shares, const ArrowArray& batch,"
    yield "                     const int32_t* columns, int64_t first, int64_t rows, HostPool& pool,"
    yield "                     HostPool& kept) {"
    yield "        first += batch.offset;"
    for index, node in enumerate(roots):
        pool, column = "kept" if id(node) in kept else "pool", names.member(node)
        array = f"*batch.children[columns[{index}]], first, rows, {pool}"
        yield f"        if (shares[{names.of(node)}] == OWN) ::load(p.{column}, {array}{_fill(node)});"
        yield f"        else ::load_shared(p.{column}, shared.{column}, rows, {pool});"
    yield "    }"
    yield "    static void load_shared(Plan& p, const uint8_t* shares, const ArrowArray& batch,"
    yield "                            const int32_t* columns, HostPool& pool) {"
    for index, node in enumerate(roots):
        array, column = f"*batch.children[columns[{index}]], batch.offset, 1, pool", names.member(node)
        yield f"        if (shares[{names.of(node)}] != OWN) ::load(p.{column}, {array}{_fill(node)});"
    yield "    }"
    skipped = {id(node) for node in plan.fused.values()}
    computed = [
        node for layer in plan.layers[1:] for node in layer if not node.is_root and id(node) not in skipped
    ]
    yield "    static void run(const Plan& p, const Plan& shared, const uint8_t* shares,"
    yield "                    const RowBlock& block) {"
    for node in computed:
        number, column = names.of(node), names.member(node)
        yield f"        if (shares[{number}] == OWN) run_{number}(p, block);"
        yield f"        else if (shares[{number}] == SPREAD) spread(p.{column}, shared.{column}, block.rows);"
    yield "    }"
    yield "    static void run_shared(const Plan& p, const uint8_t* shares, const RowBlock& block) {"
    for node in computed:
        yield f"        if (shares[{names.of(node)}] != OWN) run_{names.of(node)}(p, block);"
    yield "    }"
    yield "    static int64_t extent(const Plan& p, const uint8_t* shares) {"
    yield "        int64_t total = 0;"
    for node in plan.nodes:
        if node.dtype not in dtypes.FIXED:
            number, column = names.of(node), names.member(node)
            yield f"        if (shares[{number}] == SPREAD) total += ::extent(p.{column});"
    yield "        return total;"
    yield "    }"
    outputs = "&p.pool0" if layout.has_output_pool else "nullptr"
    yield f"    static const ::Pool* output_pool(const Plan& p) {{ return {outputs}; }}"
    yield "    static void emit(const Plan& p, Emitter& emitter) {"
    yield from hand_outputs(plan, "    emitter")
    yield "    }"
    yield "};"
    yield from _bind(plan, names)
    yield _ENTRY


def _bind(plan: FeaturePlan, names: Names) -> Iterator[str]:
    """Generate `bind_members`, which copies resources word by word, and `set_states`, pointers of the
    statistics."""
    yield "static void bind_members(Plan& p, const int64_t* words) {"
    at = 0
    for node in plan.nodes:
        if resource := resource_of(node):
            size = len(resource.arrays) + len(resource.scalars)
            yield f'    static_assert(sizeof(p.r{names.of(node)}) == {8 * size}, "{resource.ctype}");'
            yield f"    memcpy((void*)&p.r{names.of(node)}, words + {at}, {8 * size});"
            at += size
    yield "}\nstatic void set_states(Plan& p, void* const* states) {"
    for index, node in enumerate(plan.statistics):
        yield f"    p.s{names.of(node)} = static_cast<const {state_type(node)}*>(states[{index}]);"
    yield "}"


_ENTRY = """
using Extraction = Context<Plan, Generated>;
extern "C" Extraction* create(const int64_t* words) {
    auto* const context = new Extraction();
    bind_members(context->plan, words);
    return context;
}
extern "C" void destroy(Extraction* context) { delete context; }

// Runs all layers over a batch and returns the number of keys, or a Failure.
extern "C" int64_t extract(Extraction* context, const ArrowArray* batch, const int32_t* columns,
                           void* const* states, float* dense, int64_t* observed, uint8_t* failed,
                           Sharing* sharing) {
    try {
        set_states(context->plan, states);
        return context->extract(*batch, columns, dense, observed, failed, sharing);
    } catch (const std::bad_alloc&) {
        return OUT_OF_MEMORY;
    }
}
extern "C" void gather(Extraction* context, int32_t* offsets, int64_t* keys, int64_t* counters,
                       const Sharing* sharing) {
    context->gather(offsets, keys, sharing);
    counters[0] = context->replaced;
    counters[1] = context->reruns;
}
extern "C" void gather_shared(Extraction* context, int32_t* offsets, int64_t* keys, const Sharing* sharing) {
    context->gather_shared(offsets, keys, *sharing);
}
"""


def _fill(node: Expr) -> str:
    ref = node.ref
    if isinstance(ref, ColumnRef) and ref.fill is not None:
        return f", {literal(ref.fill, node.dtype)}"
    return ""
