"""Code generation: the nodes of a feature plan become C++ functions over blocks of rows on the host.

`Plan` is a struct of pointers to a block of a batch, in the order of `members`. Each node becomes a function
that runs it over a `RowBlock` (kernels/extract/rowblock.hpp); `ingest.extract.host_code` adds their calls.
Devices run nodes from a table (`ingest.extract.device_code`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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


@dataclass(frozen=True)
class Member:
    """Member of the struct `Plan`.

    Args:
        ctype: C++ type.
        name: name.
        words: size in units of 8 bytes.
        column: node whose column it is; None for another member.
    """

    ctype: str
    name: str
    words: int
    column: Expr | None = None


def members(plan: FeaturePlan) -> tuple[Member, ...]:
    """Members of `Plan`, in order."""
    names = Names(plan)
    found = [Member("int64_t", "rows", 1), Member("uint8_t*", "failed", 1)]
    found += [Member("Pool", f"pool{i}", 3) for i in range(len(plan.layout.regions))]
    found += [Member(result_type(node.dtype), names.member(node), 1, node) for node in plan.nodes]
    for node in plan.nodes:
        if resource := resource_of(node):
            words = len(resource.arrays) + len(resource.scalars)
            found.append(Member(resource.ctype, f"r{names.of(node)}", words))
    for node in plan.statistics:
        found.append(Member(f"const {state_type(node)}*", f"s{names.of(node)}", 1))
    return tuple(found)


def result_type(dtype: str) -> str:
    """C++ type of a column of results (kernels/runtime/columns.cuh)."""
    kind = C_TYPES[dtypes.element(dtype)]
    return f"Lists<{kind}>" if dtypes.is_list(dtype) else f"Values<{kind}>"


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


def observed_type(node: Expr) -> str:
    """C++ type in which the first input of a statistic node is observed."""
    return "double" if node.inputs[0].dtype in ("float32", "float64") else "int64_t"


def plan_struct(plan: FeaturePlan) -> Iterator[str]:
    """Generate `struct Plan`."""
    yield '#include "operators/operators.cuh"\n#include "runtime/pool.cuh"\n'
    devices = [node.device for node in plan.nodes if node.device]
    yield from dict.fromkeys(device.prelude for device in devices if device.prelude)
    yield from dict.fromkeys(text for device in devices for text in argument_terms(device)[1])
    yield '#line 1 "plan"'
    yield "struct Plan {"
    for member in members(plan):
        comment = f"  // {_comment(member.column)}" if member.column is not None else ""
        yield f"    {member.ctype} {member.name};{comment}"
    yield "};"
    words = sum(member.words for member in members(plan))
    yield f'static_assert(sizeof(Plan) == {8 * words}, "Plan has no padding");\n'


def node_functions(plan: FeaturePlan) -> Iterator[str]:
    """Generate `run_<i>` of every node.

    Compilers take much less time for separate functions than for a huge one.
    """
    names = Names(plan)
    skipped = {id(node) for node in plan.fused.values()}
    for node in plan.nodes:
        if not node.is_root and id(node) not in skipped:
            yield f"// {_comment(node)} : {node.dtype}"
            yield "template <typename Block>"
            head = f"void run_{names.of(node)}(const Plan& p, const Block& block)"
            yield f"static __attribute__((noinline)) {head} {{"
            yield f"    {_run(node, names, plan)}"
            yield "}"


def _run(node: Expr, names: Names, plan: FeaturePlan) -> str:
    pools = plan.layout.pools
    pool = f"p.pool{pools[id(node)]}" if id(node) in pools else ""
    terms, function = names.terms(node, pool), function_of(node)
    grams = plan.fused.get(id(node))
    if grams is not None:
        function, below = gram_keys(), names.terms(grams, pool)
        terms = replace(terms, inputs=below.inputs, constant=below.constant, arguments=below.arguments)
    return function.statement(terms, host=True)


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


def _comment(node: Expr) -> str:
    """Printable ASCII for a `//` comment.

    A final backslash, which would continue it on the next line, is replaced.
    """
    text = ascii(str(node))[1:-1]
    return (text if len(text) <= 90 else text[:87] + "...").replace("\\", "/")
