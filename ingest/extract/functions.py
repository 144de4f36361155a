"""Functions of nodes: one C++ text for a node of the fused plan, and for a function of the shipped library.

    Function   call, types of inputs, arguments and result; nodes of equal functions differ in columns only
    Terms      C++ expressions of a node's columns: members of `Plan`, or arguments of a library function

A library function runs over a block of rows, or over up to BLOCK_ROWS items of lists: a call that is mapped
over the items of a list, with a result of fixed width, is the same function as for rows. Inputs come
converted (`Device.casts`), by the library's functions of conversion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import C_TYPES, Expr
from livectr.ingest.language.literals import array, literal
from livectr.ingest.language.resources import Resource

_KEY: Final = "key({0})"
_GRAM_KEYS: Final = "block.gram_keys({out}, {pool}, {0}, {a[0]})"


@dataclass(frozen=True)
class Terms:
    """C++ expressions that a function reads and writes.

    Args:
        out: column of the result.
        inputs: column of each input; a literal where `constant` is true.
        constant: for each input, true for a constant of the code.
        arguments: value of each argument.
        resource: struct of the resource.
        state: pointer to the statistic's state.
        pool: memory pool of the result.
    """

    out: str
    inputs: tuple[str, ...]
    constant: tuple[bool, ...]
    arguments: tuple[str, ...]
    resource: str
    state: str
    pool: str


@dataclass(frozen=True)
class Function:
    """Function of a node.

    Args:
        call: as in `Device`.
        rowwise: as in `Device`.
        inputs: types of the inputs, before they are converted.
        casts: types that they are converted to; "" for none.
        output: type of the result.
        arguments: types of the arguments; "dtype[]" for an array.
        resource: C++ struct of the resource, or "".
        state: C++ type of the statistic's values, or "".
    """

    call: str
    rowwise: bool
    inputs: tuple[str, ...]
    casts: tuple[str, ...]
    output: str
    arguments: tuple[str, ...] = ()
    resource: str = ""
    state: str = ""

    @property
    def listed(self) -> tuple[int, ...]:
        """Positions of inputs that are lists."""
        return tuple(at for at, dtype in enumerate(self.inputs) if dtypes.is_list(dtype))

    @property
    def each(self) -> bool:
        """True for a function that is mapped over items, with results of fixed width."""
        texts = dtypes.element(self.output) in dtypes.TEXTS
        return bool(self.listed) and not self.rowwise and not texts

    def in_library(self) -> Function:
        """Function of the library that computes it: of converted values, of items where it is mapped."""
        inputs = tuple(cast or dtype for cast, dtype in zip(self.casts, self.inputs, strict=True))
        output = self.output
        if self.each:
            inputs, output = tuple(map(dtypes.element, inputs)), dtypes.element(output)
        return replace(self, inputs=inputs, casts=("",) * len(inputs), output=output)

    def conversions(self) -> tuple[Function | None, ...]:
        """Function of the library that converts each input; None where it stays."""
        pairs = zip(self.casts, self.inputs, strict=True)
        return tuple(conversion(dtypes.element(dtype), cast) if cast else None for cast, dtype in pairs)

    @property
    def name(self) -> str:
        """Name of a library function; equal functions have equal names."""
        kinds = [dtype.replace("binary", "string") for dtype in (*self.inputs, self.output)]
        parts = [self.call, *kinds[:-1], "->", kinds[-1], *self.arguments, self.resource, self.state]
        return " ".join(part for part in parts if part)

    def terms(self, pool: str) -> Terms:
        """Terms of a function whose columns, arguments and data are local variables; `pool` is its pool."""
        return Terms(
            "out",
            tuple(f"in{i}" for i in range(len(self.inputs))),
            (False,) * len(self.inputs),
            tuple(f"a{i}" for i in range(len(self.arguments))),
            "resource",
            "state",
            pool,
        )

    def statement(self, terms: Terms, *, host: bool) -> str:
        """C++ that runs it over `block`. host: with forms for many values at once, which a device lacks."""
        if host:
            return self._many(terms) or self._each_row(terms, "for")
        return self._mapped(terms) or self._each_row(terms, "ROLLED for")

    def _each_row(self, terms: Terms, loop: str) -> str:
        out, call = terms.out, self._call(terms, "items.at(i)")
        if self.output in dtypes.FIXED:
            return f"block.values({out}, [&](int64_t row) {{ return {C_TYPES[self.output]}({call}); }});"
        text, many = dtypes.element(self.output) in dtypes.TEXTS, dtypes.is_list(self.output)
        if text:
            # A mapped call writes one string; a rowwise call ends its strings itself.
            each = call if self.rowwise or not many else f"{call}; sink.next()"
            shape = "string_lists" if many else "strings"
        else:
            each = call if self.rowwise else f"sink.push({call})"
            shape = "lists"
        body = f"{each};"
        if not self.rowwise and self.listed:
            items = f"const auto items = {terms.inputs[self.listed[0]]}.row(row);"
            body = f"{items} {loop} (int32_t i = 0; i < items.size(); ++i) {{ {body} }}"
        return f"block.{shape}({out}, {terms.pool}, [&](int64_t row, auto& sink) {{ {body} }});"

    def _mapped(self, terms: Terms) -> str:
        """A call for each item of a list with results of fixed width, whose sizes are known; else nothing."""
        if not self.each:
            return ""
        call = self._call(terms, "items.at(i)")
        rows = f"[&](int64_t row) {{ return {terms.inputs[self.listed[0]]}.row(row); }}"
        item = f"[&](int64_t row, const auto& items, int32_t i) {{ return {call}; }}"
        return f"block.map({terms.out}, {terms.pool}, {rows}, {item});"

    def _many(self, terms: Terms) -> str:
        """A call for many values at once, where the host has one; else nothing."""
        if self.call == _GRAM_KEYS:
            return self._format(terms, terms.inputs) + ";"
        sources = [at for at, constant in enumerate(terms.constant) if not constant]
        if self.rowwise or len(sources) != 1 or dtypes.element(self.output) in dtypes.TEXTS:
            return ""
        out, source = terms.out, terms.inputs[sources[0]]
        many = self.call == _KEY and dtypes.element(self.inputs[sources[0]]) in dtypes.TEXTS
        if not dtypes.is_list(self.output):
            return f"block.keys({source}.values, block.rows, {out}.values);" if many else ""
        kind = C_TYPES[dtypes.element(self.output)]
        each = self._call(terms, "from[i]")
        body = (
            "block.keys(from, n, to);" if many else f"for (int64_t i = 0; i < n; ++i) to[i] = {kind}({each});"
        )
        lambda_ = f"[&](const auto* from, int64_t n, {kind}* to) {{ {body} }}"
        return f"block.map({out}, {terms.pool}, {source}, {lambda_});"

    def _call(self, terms: Terms, item: str) -> str:
        """The call for a row, or for an item of the list that it is mapped over."""
        slots = []
        for slot, constant, dtype, cast in zip(
            terms.inputs, terms.constant, self.inputs, self.casts, strict=True
        ):
            if not constant:
                many = dtypes.is_list(dtype)
                slot = item if many and not self.rowwise else f"{slot}.{'row' if many else 'at'}(row)"
            slots.append(f"({C_TYPES[cast]})({slot})" if cast else slot)
        return self._format(terms, slots)

    def _format(self, terms: Terms, slots: Sequence[str]) -> str:
        names = dict(sink="sink", resource=terms.resource, state=terms.state, out=terms.out, pool=terms.pool)
        return self.call.format(*slots, a=terms.arguments, **names)


def function_of(node: Expr) -> Function:
    """Function of a computed node."""
    device = device_of(node)
    inputs = tuple(source.dtype for source in node.inputs)
    casts = (*device.casts, *[""] * len(inputs))[: len(inputs)]
    return Function(
        device.call,
        device.rowwise,
        inputs,
        tuple(
            "" if cast == dtypes.element(dtype) else cast for cast, dtype in zip(casts, inputs, strict=True)
        ),
        node.dtype,
        tuple(f"{dtype}[]" if isinstance(value, tuple) else dtype for dtype, value in device.arguments),
        device.resource.ctype if device.resource else "",
        state_type(node) if device.statistic else "",
    )


def gram_keys() -> Function:
    """Function of `key(ngrams(text, n))`: text, n → keys."""
    return Function(_GRAM_KEYS, True, ("string",), ("",), "list<int64>", ("int32",))


def conversion(source: str, target: str) -> Function:
    """Function of the library that converts numbers to another type, as a C++ cast does."""
    return Function(f"({C_TYPES[target]}){{0}}", False, (source,), ("",), target)


def argument_terms(device: Device) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Literals of a node's arguments, and definitions of the arrays that they name."""
    terms, definitions = [], []
    for dtype, value in device.arguments:
        if isinstance(value, tuple):
            name, definition = array(value, dtype)
            definitions.append(definition)
        else:
            name = literal(value, dtype)
        terms.append(name)
    return tuple(terms), tuple(definitions)


def device_of(node: Expr) -> Device:
    """Device code of a computed node."""
    assert node.device is not None, node
    return node.device


def resource_of(node: Expr) -> Resource | None:
    """Arrays that a node's device code reads, such as a dictionary; None without any."""
    return node.device.resource if node.device else None


def state_type(node: Expr) -> str:
    """C++ type of a statistic's values: int64_t for whole numbers, else double."""
    statistic = device_of(node).statistic
    assert statistic is not None, node
    return "int64_t" if statistic.initial().dtype.kind == "i" else "double"
