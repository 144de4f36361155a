"""How a field's share of a sample gets from the rank that holds it to the one that finishes the sample.

    partial   the owner reads the rows of all B samples, computes partial results and sends these (DES §4)
    vectors   the owner reads and pools the rows, and sends the field's vector to each sample's own rank
    rows      a sample's own rank asks the owner for the rows of its unique keys, and pools them itself

All three are exact and synchronous. With ⊕ as an all-reduce every rank finishes every sample, and all fields
are partial (those that a model gathers besides send their vectors to all). With ⊕ as a reduce-scatter a rank
finishes its own samples; fields that a model gathers are then vectors or rows, and the other fields what
`trainer.placement.exchange_cost` finds cheapest.

The rows of a table that is split by key are on all ranks: its fields travel as rows, and what a rank asks for
goes to the owner of each key.

A field that is not partial is *near*: its part of the first layer is on every rank, as shared parameters are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from livectr.ingest.common_features import Common
from livectr.kernels.errors import ConfigError
from livectr.models.base import Gathers, ModelConfig
from livectr.trainer.placement.placement import FieldPlacement
from livectr.trainer.step_settings import FieldExchange, Mode


@dataclass(frozen=True)
class Route:
    """The way of every field.

    Attributes:
        placement: which rank holds which field
        tables: table of each field
        travel: by field
        scatter: whether a rank finishes its own samples only
        sequences: fields whose every vector is gathered
        pooled: fields whose pooled vector is gathered
        dense: whether the dense features are gathered
        common: the fields and dense features that groups of samples share
    """

    placement: FieldPlacement
    tables: tuple[str, ...]
    field_exchange: tuple[FieldExchange, ...]
    scatter: bool
    sequences: tuple[int, ...] = ()
    pooled: tuple[int, ...] = ()
    dense: bool = False
    common: Common = Common()

    @property
    def world(self) -> int:
        return self.placement.world

    def far(self, rank: int) -> tuple[int, ...]:
        """Fields of a rank that it reads for the samples of all ranks, ascending."""
        return tuple(f for f in self.placement.fields_of(rank) if self.field_exchange[f] != "rows")

    def summed(self, rank: int) -> tuple[int, ...]:
        """Fields of a rank that travel as partial results."""
        return tuple(f for f in self.placement.fields_of(rank) if self.field_exchange[f] == "partial")

    def vectors(self, rank: int) -> tuple[int, ...]:
        """Fields of a rank that travel as vectors."""
        return tuple(f for f in self.placement.fields_of(rank) if self.field_exchange[f] == "vectors")

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """All fields that travel as rows; those of a table follow each other."""
        found = [f for f, field_exchange in enumerate(self.field_exchange) if field_exchange == "rows"]
        order = {table: i for i, table in enumerate(dict.fromkeys(self.tables))}
        return tuple(sorted(found, key=lambda f: (order[self.tables[f]], f)))

    @cached_property
    def row_tables(self) -> tuple[str, ...]:
        """The tables of `rows`, in its order."""
        return tuple(dict.fromkeys(self.tables[f] for f in self.rows))

    @cached_property
    def asks(self) -> tuple[tuple[str, int], ...]:
        """Of whom rows of `row_tables` are asked for, in that order: (table, rank); a table that is split by
        key is there once for each rank."""
        return tuple((table, rank) for table in self.row_tables for rank in self._holders(table))

    def asked(self, rank: int) -> tuple[str, ...]:
        """The tables of `asks` of a rank, in that order."""
        return tuple(table for table, holder in self.asks if holder == rank)

    def _holders(self, table: str) -> Sequence[int]:
        if table in self.placement.split:
            return range(self.world)
        return (self.placement.owner[self.tables.index(table)],)

    @cached_property
    def near(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """All fields that are not partial: the common ones, and the others. Rows come first, then the vectors
        of each rank."""
        ordered = [*self.rows, *(f for r in range(self.world) for f in self.vectors(r))]
        common = tuple(f for f in ordered if f in self.common.fields)
        return common, tuple(f for f in ordered if f not in self.common.fields)


def gathered(configs: Mapping[str, ModelConfig], fields: Sequence[str]) -> Gathers:
    """What the models of a pipeline gather, put together. Raises ValueError for a field that is missing."""
    wanted = [config.gathers(fields) for config in configs.values()]
    return Gathers(
        tuple(dict.fromkeys(name for one in wanted for name in one.pooled)),
        tuple(dict.fromkeys(name for one in wanted for name in one.sequences)),
        any(one.dense for one in wanted),
        tuple(dict.fromkeys(name for one in wanted for name in one.content)),
    )


def route(
    placement: FieldPlacement,
    fields: Sequence[str],
    tables: Sequence[str],
    gathers: Gathers,
    *,
    mode: Mode,
    field_exchange: Sequence[FieldExchange] | None = None,
    common: Common = Common(),  # noqa: B008, frozen
) -> Route:
    """The route of a pipeline's fields.

    travel: of each field; None: partial wherever that is possible. Fields that are gathered travel as rows
    where `field_exchange` would make them partial; sequences, and fields of tables that are split by key,
    always do.

    Raises ConfigError for a travel or a placement that the mode does not know.
    """
    scatter = mode == "reducescatter" and placement.world > 1
    at = {name: f for f, name in enumerate(fields)}
    sequences = tuple(at[name] for name in gathers.sequences)
    pooled = tuple(at[name] for name in gathers.pooled)
    chosen: list[FieldExchange] = list(field_exchange or ["partial"] * len(fields))
    if not scatter and any(one != "partial" for one in chosen) and placement.world > 1:
        raise ConfigError(
            "with aggregate='allreduce' every field travels as partial results; "
            "vectors and rows need aggregate='reducescatter'"
        )
    if not scatter and placement.split and placement.world > 1:
        raise ConfigError(
            f"table {min(placement.split)!r} is split by key over the ranks, which aggregate='allreduce' "
            "cannot do; use aggregate='reducescatter', or raise rank_memory"
        )
    if not scatter:
        chosen = ["partial"] * len(fields)
    else:
        for f in (*pooled, *sequences):
            chosen[f] = "rows" if f in sequences or chosen[f] == "partial" else chosen[f]
        for f in placement.split_fields(tables):
            chosen[f] = "rows"
    return Route(placement, tuple(tables), tuple(chosen), scatter, sequences, pooled, gathers.dense, common)
