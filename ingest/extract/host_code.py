"""Code generation for the host: `Generated` of kernels/extract/extract.hpp, and the C interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from livectr.ingest.extract.codegen import (
    Names,
    hand_outputs,
    node_functions,
    plan_struct,
)
from livectr.ingest.extract.functions import resource_of, state_type
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr
from livectr.ingest.language.literals import literal
from livectr.ingest.plan.layout import column_bytes

if TYPE_CHECKING:
    from livectr.ingest.plan.dag import FeaturePlan


MOST_BYTES, ALL_BYTES = 32 << 20, 128 << 20
"""Memory for functions of one text, and of all texts together."""


def recall_bytes(plan: FeaturePlan) -> int:
    """Memory for functions of one text."""
    return min(MOST_BYTES, ALL_BYTES // max(1, len(plan.recalled)))


def host_source(plan: FeaturePlan) -> str:
    """Generate the translation unit of the host extractor."""
    return "\n".join([*plan_struct(plan), *node_functions(plan), *_host(plan)])


def _host(plan: FeaturePlan) -> Iterator[str]:
    names, layout = Names(plan), plan.layout
    yield '#include "extract/extract.hpp"\nusing namespace livectr;\n'
    lists = [dtypes.is_list(node.dtype) for node in plan.sparse.values()]
    sizes = dict(lists=sum(lists), dense=len(plan.dense_names), nodes=len(plan.nodes))
    sizes |= dict(row_bytes=layout.bytes_per_row, shared_bytes=16 * len(plan.nodes))
    yield "struct Generated {"
    for name, size in sizes.items():
        yield f"    static constexpr int64_t {name}() {{ return {size}; }}"
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
    yield "    static void load(Plan& p, const Plan& shared, const uint8_t* shares,"
    yield "                     const Recall* const* known, const ArrowArray& batch, const int32_t* columns,"
    yield "                     int64_t first, int64_t rows, HostPool& pool, HostPool& kept) {"
    yield "        first += batch.offset;"
    alone = {id(part.root): number for number, part in enumerate(plan.recalled) if part.alone}
    for index, node in enumerate(roots):
        if id(node) in alone:
            yield f"        if (known[{alone[id(node)]}] == nullptr)"
        pool, column = "kept" if id(node) in kept else "pool", names.member(node)
        array = f"*batch.children[columns[{index}]], first, rows, {pool}"
        yield f"        {{ if (shares[{names.of(node)}] == OWN) ::load(p.{column}, {array}{_fill(node)});"
        yield f"        else ::load_shared(p.{column}, shared.{column}, rows, {pool}); }}"
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
    parts = {id(node): number for number, part in enumerate(plan.recalled) for node in part.nodes}
    places = {id(node): place for part in plan.recalled for place, node in enumerate(part.kept)}
    yield "    static void run(const Plan& p, const Plan& shared, const uint8_t* shares,"
    yield "                    const Recall* const* known, int64_t first, const RowBlock& block) {"
    for node in computed:
        number, column = names.of(node), names.member(node)
        if id(node) in parts:
            part = f"known[{parts[id(node)]}]"
            give = (
                f"{part}->give(p.{column}, {places[id(node)]}, first, block.rows)"
                if id(node) in places
                else ""
            )
            yield f"        if ({part} != nullptr) {{ {give}; }} else"
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
    yield from _recalls(plan, names, [id(root) for root in roots])
    outputs = "&p.pool0" if layout.has_output_pool else "nullptr"
    yield f"    static const ::Pool* output_pool(const Plan& p) {{ return {outputs}; }}"
    yield "    static void emit(const Plan& p, Emitter& emitter) {"
    yield from hand_outputs(plan, "    emitter")
    yield "    }"
    yield "};"
    yield from _bind(plan, names)
    yield _ENTRY


def _recalls(plan: FeaturePlan, names: Names, roots: Sequence[int]) -> Iterator[str]:
    """Generate the parts that are computed once for each different text."""
    most = recall_bytes(plan)
    widths = ["{" + ", ".join(str(column_bytes(n.dtype)) for n in part.kept) + "}" for part in plan.recalled]
    yield "    static std::vector<Recall> recalls() {"
    yield "        std::vector<Recall> found;"
    yield from (f"        found.emplace_back(std::vector<int64_t>{width}, {most});" for width in widths)
    yield "        return found;\n    }"
    yield "    static void load_text(int64_t part, Values<Str>& texts, const ArrowArray& batch,"
    yield "                          const int32_t* columns, int64_t first, int32_t rows, HostPool& pool) {"
    for number, part in enumerate(plan.recalled):
        array = f"*batch.children[columns[{roots.index(id(part.root))}]], batch.offset + first, rows, pool"
        yield f"        if (part == {number}) ::load(texts, {array}{_fill(part.root)});"
    yield "    }"
    yield "    static void recall(int64_t part, Plan& p, uint8_t* memory, Recall& known, int64_t entry,"
    yield "                       int32_t rows, HostPool& items, HostPool& bytes) {"
    for number, part in enumerate(plan.recalled):
        pools = "known.items, known.bytes" if part.keeps_text else "items, bytes"
        yield f"        if (part == {number}) {{"
        yield f"            p.{names.member(part.root)}.values = known.texts.data() + entry;"
        kept = {id(node): place for place, node in enumerate(part.kept)}
        for node in part.nodes:
            values, dtype = f"p.{names.member(node)}.values", f"decltype(p.{names.member(node)}.values)"
            if id(node) in kept:
                cell = f"std::remove_pointer_t<{dtype}>"
                yield f"            {values} = known.column<{cell}>({kept[id(node)]}, entry);"
            else:
                at = f"memory + {plan.layout.slots[id(node)]}ll * BLOCK_ROWS"
                yield f"            {values} = reinterpret_cast<{dtype}>({at});"
        failed = "known.failed.data() + entry"
        yield f"            const RowBlock block{{rows, {failed}, {pools}, known.items, nullptr, true}};"
        yield from (f"            run_{names.of(node)}(p, block);" for node in part.nodes)
        yield "        }"
    yield "    }"


def _bind(plan: FeaturePlan, names: Names) -> Iterator[str]:
    """Generate `bind_members`, which copies resources word by word, and `set_states`.

    `set_states` sets the pointers of the statistics.
    """
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
