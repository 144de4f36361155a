"""Field exchange: how a field's share of an example reaches the rank that finishes the example.

    partial   the owner reads the rows of all B examples and sends its partial results (DES §4)
    vectors   the owner reads and pools the rows, and sends the pooled vector to each example's own rank
    rows      an example's own rank requests the rows of its unique keys from the owner, and pools them itself

All three are exact and synchronous. With ⊕ as an all-reduce every rank finishes every example, and every
field is `partial`; vectors that a model gathers besides go to all ranks. With ⊕ as a reduce-scatter a rank
finishes its own examples. Fields that a model gathers are then `vectors` or `rows`; for the other fields
`trainer.placement.exchange_cost` predicts the fastest exchange.

The rows of a table that is split by key are on all ranks. For its fields

    vectors   every rank reads and pools the rows that it holds of each example, and sends its partial sum to
              the example's own rank, which adds the N sums up: ⊕ of a pooled vector (DES eq. 1)
    rows      each key is requested from its owner

They are never `partial`: a model may square the pooled vector of a field (FM), and the square of a sum is not
the sum of its parts' squares. Besides, every rank would compute the field's part of the first layer for all
B examples.

A `partial` field is field-parallel: the owner computes its part of the first layer for all B examples. The
others are sample-parallel: their part of the first layer is on every rank, as shared parameters are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from livectr.ingest.common_features import Common
from livectr.models.base import ModelConfig
from livectr.models.inputs import Gathers
from livectr.system.errors import ConfigError
from livectr.trainer.placement.placement import FieldPlacement
from livectr.trainer.step_settings import FieldExchange, Mode


@dataclass(frozen=True)
class Route:
    """Exchange of every field.

    Attributes:
        placement: rank of each field
        tables: table of each field
        field_exchange: exchange of each field
        scatter: True where a rank finishes its own examples only (⊕ as a reduce-scatter)
        sequences: fields whose every vector is gathered
        pooled: fields whose pooled vector is gathered
        dense: True where the dense features are gathered
        common: fields and dense features that the examples of a group share
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
        """N ranks."""
        return self.placement.world

    def read_by_owner(self, rank: int) -> tuple[int, ...]:
        """Fields of a rank that it reads for the examples of all ranks (`partial`, `vectors`), ascending.

        `split_vectors` come last.
        """
        whole = (f for f in self.placement.fields_of(rank) if self.field_exchange[f] != "rows")
        return (*(f for f in whole if f not in self.split_vectors), *self.split_vectors)

    def field_parallel(self, rank: int) -> tuple[int, ...]:
        """Fields of a rank whose exchange is `partial`."""
        return tuple(f for f in self.placement.fields_of(rank) if self.field_exchange[f] == "partial")

    def vectors(self, rank: int) -> tuple[int, ...]:
        """Fields of a rank whose exchange is `vectors`, without `split_vectors`."""
        own = (f for f in self.placement.fields_of(rank) if self.field_exchange[f] == "vectors")
        return tuple(f for f in own if f not in self.split_vectors)

    @cached_property
    def split_vectors(self) -> tuple[int, ...]:
        """Fields of split tables whose exchange is `vectors`: all ranks have partial sums of them."""
        fields = self.placement.split_fields(self.tables)
        return tuple(f for f in fields if self.field_exchange[f] == "vectors")

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """All fields whose exchange is `rows`, sorted by table."""
        row_fields = [f for f, exchange in enumerate(self.field_exchange) if exchange == "rows"]
        order = {table: i for i, table in enumerate(dict.fromkeys(self.tables))}
        return tuple(sorted(row_fields, key=lambda f: (order[self.tables[f]], f)))

    @cached_property
    def row_tables(self) -> tuple[str, ...]:
        """Tables of `rows`, in its order."""
        return tuple(dict.fromkeys(self.tables[f] for f in self.rows))

    @cached_property
    def row_sources(self) -> tuple[tuple[str, int], ...]:
        """(table, rank) pairs that rows are requested from, in the order of `row_tables`.

        A table that is split by key has a pair for each rank.
        """
        return tuple((table, rank) for table in self.row_tables for rank in self._holders(table))

    def requested_tables(self, rank: int) -> tuple[str, ...]:
        """Tables of `row_sources` of a rank, in that order."""
        return tuple(table for table, holder in self.row_sources if holder == rank)

    def _holders(self, table: str) -> Sequence[int]:
        if table in self.placement.split:
            return range(self.world)
        return (self.placement.owner[self.tables.index(table)],)

    @cached_property
    def sample_parallel(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """All fields that are not `partial`: common fields, and the others.

        `rows` come first, then the `vectors` of each rank, then `split_vectors`.
        """
        whole = (f for r in range(self.world) for f in self.vectors(r))
        ordered = [*self.rows, *whole, *self.split_vectors]
        common = tuple(f for f in ordered if f in self.common.fields)
        return common, tuple(f for f in ordered if f not in self.common.fields)


def gathers_of(configs: Mapping[str, ModelConfig], fields: Sequence[str]) -> Gathers:
    """Union of the fields that the models of a pipeline gather.

    Raises:
        ValueError: a field is missing.
    """
    wanted = [config.gathers(fields) for config in configs.values()]
    return Gathers(
        tuple(dict.fromkeys(name for gathers in wanted for name in gathers.pooled)),
        tuple(dict.fromkeys(name for gathers in wanted for name in gathers.sequences)),
        any(gathers.dense for gathers in wanted),
        tuple(dict.fromkeys(name for gathers in wanted for name in gathers.content)),
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
    """Route of a pipeline's fields.

    A field that is gathered, or whose table is split by key, becomes `rows` where it would be `partial`.
    Sequences are always `rows`.

    Args:
        placement: rank of each field.
        fields: names, in the order of the pipeline.
        tables: table of each field.
        gathers: fields that the models gather.
        mode: how ⊕ is run.
        field_exchange: of each field; None: `partial` wherever that is possible.
        common: fields and dense features that the examples of a group share.

    Raises:
        ConfigError: the mode does not know this exchange or placement.
    """
    scatter = mode == "reducescatter" and placement.world > 1
    at = {name: f for f, name in enumerate(fields)}
    sequences = tuple(at[name] for name in gathers.sequences)
    pooled = tuple(at[name] for name in gathers.pooled)
    chosen: list[FieldExchange] = list(field_exchange or ["partial"] * len(fields))
    if not scatter and any(exchange != "partial" for exchange in chosen) and placement.world > 1:
        raise ConfigError(
            "with aggregate='allreduce' the field exchange of every field is 'partial'; "
            "'vectors' and 'rows' need aggregate='reducescatter'"
        )
    if not scatter and placement.split and placement.world > 1:
        raise ConfigError(
            f"table {min(placement.split)!r} is split by key over the ranks, which aggregate='allreduce' "
            "cannot do; use aggregate='reducescatter', or raise rank_memory"
        )
    if not scatter:
        chosen = ["partial"] * len(fields)
    else:
        for f in (*pooled, *sequences, *placement.split_fields(tables)):
            chosen[f] = "rows" if f in sequences or chosen[f] == "partial" else chosen[f]
    return Route(placement, tuple(tables), tuple(chosen), scatter, sequences, pooled, gathers.dense, common)
