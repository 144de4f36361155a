"""User-defined operators: a signature and a C++ expression, compiled for host and device."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import C_TYPES, Expr, Operand, as_expr, mapped
from livectr.system.errors import ConfigError

_SIGNATURE = re.compile(r"\s*(?P<inputs>[^>]*?)\s*->\s*(?P<output>\w+)\s*")
_TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|\b\d(?:'?[\w.])*|'(?:\\.|[^'\\])*'|(?P<division>[/%]=?)""",
    re.DOTALL,
)
_SAFE: Final = {"/": "/ Division{} *", "%": "% Remainder{} *"}

_origins: dict[str, tuple[str, int, str]] = {}
"""Label of a user's operator in compiler messages → file, line and text of its expression.

It is not part of the operator: a pipeline stays the same when its lines move.
"""


class Operator:
    """User-defined operator: a C++ expression over scalars, mapped over the items of a list.

    Calling it with expressions builds a node.
    """

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
        self._body = _TOKENS.sub(self._safe, expression)
        frame = sys._getframe()
        while frame.f_code.co_filename == __file__ and frame.f_back is not None:
            frame = frame.f_back
        _origins[self._label] = frame.f_code.co_filename, frame.f_lineno, expression

    def _safe(self, token: re.Match[str]) -> str:
        """Replace a division, which traps for a divisor of 0, by a call that gives 0.

        See kernels/operators/division.cuh.
        """
        if token["division"] in ("/=", "%="):
            sign = token["division"][0]
            raise ConfigError(f"operator {self.name}: write x = x {sign} y in place of x {sign}= y")
        return _SAFE.get(token["division"] or "", token[0])

    def _check(self, dtype: str, allowed: tuple[str, ...]) -> None:
        if dtype not in allowed:
            raise ConfigError(f"operator {self.name}: type {dtype!r} is not one of {', '.join(allowed)}")

    def __call__(self, *arguments: Operand | Callable[..., Any]) -> Any:
        """Build a node from expressions; or, as a decorator, name and document the operator after a function.

        Raises:
            ConfigError: another number or other types of arguments than in the signature.
        """
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
        device = Device(f"{self._function}({slots})", prelude=self._prelude, user=self.name)
        return mapped(self.name, nodes, dtype=self.output, device=device)

    def _check_argument(self, node: Expr, dtype: str, argument: str) -> None:
        """Check an argument's type, with lossless widening.

        Widened are int32 to int64, bool to integers, and integers and float32 to float64.
        """
        kind = dtypes.element(node.dtype)
        numbers = kind in dtypes.FIXED and dtype in dtypes.NUMBERS and dtypes.promote(kind, dtype) == dtype
        if kind != dtype and not numbers:
            raise ConfigError(f"{self.name} needs {dtype} for {argument!r}, but {node} is {node.dtype}")

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(f"{self.name}\0{self.signature}\0{self.expression}".encode()).hexdigest()[:16]

    @property
    def _function(self) -> str:
        return f"operator_{self._digest}"

    @property
    def _label(self) -> str:
        return f"operator {self.name} {self._digest}"

    @property
    def _prelude(self) -> str:
        arguments = ", ".join(f"{C_TYPES[dtype]} {argument}" for dtype, argument in self.inputs)
        # #line: a compiler's message names the operator and the line inside its expression; see `located`.
        return (
            f"static __device__ __forceinline__ {C_TYPES[self.output]} {self._function}({arguments}) {{\n"
            f'return (\n#line 1 "{self._label}"\n{self._body}\n);\n}}\n'
        )


def located(text: str) -> tuple[str, str]:
    """Locate compiler errors in users' operators.

    Returns:
        Name of the first operator concerned, and its errors with places in the user's files; ("", "") if
            none.
    """
    name, errors = "", []
    for line in text.splitlines():
        match = _PLACE.search(line)
        if match is None or "error" not in line:
            continue
        name = name or match["name"]
        file, call, expression = _origins[match["label"]]
        inside = int(match["line"] or match["line_of_nvrtc"] or 1)
        errors.append(f"{file}:{_line_in(file, call, expression, inside)}:{line[match.end() :]}")
    return name, "\n".join(errors)


_PLACE = re.compile(
    r"(?P<label>operator (?P<name>\w+) [0-9a-f]{16})(?::(?P<line>\d+)(?::\d+)?|\((?P<line_of_nvrtc>\d+)\))?:"
)


def _line_in(file: str, call: int, expression: str, line: int) -> int:
    """Line of a file that holds line `line` of an expression passed to a call at line `call`.

    `call` if it is not found.
    """
    try:
        nodes = list(ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))))
    except (OSError, ValueError, SyntaxError):
        return call
    constants = [node for node in nodes if isinstance(node, ast.Constant) and node.value == expression]
    if not constants:
        return call
    text = min(constants, key=lambda node: abs(node.lineno - call))
    return min(text.lineno + line - 1, text.end_lineno or text.lineno)


def operator(signature: str, expression: str, *, name: str = "") -> Operator:
    """Make an operator from C++: `operator("int64 ts -> int32", "(ts / 3600000) % 24")`.

    As a decorator it takes name and docstring from the function, whose body is not used:

        @operator("int64 ts -> int32", "modulo(ts / 60000, int64_t(60))")
        def minute(ts): "Minute of the hour."

    The expression may call the device functions of kernels/*.cuh. `/` and `%` of whole numbers round towards
    zero as in C++ and give 0 for a divisor of 0; `floor_divide(a, b)` and `modulo(a, b)` round towards minus
    infinity. It must neither loop forever nor read outside of a string.

    Args:
        signature: inputs "type name, …" -> output type. Inputs: int64, int32, float32, float64, bool, string
            (a `Str` with `data` and `size` in bytes). Output: a number or bool.
        expression: C++ expression of the inputs.
        name: of the operator in messages.

    Raises:
        ConfigError: the signature is wrong. When the expression does not compile, compiling the plan raises
            ConfigError with the compiler's message at the expression's line in the user's file.
    """
    return Operator(signature, expression, name)
