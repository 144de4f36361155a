"""Operators that a user writes: a signature and a device expression, compiled for both targets."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from ingest import dtypes
from ingest.expr import C_TYPES, Device, Expr, Operand, as_expr, mapped
from kernels.errors import ConfigError

_SIGNATURE = re.compile(r"\s*(?P<inputs>[^>]*?)\s*->\s*(?P<output>\w+)\s*")


class Operator:
    """A C++ expression over scalars. Called with expressions it builds a node; a list is mapped item by
    item."""

    def __init__(self, signature: str, expression: str, name: str = "", doc: str | None = None) -> None:
        match = _SIGNATURE.fullmatch(signature)
        inputs = [part.split() for part in match["inputs"].split(",")] if match else []
        if match is None or not all(len(part) == 2 and part[1].isidentifier() for part in inputs):
            raise ConfigError(
                f'operator: {signature!r} is not a signature; write "int64 ts, float32 x -> int32"'
            )
        self.name = name or "operator"
        self.inputs = tuple((dtype, argument) for dtype, argument in inputs)
        self.output = match["output"]
        self.signature, self.expression, self.__doc__ = signature, expression, doc
        for dtype, _ in self.inputs:
            self._check(dtype, dtypes.SCALARS)
        self._check(self.output, dtypes.FIXED)
        if not self.name.isidentifier():
            raise ConfigError(f"operator: the name {self.name!r} is not an identifier")
        if not expression.strip():
            raise ConfigError(f"operator {self.name}: the expression is empty")

    def _check(self, dtype: str, allowed: tuple[str, ...]) -> None:
        if dtype not in allowed:
            raise ConfigError(f"operator {self.name}: type {dtype!r} is not one of {', '.join(allowed)}")

    def __call__(self, *arguments: Operand | Callable[..., Any]) -> Any:
        """With expressions: a node. With a Python function (as a decorator): this operator under its name and
        docs."""
        first = arguments[0] if arguments else None
        if callable(first) and not isinstance(first, Operator | Expr):
            return Operator(self.signature, self.expression, first.__name__, first.__doc__)
        if len(arguments) != len(self.inputs):
            raise ConfigError(
                f"{self.name} takes {len(self.inputs)} arguments ({self.signature}), not {len(arguments)}"
            )
        nodes = [
            as_expr(value, self.name, dtype) for value, (dtype, _) in zip(arguments, self.inputs, strict=True)
        ]
        for node, (dtype, argument) in zip(nodes, self.inputs, strict=True):
            self._check_argument(node, dtype, argument)
        slots = ", ".join(f"{{{i}}}" for i in range(len(nodes)))
        device = Device(f"{self._function}({slots})", prelude=self._prelude)
        return mapped(self.name, nodes, dtype=self.output, device=device)

    def _check_argument(self, node: Expr, dtype: str, argument: str) -> None:
        """Widening is allowed, as in C++ without loss: int32 → int64, bool → integers, integers and float32 →
        float64."""
        kind = dtypes.element(node.dtype)
        numbers = kind in dtypes.FIXED and dtype in dtypes.NUMBERS and dtypes.promote(kind, dtype) == dtype
        if kind != dtype and not numbers:
            raise ConfigError(f"{self.name} needs {dtype} for {argument!r}, but {node} is {node.dtype}")

    @property
    def _function(self) -> str:
        digest = hashlib.sha256(f"{self.name}\0{self.signature}\0{self.expression}".encode()).hexdigest()
        return f"operator_{digest[:16]}"

    @property
    def _prelude(self) -> str:
        arguments = ", ".join(f"{C_TYPES[dtype]} {argument}" for dtype, argument in self.inputs)
        # #line: a compiler's message names the operator and the line inside its expression.
        return (
            f"static __device__ __forceinline__ {C_TYPES[self.output]} {self._function}({arguments}) {{\n"
            f'return (\n#line 1 "operator {self.name}"\n{self.expression}\n);\n}}\n'
        )


def operator(signature: str, expression: str, *, name: str = "") -> Operator:
    """Makes an operator from C++: `operator("int64 ts -> int32", "(ts / 3600000) % 24")`.

    signature   inputs "type name, …" -> output type. Inputs: int64, int32, float32, float64, bool, string (a
                `Str` with `data` and `size` in bytes); output: a number or bool
    expression  a C++ expression of the inputs. It may call the device functions of kernels/*.cuh. It must be
                defined for every value: whole-number division by zero ends the process, so use
                `floor_divide(a, b)` and `modulo(a, b)`

    As a decorator it takes name and docstring of the function, whose body is not used:

        @operator("int64 ts -> int32", "modulo(ts / 60000, int64_t(60))")
        def minute(ts): "Minute of the hour."

    Raises ConfigError for a bad signature, and with the compiler's text when the plan is compiled.
    """
    return Operator(signature, expression, name)
