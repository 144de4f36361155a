"""Expressions over columns: nodes of the feature DAG (FeatureBox §4: every function call is a node).

Nodes are immutable and hash-consed: building an equal expression again returns the same object, so a
sub-expression of ten features is computed once. A node's layer is its depth from the roots; nodes of a layer
do not depend on each other.

A node carries its device code: a C++ call with a placeholder for each input. `ingest.extract.codegen` (host)
and `ingest.extract.device_code` generate functions from it. Python numbers and strings inside an expression
become constants.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.hidden import hint, refuse
from livectr.ingest.language.value import ExpectedValue, Value
from livectr.system.errors import ConfigError


@dataclass(frozen=True)
class ColumnRef:
    """Reference to a column of an event stream or a look-up table.

    Attributes:
        source: topic of the stream or table.
        column: of the stream or table.
        table: `source` is a look-up table.
        fill: value for nulls (None: 0, "" or false).
    """

    source: str
    column: str
    table: bool = False
    fill: object = None

    @property
    def name(self) -> str:
        """Name of the root: `source.column`."""
        return f"{self.source}.{self.column}"


@dataclass(frozen=True)
class RecentRef:
    """Reference to a behavior history.

    It holds the last `n` keys of `source.column` of the row's user within `within_ms` before the event time,
    of events that satisfy `where` (None: all). passing: meaning of `where`.
    """

    source: str
    column: str
    n: int
    within_ms: int
    where: Expr | None = field(default=None, compare=False, repr=False)
    passing: str = ""

    @property
    def name(self) -> str:
        """Name of the root, with number, milliseconds and condition."""
        condition = f",{self.where}" if self.where is not None else ""
        return f"recent({self.source}.{self.column},{self.n},{self.within_ms}{condition})"

    @property
    def history(self) -> str:
        """Name of the stored history; histories of equal columns and conditions are stored once."""
        return f"{self.column}.{self.passing[:16]}" if self.passing else self.column

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the stream that the history reads."""
        return (self.column, *_columns_below(self.where)) if self.where is not None else (self.column,)


def _columns_below(node: Expr) -> tuple[str, ...]:
    """Columns of the roots that an expression depends on."""
    if node.is_root:
        return (node.ref.column,)
    return tuple(dict.fromkeys(name for source in node.inputs for name in _columns_below(source)))


def _given_by_user(device: Device | None) -> tuple[str, str]:
    """Code and data of a node that came from the pipeline file."""
    if device is None:
        return "", ""
    return device.call if device.user else "", device.resource.data if device.resource else ""


