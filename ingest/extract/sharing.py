"""Features of rows that share some columns, as the candidates of a request share its context.

    1 row of shared columns ──► nodes of these alone, once ─► shared fields: 1 row
                                        │ pointers
    n rows of the other columns ────────┴─► other nodes ───► other fields: n rows, and all dense numbers

A shared value is neither copied nor recomputed for each row, so memory does not grow with n times its size.
`kernels/extract/extract.hpp` runs it.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from livectr.ingest.language.expr import Expr
from livectr.ingest.plan.features import Features

if TYPE_CHECKING:
    from livectr.ingest.plan.dag import FeaturePlan

U8 = npt.NDArray[np.uint8]

_OWN, _SPREAD, _APART = 0, 1, 2
"""Values of `Share` in kernels/extract/extract.hpp."""


class TooLargeError(Exception):
    """Raised when the features of some rows would exceed a limit; the message names the limit."""


@dataclass(frozen=True)
class SharedFeatures:
    """Features of n rows that share some columns.

    Args:
        shared: fields that all rows share: 1 row, without dense numbers.
        own: the other fields, n rows, with all dense numbers.
        shared_fields: numbers of the shared fields in the plan, ascending.
        own_fields: numbers of the other fields, ascending.
    """

    shared: Features
    own: Features
    shared_fields: tuple[int, ...]
    own_fields: tuple[int, ...]


class Shares:
    """Partition of a plan's nodes and fields into shared and own, given the names of shared roots."""

    def __init__(self, plan: FeaturePlan, names: Set[str]) -> None:
        shared: dict[int, bool] = {}

        def is_shared(node: Expr) -> bool:
            if node.is_root:
                return node.name in names
            return all(source.op == "constant" or shared[id(source)] for source in node.inputs)

        for node in plan.nodes:
            shared[id(node)] = is_shared(node)
        read = {id(node) for node in plan.dense.values()}
        for node in plan.nodes:
            if not shared[id(node)]:
                read |= {id(source) for source in node.inputs}
        kinds = [(_SPREAD if id(n) in read else _APART) if shared[id(n)] else _OWN for n in plan.nodes]
        fields = [node.op == "constant" or shared[id(node)] for node in plan.sparse.values()]
        #: uint8[nodes]: Share of each node
        self.nodes: U8 = np.array(kinds, np.uint8)
        #: uint8[fields]: 1 where a field is shared
        self.flags: U8 = np.array(fields, np.uint8)
        self.shared_fields = tuple(i for i, is_common in enumerate(fields) if is_common)
        self.own_fields = tuple(i for i, is_common in enumerate(fields) if not is_common)
