"""Common part of the peers' data frames: terms that are computed once, in stages.

Data frames do not always find common sub-expressions, so a term of several features becomes a column of its
own; stage d needs columns of the stages before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.featurebox.schema import LOG, LOG_COLUMNS, TABLES


@dataclass(frozen=True, eq=False)
class Term:
    """An expression of the data frame. kind: its type as in `ingest.language.dtypes`; depth: the first stage
    that can compute it."""

    expr: Any
    kind: str
    depth: int

    def __add__(self, other: Any) -> Term:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> Term:
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other: Any) -> Term:
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self, other: Any) -> Term:
        return self._with(other, lambda a, b: a / b)

    def __gt__(self, other: Any) -> Term:
        return self._with(other, lambda a, b: a > b)

    def _with(self, other: Any, op: Any) -> Term:
        right = other if isinstance(other, Term) else Term(other, "", 0)
        return Term(op(self.expr, right.expr), self.kind, max(self.depth, right.depth))


class Staged:
    """Collects the stages: `self.stages[d]` is name → expression."""

    def __init__(self) -> None:
        self.stages: list[dict[str, Any]] = []
        self._keys: dict[int, Term] = {}

    def share(self, term: Term) -> Term:
        """The term as a column of its own."""
        while len(self.stages) <= term.depth:
            self.stages.append({})
        name = f"_{sum(map(len, self.stages))}"
        self.stages[term.depth][name] = term.expr
        return Term(self.reference(name), term.kind, term.depth + 1)

    def reference(self, name: str) -> Any:
        """The expression of a column by its name."""
        raise NotImplementedError


def kind_of(name: str) -> str:
    """Type of a column "table.column"."""
    table, _, column = name.partition(".")
    return LOG_COLUMNS[column] if table == LOG else TABLES[table][1][column]


def is_list(kind: str) -> bool:
    return kind.startswith("list<")
