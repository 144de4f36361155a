"""Device code of a node: a C++ call with its inputs, arguments and data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from livectr.ingest.language.resources import Resource, Statistic


@dataclass(frozen=True)
class Device:
    """Device code of a node.

    A call has one text for all nodes of its types: what differs between them are inputs and arguments. So the
    shipped library and a device have a function for each text (`ingest.extract.functions`).

    Args:
        call: C++ with `{0}`, `{1}` … for the inputs and `{a[0]}`, `{a[1]}` … for the arguments. For
            fixed-width results it is an expression. For strings and lists it is a call that writes its
            results into `{sink}` (kernels/runtime/columns.cuh), run once to measure and once to write.
        rowwise: the call takes whole list inputs (as `Row`); otherwise it is mapped over the items of a list
            input.
        casts: for each input the number type that it is converted to before the call, "" for none; inputs
            beyond its end stay as they are.
        arguments: (dtype, value) of constants that are no inputs; a tuple of values is a pointer to an array.
        prelude: C++ before the functions: a user's operator.
        user: name of the user's operator, which only a compiler can run; "" for LiveCTR's own.
        resource: data that the call reads as `{resource}`, a struct of the resource's type.
        statistic: running statistic of the first input; the call reads its state as `{state}`, a pointer to
            const double or const int64_t.
    """

    call: str
    rowwise: bool = False
    casts: tuple[str, ...] = ()
    arguments: tuple[tuple[str, Any], ...] = ()
    prelude: str = ""
    user: str = ""
    resource: Resource | None = None
    statistic: Statistic | None = None
