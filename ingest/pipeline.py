"""The declaration that ties logs, features and models together: what a user's pipeline file makes."""

from __future__ import annotations

import hashlib
import runpy
import sys
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa

from livectr.ingest.language import dtypes
from livectr.ingest.language.content import Content, check_contents
from livectr.ingest.language.expr import ColumnRef, Expr, RecentRef
from livectr.ingest.language.policies import TablePolicy, by_table
from livectr.ingest.language.streams import Lookup, Stream, Table, View, roots_of
from livectr.ingest.plan.dag import FeaturePlan
from livectr.kernels.errors import ConfigError, UserError
from livectr.kernels.table.layout import Values


@dataclass(frozen=True, eq=False)
class Field:
    """A sparse field that shares the embedding table of the field named `table`."""

    expr: Expr
    table: str


@dataclass(frozen=True)
class FieldSpec:
    """A sparse field: its name, its embedding table and its number in field order."""

    name: str
    table: str
    index: int


@dataclass(frozen=True, repr=False, eq=False)
class Pipeline:
    """Logs → features → models, checked as a whole when it is built.

    log       labelled impressions with their look-ups
    sparse    field name → expression, or Field to share another field's embedding table; the order is the
              field order
    dense     name → scalar number expression
    rank      configuration of the ranking model (a dataclass of `models`)
    prerank   configuration of the two-tower pre-rank model, or None
    shadows   name → model that is trained and scored beside the others, on rows of its own, to be compared
              with them; it is never served
    content   name → images or texts whose features a sub-model embeds
    items     the look-up table of what is ranked (the ads); needed by pre-rank
    policies  which rows embedding tables take in and let go: one TablePolicy for all of them, or one by the
              name of the table; None: all stay
    row_values  how tables store their values: "fp32", or in half of the memory "fp16" or "bf16"; optimisers'
              state is fp32, and updates are rounded at random, so that small ones are not lost
    settings  settings that the pipeline file fixes; checked by the command line's configuration

    Raises ConfigError, one sentence, for what cannot work.
    """

    log: View
    _: KW_ONLY
    sparse: Mapping[str, Expr | Field]
    dense: Mapping[str, Expr] = field(default_factory=dict)
    rank: object
    prerank: object | None = None
    shadows: Mapping[str, object] = field(default_factory=dict)
    content: Mapping[str, Content] = field(default_factory=dict)
    items: Table | None = None
    policies: TablePolicy | Mapping[str, TablePolicy] | None = None
    row_values: Values = "fp32"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.log, View):
            raise ConfigError(f"Pipeline: the log is {self.log!r}; make it with label_join() or labelled()")
        if not self.sparse and not self.dense:
            raise ConfigError("Pipeline: there are no features")
        for name, table in self._tables.items():
            if table != name and self._tables.get(table) != table:
                raise ConfigError(
                    f"sparse field {name!r} shares table {table!r}, which is no field with its own table"
                )
        twice = sorted(set(self.sparse) & set(self.dense))
        if twice:
            raise ConfigError(
                f"{', '.join(map(repr, twice))}: a sparse and a dense feature have the same name"
            )
        for root in self.plan.roots:
            self._check_root(root)
        if self.items is not None and self._item_lookup is None:
            raise ConfigError(
                f"items table {self.items.topic} is not looked up; add .lookup({self.items.topic}) to the log"
            )
        self._check_towers()
        _ = self.table_policies
        if self.row_values not in get_args(Values):
            raise ConfigError(
                f"Pipeline: row_values is {self.row_values!r}; it must be {' or '.join(get_args(Values))}"
            )
        check_contents(self.content, self.plan.sparse)
        self._check_models()

    # What it computes

    @cached_property
    def plan(self) -> FeaturePlan:
        exprs = {
            name: entry.expr if isinstance(entry, Field) else entry for name, entry in self.sparse.items()
        }
        return FeaturePlan(exprs, self.dense)

    @cached_property
    def fields(self) -> tuple[FieldSpec, ...]:
        return tuple(
            FieldSpec(name, table, index) for index, (name, table) in enumerate(self._tables.items())
        )

    @cached_property
    def table_policies(self) -> dict[str, TablePolicy]:
        """Embedding table → its policy, of the tables that have one."""
        return by_table(self.policies, self._tables.values(), timed=self.log.impressions.time is not None)

    @property
    def _tables(self) -> dict[str, str]:
        return {
            name: entry.table if isinstance(entry, Field) else name for name, entry in self.sparse.items()
        }

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of everything that a checkpoint or a published model depends on."""
        parts = (
            self.plan.fingerprint,
            self.fields,
            self.plan.dense_names,
            self.rank,
            self.prerank,
            self.log,
            self.items,
            sorted(self.table_policies.items()),
            self.row_values,
            sorted(self.content.items()),
            list(self.shadows.items()),
        )
        return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()

    def select(self, names: Collection[str]) -> Pipeline:
        """This pipeline with a plan of the named features only: a source that is opened with it reads and
        joins just the columns that they need. Fields, models and fingerprint are those of the whole, and
        histories are kept for every recent() root, so that a checkpoint and a published version do not depend
        on where features come from."""
        sparse = {name: node for name, node in self.plan.sparse.items() if name in names}
        dense = {name: node for name, node in self.plan.dense.items() if name in names}
        part = object.__new__(Pipeline)
        vars(part).update({declared.name: getattr(self, declared.name) for declared in fields(self)})
        vars(part).update(
            plan=FeaturePlan(sparse, dense), fingerprint=self.fingerprint, history_roots=self.history_roots
        )
        return part

    def computed(self, materialized: Collection[str]) -> Pipeline:
        """This pipeline with a plan of all features but the materialized ones, which are read (see
        `select`)."""
        return self.select(
            [name for name in (*self.plan.sparse, *self.plan.dense) if name not in materialized]
        )

    # What it reads

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The event streams: impressions first."""
        return (self.log.impressions,) if self.log.clicks is None else (self.log.impressions, self.log.clicks)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The look-up tables."""
        return tuple(lookup.table for lookup in self.log.lookups)

    @cached_property
    def request_roots(self) -> tuple[Expr, ...]:
        """Columns of the impression stream that features need: what a serving request carries."""
        return tuple(root for root in self.plan.roots if _is_column(root) and not root.params[0].table)

    @cached_property
    def lookup_roots(self) -> dict[str, tuple[Expr, ...]]:
        """Table topic → its columns that features need."""
        roots = [root for root in self.plan.roots if _is_column(root) and root.params[0].table]
        return {
            lookup.table.topic: tuple(root for root in roots if root.ref.source == lookup.table.topic)
            for lookup in self.log.lookups
        }

    @property
    def joined(self) -> tuple[Lookup, ...]:
        """The look-ups of which features need a column."""
        return tuple(lookup for lookup in self.log.lookups if self.lookup_roots[lookup.table.topic])

    @property
    def narrow_tables(self) -> tuple[Table, ...]:
        """The look-up tables that features need, with no other columns than those."""
        return tuple(
            Table(
                lookup.table.topic,
                key=lookup.table.key,
                columns={
                    name: lookup.table.columns[name]
                    for name in (lookup.table.key, *_columns_of(self.lookup_roots[lookup.table.topic]))
                },
            )
            for lookup in self.joined
        )

    @cached_property
    def history_roots(self) -> tuple[Expr, ...]:
        """The recent() roots."""
        return tuple(root for root in self.plan.roots if isinstance(root.ref, RecentRef))

    # What depends on the item alone

    @property
    def _item_lookup(self) -> Lookup | None:
        if self.items is None:
            return None
        return next((lookup for lookup in self.log.lookups if lookup.table.topic == self.items.topic), None)

    @property
    def item_column(self) -> str | None:
        """The impressions' column that names the item: what looks the items table up; None without one."""
        lookup = self._item_lookup
        return None if lookup is None else lookup.on

    @cached_property
    def item_roots(self) -> tuple[Expr, ...]:
        """Roots known from the items table alone: its columns, and the impression column that looks it up."""
        lookup = self._item_lookup
        if lookup is None:
            return ()
        names = {f"{lookup.table.topic}.{name}" for name in lookup.table.columns}
        names.add(f"{self.log.impressions.topic}.{lookup.on}")
        return tuple(root for root in self.plan.roots if root.name in names)

    @cached_property
    def item_fields(self) -> tuple[FieldSpec, ...]:
        """Fields that depend on the item alone."""
        known = {root.name for root in self.item_roots}
        return tuple(
            spec
            for spec in self.fields
            if (roots := roots_of(self.plan.sparse[spec.name])) and {root.name for root in roots} <= known
        )

    def item_columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the items table (plain column names) → a batch of all plan roots, whose other roots are
        null."""
        lookup = self._item_lookup
        if lookup is None:
            raise ConfigError("this pipeline has no items table")
        names = {f"{lookup.table.topic}.{name}": name for name in lookup.table.columns}
        names[f"{self.log.impressions.topic}.{lookup.on}"] = lookup.table.key
        arrays = []
        for root in self.plan.roots:
            kind = dtypes.arrow_type(root.dtype)
            known = root.name in names and names[root.name] in rows.schema.names
            arrays.append(
                rows.column(names[root.name]).cast(kind) if known else pa.nulls(rows.num_rows, kind)
            )
        return pa.RecordBatch.from_arrays(arrays, names=[root.name for root in self.plan.roots])

    # Checks

    def _check_root(self, root: Expr) -> None:
        ref, log = root.ref, self.log
        tables = {table.topic: table for table in self.tables}
        if isinstance(ref, RecentRef):
            if log.clicks is None or ref.source != log.clicks.topic:
                raise ConfigError(f"{root}: histories are made of the click stream of a label_join")
        elif ref.table:
            if ref.source not in tables:
                raise ConfigError(
                    f"{root}: table {ref.source} is not looked up; add .lookup({ref.source}) to the log"
                )
            self._check_declared(root, ref, tables[ref.source].columns)
        elif ref.source != log.impressions.topic:
            raise ConfigError(
                f"{root} is not known when an impression of {log.impressions.topic} is scored; "
                "use its history, recent(...), or a column of the impressions"
            )
        else:
            self._check_declared(root, ref, log.impressions.columns)

    def _check_declared(self, root: Expr, ref: ColumnRef, columns: Mapping[str, str]) -> None:
        if columns.get(ref.column) != root.dtype:
            raise ConfigError(
                f"{root} comes from another declaration of {ref.source}; declare each topic once"
            )
        if ref.column == self.log.label and not ref.table:
            raise ConfigError(f"{root} is the label; it cannot be a feature")

    def _check_towers(self) -> None:
        """A two-tower model's features exist, and its item side needs nothing but the item."""
        if self.prerank is None:
            return
        if self.items is None:
            raise ConfigError("Pipeline: a prerank model needs items=, the look-up table of what is ranked")
        features = {**self.plan.sparse, **self.plan.dense}
        known = {root.name for root in self.item_roots}
        for side in ("user", "item"):
            for name in (*getattr(self.prerank, side, ()), *getattr(self.prerank, f"{side}_images", ())):
                if name not in features:
                    raise ConfigError(
                        f"prerank: {side} tower names {name!r}; features are {', '.join(features)}"
                    )
                foreign = [root.name for root in roots_of(features[name]) if root.name not in known]
                if side == "item" and foreign:
                    raise ConfigError(
                        f"prerank: item tower names {name!r}, which depends on {', '.join(foreign)}; "
                        f"the items table {self.items.topic} does not know that"
                    )

    def _check_models(self) -> None:
        """The features that a model names exist (`models.ModelConfig.check`, which is not imported here)."""
        roles = {"rank": self.rank, "prerank": self.prerank}
        for name in self.shadows:
            if name in roles or not name.isidentifier():
                raise ConfigError(f"Pipeline: a shadow cannot be named {name!r}; take another word")
        content = {name for one in self.content.values() for name in one.fields}
        for role, model in (roles | dict(self.shadows)).items():
            check = getattr(model, "check", None)
            if not callable(check):
                continue
            try:
                check(self.plan.fields, self.plan.dense_names)
                wanted = getattr(model, "gathers")(self.plan.fields).content  # noqa: B009
            except ValueError as error:
                raise ConfigError(f"{role}: {error}") from None
            for name in wanted:
                if name not in content:
                    raise ConfigError(
                        f"{role}: {type(model).__name__} wants content of field {name!r}, which no content= "
                        "of the pipeline names among its fields"
                    )


def _columns_of(roots: Iterable[Expr]) -> tuple[str, ...]:
    return tuple(root.params[0].column for root in roots)


def _is_column(root: Expr) -> bool:
    return isinstance(root.params[0], ColumnRef)


def load_pipeline(path: str | Path) -> Pipeline:
    """Runs a user's pipeline file and returns its module variable `pipeline`.

    The file may import modules beside it. Whatever it raises becomes a ConfigError "file:line: message".
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"pipeline file {file} does not exist")
    sys.path.insert(0, str(file.resolve().parent))
    try:
        found = runpy.run_path(str(file))
    except (Exception, SystemExit) as error:
        raise ConfigError(_located(file, error)) from error
    finally:
        sys.path.pop(0)
    pipeline = found.get("pipeline")
    if not isinstance(pipeline, Pipeline):
        raise ConfigError(f"{file}: there is no variable `pipeline = Pipeline(...)`")
    return pipeline


def _located(file: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    told = isinstance(error, UserError | ValueError)  # these say by themselves what is wrong
    message = str(error) if told else f"{type(error).__name__}: {error}"
    return f"{file}:{lines[-1]}: {message}" if lines else f"{file}: {message}"
