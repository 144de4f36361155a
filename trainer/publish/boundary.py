"""Step boundaries in the lists of changes, and how long these lists may grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from livectr.ingest.join.counters import CounterRows
from livectr.ingest.join.examples import ExampleSource
from livectr.ingest.join.histories import BehaviorHistories
from livectr.ingest.join.lookup import LookupTable
from livectr.kernels.table.table import DynamicTable
from livectr.trainer.des.step import DesStep

LISTED_ROWS = 1_000_000
"""Changes of a table that may be listed, however few rows it has."""
LISTED_SHARE = 1.25
"""Changes of a table that may be listed, of its rows. Compacted lists name each row once at most: they grow
by a quarter of the rows until the next time; erased keys come on top.
"""


@dataclass(frozen=True)
class Boundary:
    """Marks of a step boundary, which divide earlier from later changes.

    Attributes:
        tables: embedding table → mark.
        histories: mark of the behavior histories.
        lookup_rows: mark of the look-up rows; 0: every row counts as changed.
    """

    tables: dict[str, int]
    histories: int
    lookup_rows: int

    @staticmethod
    def mark(
        step: DesStep, source: ExampleSource, others: Mapping[str, DynamicTable] = MappingProxyType({})
    ) -> Boundary:
        """Mark the present, after rows on the GPU were copied to the host's tables.

        Args:
            step: whose tables are marked.
            source: whose histories and look-up rows are marked.
            others: tables that are not published, by their names in a checkpoint.
        """
        step.storage.flush()
        tables = {name: table.mark() for name, table in {**step.tables, **others}.items()}
        mark = source.mark()
        return Boundary(tables, mark, mark)


@dataclass(frozen=True)
class Left:
    """Expired users, and keys of look-up tables and counters, which a version removes."""

    behaviors: Sequence[BehaviorHistories] = ()
    lookups: Sequence[LookupTable | CounterRows] = ()

    @staticmethod
    def of(source: ExampleSource) -> Left:
        """Lists of a rank's source."""
        return Left(source.behaviors, [*source.tables.values(), *source.counters.rows.values()])

    def track(self, *, saved: bool, published: bool) -> None:
        """List who leaves from now on, as far as checkpoints (users alone) and versions have to know."""
        for behaviors in self.behaviors if saved else ():
            behaviors.track_left()
        for lookup in self.lookups if published else ():
            lookup.track_left()

    def forget(self, needed: Sequence[Boundary], published: Sequence[Boundary]) -> None:
        """Drop the users and keys that expired before all of some moments from the lists.

        Args:
            needed: moments of checkpoints and versions whose next needs the lists; one at least.
            published: of versions alone; one at least.
        """
        for behaviors in self.behaviors:
            behaviors.forget_left(min(held.histories for held in needed))
        for lookup in self.lookups:
            lookup.forget_left(min(held.lookup_rows for held in published))

    @property
    def overgrown(self) -> bool:
        """True when a list names more users, or keys, than there are."""
        many = any(lookup.overgrown for lookup in self.lookups)
        return many or any(behaviors.overgrown for behaviors in self.behaviors)


def overgrown(tables: Iterable[DynamicTable]) -> bool:
    """Compact lists of changes that are longer than they may be; tell if that does not help."""
    for table in tables:
        most = LISTED_SHARE * max(LISTED_ROWS, len(table))
        if table.listed > most:
            table.compact()
            if table.listed > most:
                return True
    return False