class Expr:
    """Node of the feature DAG, built by operators, columns of streams and Python arithmetic.

    Operators are in `ingest.operators`.

    `==` builds a comparison node: compare nodes themselves with `is`.

    Attributes:
        op: name of the operation.
        inputs: nodes that it reads.
        params: further arguments that define it.
        dtype: type of the values.
        device: device code; None for roots and constants.
        layer: depth from the roots; 0 for a root.
        digest: SHA-256 of the expression and its code.
        meaning: SHA-256 of what the expression says: operations, arguments, data and a user's own code, but
            not LiveCTR's code. Checkpoints and published versions know features by it, so it stays the same
            from release to release; an operation that shall compute something else takes another name.
    """

    __slots__ = ("__weakref__", "device", "digest", "dtype", "inputs", "layer", "meaning", "op", "params")

    op: str
    inputs: tuple[Expr, ...]
    params: tuple[Any, ...]
    dtype: str
    device: Device | None
    layer: int
    digest: str
    meaning: str

    def __new__(
        cls,
        op: str,
        inputs: Sequence[Expr] = (),
        *,
        dtype: str,
        params: tuple[Any, ...] = (),
        device: Device | None = None,
        layer: int = 0,
    ) -> Expr:
        """Return the node, new or existing. layer: of a node without inputs."""
        identity = repr((op, [node.digest for node in inputs], params, dtype, device, layer))
        digest = hashlib.sha256(identity.encode()).hexdigest()
        with _LOCK:
            node = _NODES.get(digest)
            if node is None:
                node = super().__new__(cls)
                values: dict[str, Any] = dict(op=op, inputs=tuple(inputs), params=params, dtype=dtype)
                values |= dict(device=device, digest=digest)
                said = (op, [node.meaning for node in inputs], params, dtype, layer, _given_by_user(device))
                values["meaning"] = hashlib.sha256(repr(said).encode()).hexdigest()
                values["layer"] = max((1 + source.layer for source in inputs), default=layer)
                for name, value in values.items():
                    object.__setattr__(node, name, value)
                _NODES[digest] = node
            return node

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an expression cannot be changed (tried to set {name!r})")

    @property
    def is_root(self) -> bool:
        """True when values come with the batch: a column, a history, or a result of another device."""
        return self.op in ("column", "recent", "given")

    @property
    def ref(self) -> ColumnRef | RecentRef:
        """Source of a root's values."""
        if not self.is_root:
            raise ValueError(f"{self} is not a root")
        ref: ColumnRef | RecentRef = self.params[0]
        return ref

    @property
    def name(self) -> str:
        """Name of a root: its column in the record batches that the plan reads."""
        return self.ref.name

    def __str__(self) -> str:
        if self.is_root:
            return self.name
        if self.op == "constant":
            return repr(self.params[0])
        return f"{self.op}({', '.join([*map(str, self.inputs), *map(repr, self.params)])})"

    def __repr__(self) -> str:
        return f"<{self} : {self.dtype}>"

    def __bool__(self) -> bool:
        raise ConfigError(f"{self} has no truth value while the pipeline is built; use where(), & , | and ~")

    def __iter__(self) -> Any:
        raise ConfigError(f"{self} cannot be iterated while the pipeline is built")

    __hash__ = object.__hash__

    def __add__(self, other: Operand) -> Expr:
        return arithmetic("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return arithmetic("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return arithmetic("subtract", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return arithmetic("subtract", other, self)

    def __mul__(self, other: Operand) -> Expr:
        if isinstance(other, Value | ExpectedValue):
            return NotImplemented  # the probability multiplies its worth
        return arithmetic("multiply", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return arithmetic("multiply", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return arithmetic("divide", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return arithmetic("divide", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return arithmetic("floor_divide", self, other)

    def __rfloordiv__(self, other: Operand) -> Expr:
        return arithmetic("floor_divide", other, self)

    def __mod__(self, other: Operand) -> Expr:
        return arithmetic("modulo", self, other)

    def __rmod__(self, other: Operand) -> Expr:
        return arithmetic("modulo", other, self)

    def __neg__(self) -> Expr:
        return arithmetic("subtract", 0, self)

    def __lt__(self, other: Operand) -> Expr:
        return comparison("less", self, other)

    def __le__(self, other: Operand) -> Expr:
        return comparison("less_equal", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return comparison("greater", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return comparison("greater_equal", self, other)

    def __eq__(self, other: Operand) -> Expr:  # type: ignore[override]
        return comparison("equal", self, other)

    def __ne__(self, other: Operand) -> Expr:  # type: ignore[override]
        return comparison("not_equal", self, other)

    def __and__(self, other: Operand) -> Expr:
        return logic("logical_and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return logic("logical_or", self, other)

    def __invert__(self) -> Expr:
        return logic("logical_not", self)


Operand = Expr | int | float | bool | str
_NODES: weakref.WeakValueDictionary[str, Expr] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()

C_TYPES: Final = {
    "int64": "int64_t",
    "int32": "int32_t",
    "float32": "float",
    "float64": "double",
    "bool": "bool",
    "string": "Str",
    "binary": "Str",
}


def column(ref: ColumnRef, dtype: str) -> Expr:
    """Root node of a column."""
    return Expr("column", dtype=dtype, params=(ref,))


def given(node: Expr) -> Expr:
    """Root that replaces a node computed elsewhere; it stays in the node's layer."""
    ref = ColumnRef("given", node.meaning[:16])
    return Expr("given", dtype=node.dtype, params=(ref,), layer=node.layer)


def constant(value: object, dtype: str) -> Expr:
    """Node of a constant."""
    return Expr("constant", dtype=dtype, params=(dtypes.check_value(value, dtype, "constant"),))


def as_expr(value: object, op: str, like: str = "") -> Expr:
    """Node of an operator's argument.

    A Python number takes the type `like` of the other argument where it fits (NEP 50): `price * 2` stays
    float32.

    Raises:
        ConfigError: the value is neither an expression nor a constant of a fitting type.
    """
    like = dtypes.element(like)
    if isinstance(value, Expr):
        return value
    refuse(value, op)
    if isinstance(value, bool):
        return constant(value, "bool")
    if isinstance(value, int):
        if like in ("float32", "float64"):
            return constant(value, like)
        small = like in ("int32", "bool") and -(2**31) <= value < 2**31
        return constant(value, "int32" if small else "int64")
    if isinstance(value, float):
        return constant(value, "float32" if like == "float32" else "float64")
    if isinstance(value, str):
        if not like or like in dtypes.TEXTS:
            return constant(value, "string")
        raise ConfigError(f"{op}: {value!r} is text where a number is needed; {hint(value)}")
    kind = type(value).__name__
    raise ConfigError(f"{op}: {value!r} ({kind}) is neither an expression nor a constant; {hint()}")


def need(op: str, node: Expr, allowed: Sequence[str], what: str) -> None:
    """Check that the node's element type is in `allowed`.

    Raises:
        ConfigError: it is not.
    """
    if dtypes.element(node.dtype) not in allowed:
        raise ConfigError(f"{op} needs {what}, but {node} is {node.dtype}")


def is_vector(node: Expr) -> bool:
    """Return true when every row has a list of equally many numbers, such as a word embedding."""
    last = node.params[-1] if node.params else None
    return node.dtype == "list<float32>" and isinstance(last, tuple) and last[:1] == ("width",)


def width_of(node: Expr) -> int:
    """Numbers per row of a dense feature."""
    return int(node.params[-1][1]) if is_vector(node) else 1


def mapped(
    op: str, inputs: Sequence[Expr], *, dtype: str, device: Device, params: tuple[Any, ...] = ()
) -> Expr:
    """Node whose call is mapped over rows, and over the items of at most one list input.

    Raises:
        ConfigError: two inputs are lists.
    """
    lists = [node for node in inputs if dtypes.is_list(node.dtype)]
    if len(lists) > 1:
        names = " and ".join(f"{node} ({node.dtype})" for node in lists)
        raise ConfigError(f"{op} takes one list and scalars, but {names} are both lists")
    result = dtypes.list_of(dtype) if lists else dtype
    return Expr(op, inputs, dtype=result, device=device, params=params)


def _pair(op: str, a: Operand, b: Operand) -> tuple[Expr, Expr]:
    left = as_expr(a, op, b.dtype if isinstance(b, Expr) else "")
    return left, as_expr(b, op, left.dtype)


def arithmetic(op: str, a: Operand, b: Operand) -> Expr:
    """Arithmetic of two numbers: + - * / // %.

    Types are promoted as in NumPy, and whole numbers wrap around. `//` and `%` round towards minus infinity
    as in Python; whole numbers divided by zero give 0. `/` of whole numbers is float64.
    """
    left, right = _pair(op, a, b)
    for node in (left, right):
        need(op, node, dtypes.FIXED, "numbers")
    dtype = dtypes.promote(dtypes.element(left.dtype), dtypes.element(right.dtype))
    if op == "divide" and dtype.startswith("int"):
        dtype = "float64"
    return mapped(op, (left, right), dtype=dtype, device=Device(f"{op}({{0}}, {{1}})", casts=(dtype, dtype)))


def comparison(op: str, a: Operand, b: Operand) -> Expr:
    """Comparison of two numbers, or of two strings by their bytes: < <= > >= == !=. The result is bool."""
    left, right = _pair(op, a, b)
    kinds = [dtypes.element(node.dtype) for node in (left, right)]
    if all(kind in dtypes.FIXED for kind in kinds):
        casts: tuple[str, ...] = (dtypes.promote(*kinds),) * 2
    elif all(kind in dtypes.TEXTS for kind in kinds):
        casts = ()
    else:
        raise ConfigError(
            f"{op} needs two numbers or two strings, but {left} is {left.dtype} and {right} is {right.dtype}"
        )
    return mapped(op, (left, right), dtype="bool", device=Device(f"{op}({{0}}, {{1}})", casts=casts))


def logic(op: str, *operands: Operand) -> Expr:
    """Logic of bools: & | ~."""
    nodes = [as_expr(operand, op, "bool") for operand in operands]
    for node in nodes:
        need(op, node, ("bool",), "bools")
    slots = ", ".join(f"{{{i}}}" for i in range(len(nodes)))
    return mapped(op, nodes, dtype="bool", device=Device(f"{op}({slots})"))
