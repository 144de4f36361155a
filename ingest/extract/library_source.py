"""Source of the library of operators: every operator for every type, as functions over a block of rows.

`python -m livectr.ingest.extract.library_source` rewrites kernels/operators/calls_*.cpp. The functions are
those of the operators' own nodes: each operator is called with columns of every type, and what it refuses is
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter, signature
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from livectr.ingest import operators as op
from livectr.ingest.extract.functions import Function, function_of, gram_keys
from livectr.ingest.extract.transfer import encoded
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import C_TYPES, ColumnRef, Expr, column
from livectr.ingest.operators.ages import last_age
from livectr.ingest.operators.counts import window_count
from livectr.kernels.runtime.compiler import KERNELS
from livectr.system.errors import ConfigError

TYPES: Final = tuple(dtype for dtype in dtypes.DTYPES if dtype != "image")
FILES: Final = ("numbers", "texts", "lists", "tables")
"""Files calls_<name>.cpp, compiled side by side."""

_WRITTEN: Final = "Written by `python -m livectr.ingest.extract.library_source`."
_NUMBERS: Final = tuple(np.ones(1, dtype) for dtype in dtypes.FIXED)
_VECTORS: Final = (["a"], np.zeros((1, 1), np.float32)), ([1], np.zeros((1, 1), np.float32))


def nodes() -> Iterator[Expr]:
    """Nodes of every operator with columns of every type, and of all that stands below them."""
    seen: dict[int, Expr] = {}
    for build, arguments in _calls():
        try:
            stack = [build(*arguments)]
        except ConfigError:
            continue
        while stack:
            node = stack.pop()
            if id(node) not in seen:
                seen[id(node)] = node
                stack += node.inputs
                if node.op != "constant":
                    stack += encoded(node)
    return (node for node in seen.values() if node.device is not None)


def functions() -> tuple[Function, ...]:
    """Functions of the library, by name."""
    found = {gram_keys().name: gram_keys()}
    for node in nodes():
        used = function_of(node)
        for function in (used.in_library(), *filter(None, used.conversions())):
            found.setdefault(function.name, function)
    return tuple(found[name] for name in sorted(found))


def _columns(count: int) -> Iterator[tuple[Expr, ...]]:
    """Columns of all types for each of `count` inputs."""
    columns = [[column(ColumnRef("t", f"{dtype}{i}"), dtype) for dtype in TYPES] for i in range(count)]
    return product(*columns)


def _calls() -> Iterator[tuple[Callable[..., Expr], tuple[Any, ...]]]:
    """Calls of operators; those of types that an operator refuses raise ConfigError."""
    one: list[Callable[[Expr], Expr]] = [
        *_of_columns(1),
        lambda x: ~x,
        *(lambda x, low=low, high=high: op.clip(x, low, high) for low, high in product((None, 1), (None, 2))),
        *(lambda x, bounds=bounds: op.bucketize(x, bounds) for bounds in ([1, 2], [1.5, 2.5])),
        *(lambda x, dtype=dtype: op.cast(x, dtype) for dtype in dtypes.SCALARS),
        *(lambda x, dtype=dtype: op.json_field(x, "a", dtype) for dtype in dtypes.SCALARS),
        lambda x: op.normalise(x, 1, 2),
        lambda x: op.quantile_bins(x, 2),
        lambda x: op.substring(x, 1, 2),
        lambda x: op.split(x, " "),
        *(lambda x, of=of: op.ngrams(x, 2, of) for of in ("characters", "bytes")),
        *(lambda x, end=end: end(x, 2) for end in (op.head, op.tail)),
        *(lambda x, i=i: op.item(x, i) for i in (0,)),
        lambda x: op.keywords(x, ["a"]),
        *(lambda x, vectors=vectors: op.word_embedding(x, vectors) for vectors in _VECTORS),
        *(lambda x, key=key, value=value: op.lookup(x, {key: value}) for key, value in _dictionaries()),
    ]
    for build in one:
        yield from ((build, columns) for columns in _columns(1))
    two: list[Callable[[Any, Any], Any]] = [
        *(lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b),
        *(lambda a, b: a // b, lambda a, b: a % b, lambda a, b: a & b, lambda a, b: a | b),
        *(lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b),
        *(lambda a, b: a == b, lambda a, b: a != b),
        *_of_columns(2),
        lambda a, b: window_count(a, b, grain_ms=1, ring=0, span=1, window_ms=6, clicks=False),
        lambda a, b: last_age(a, b, grain_ms=1, within_ms=6, kind=0, never=-1.0),
    ]
    for pair in two:
        yield from ((pair, columns) for columns in _columns(2))
    yield from ((op.where, columns) for columns in _columns(3))
    for count in (2, 3, 4):
        yield from ((op.cross, columns) for columns in product(*[_either(i, "int64") for i in range(count)]))
    for count in range(2, 9):
        for listed in range(-1, count):
            yield op.concat, tuple(_either(i, "string")[i == listed] for i in range(count))


def _of_columns(count: int) -> list[Callable[..., Expr]]:
    """Operators that need `count` expressions and nothing else."""
    found = []
    for name in op.__all__:
        parameters = signature(getattr(op, name)).parameters.values()
        needed = [each for each in parameters if each.default is Parameter.empty]
        plain = all(each.annotation == "Operand" and each.kind is not each.VAR_POSITIONAL for each in needed)
        if plain and len(needed) == count:
            found.append(getattr(op, name))
    return found


def _either(number: int, dtype: str) -> tuple[Expr, Expr]:
    """A column, and a column of lists."""
    both = (dtype, dtypes.list_of(dtype))
    scalar, many = (column(ColumnRef("t", f"{kind}{number}"), kind) for kind in both)
    return scalar, many


def _dictionaries() -> Iterator[tuple[Any, Any]]:
    """A key and a value of every type of a dictionary."""
    yield from product((1, "a"), (*(many[0] for many in _NUMBERS), *_NUMBERS, "b"))


def source(name: str, functions: Sequence[Function]) -> str:
    """Text of a file: its functions, and their table.

    Args:
        name: of the file, calls_<name>.cpp.
        functions: in the order of their names.
    """
    lines = [
        f"// Operators over blocks of rows: {name}. {_WRITTEN}",
        '#include "extract/call.hpp"',
        '#include "operators/operators.cuh"',
        "\nnamespace livectr {\nnamespace {\n",
    ]
    for number, function in enumerate(functions):
        lines.append(_definition(f"{name}_{number}", function))
    lines.append(f"\nconstexpr NamedFunction {name.upper()}[] = {{")
    lines += [f'    {{"{function.name}", {name}_{number}}},' for number, function in enumerate(functions)]
    lines.append("};\n\n}  // namespace\n")
    lines.append(f"FunctionTable calls_{name}() {{ return {{{name.upper()}, {len(functions)}}}; }}")
    lines.append("\n}  // namespace livectr\n")
    return "\n".join(lines)


def _definition(name: str, function: Function) -> str:
    """Definition of a function of the library."""
    columns = [
        f"const auto in{i} = {_column(dtype)}(call.in[{i}]);" for i, dtype in enumerate(function.inputs)
    ]
    arguments = [
        f"const auto a{i} = argument<{_argument(dtype)}>(call, {i});"
        for i, dtype in enumerate(function.arguments)
    ]
    data = []
    if function.resource:
        data.append(f"const auto& resource = *static_cast<const {function.resource}*>(call.resource);")
    if function.state:
        data.append(f"const auto* const state = static_cast<const {function.state}*>(call.state);")
    body = [
        f"const auto out = {_column(function.output)}(call.out);",
        *columns,
        *arguments,
        *data,
        function.statement(function.terms("*call.pool"), host=True),
    ]
    head = f"void {name}(const Call& call, const RowBlock& block) {{"
    return "\n".join([head, *(f"    {line}" for line in body), "}"])


def _column(dtype: str) -> str:
    kind = C_TYPES[dtypes.element(dtype)]
    return f"lists_at<{kind}>" if dtypes.is_list(dtype) else f"values_at<{kind}>"


def _argument(dtype: str) -> str:
    return f"const {C_TYPES[dtype[:-2]]}*" if dtype.endswith("[]") else C_TYPES[dtype]


def sources() -> dict[str, str]:
    """Name of each file in kernels/operators → its text."""
    groups: dict[str, list[Function]] = {name: [] for name in FILES}
    for function in functions():
        groups[_file(function)].append(function)
    found = {f"calls_{name}.cpp": source(name, group) for name, group in groups.items()}
    tables = "\n".join(f"FunctionTable calls_{name}();" for name in FILES)
    calls = ", ".join(f"calls_{name}()" for name in FILES)
    found["calls.cpp"] = _FIND.format(tables=tables, calls=calls, written=_WRITTEN)
    return found


def _file(function: Function) -> str:
    kinds = (*function.inputs, function.output)
    if function.resource or function.state:
        return "tables"
    if any(map(dtypes.is_list, kinds)):
        return "lists"
    return "texts" if any(kind in dtypes.TEXTS for kind in kinds) else "numbers"


_FIND: Final = """\
// Look-up of operators by name. {written}
#include "extract/call.hpp"

namespace livectr {{
{tables}
}}  // namespace livectr

// Address of an operator's function; null if there is none of that name.
extern "C" const void* calls_find(const char* name) {{
    using namespace livectr;
    for (const FunctionTable& table : {{{calls}}}) {{
        for (int64_t i = 0; i < table.size; ++i) {{
            const NamedFunction& known = table.first[i];
            if (strcmp(known.name, name) == 0) return reinterpret_cast<const void*>(known.function);
        }}
    }}
    return nullptr;
}}
"""


def main() -> None:
    """Write the files."""
    folder = Path(KERNELS / "operators")
    texts = sources()
    for old in folder.glob("calls*.cpp"):
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
