"""Pipeline: the declaration that connects logs, features and models.

It is the content of a user's pipeline file.
"""

from __future__ import annotations

import hashlib
import runpy
import sys
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa

from livectr.ingest.language import dtypes
from livectr.ingest.language.calibration import Calibration, check_calibration
from livectr.ingest.language.content import Content, check_contents
from livectr.ingest.language.counts import CountedRef
from livectr.ingest.language.expr import ColumnRef, Expr, RecentRef
from livectr.ingest.language.policies import TablePolicy, by_table
from livectr.ingest.language.promotion import Promotion
from livectr.ingest.language.roots import roots_of
from livectr.ingest.language.streams import Stream, View
from livectr.ingest.language.tables import Lookup, Table
from livectr.ingest.language.targets import Target
from livectr.ingest.language.value import Value
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.model_checks import check_contest, check_models, check_names, check_towers
from livectr.ingest.plan.position import ShownAt, check_beside
from livectr.ingest.plan.root_checks import check_root
from livectr.ingest.plan.target_checks import check_targets
from livectr.ingest.plan.weights import ExampleWeights
from livectr.ingest.plan.worths import Worths
from livectr.kernels.table.layout import Values
from livectr.system.errors import ConfigError, UserError


@dataclass(frozen=True, eq=False)
class Field:
    """Sparse field with an embedding table that is not its own, or under a new name.

    Attributes:
        expr: gives its keys.
        table: name of the field whose embedding table it shares; None: its own.
        was: name that it had in a run which this pipeline continues (`warm_parts=run`).
    """

    expr: Expr
    table: str | None = None
    was: str | None = None


@dataclass(frozen=True)
class FieldSpec:
    """Name of a sparse field, its embedding table, and its number in field order."""

    name: str
    table: str
    index: int


@dataclass(frozen=True, repr=False, eq=False)
class Pipeline:
    """Declaration of logs, features and models, checked as a whole when it is built.

    Args:
        log: labelled impressions with their look-ups.
        sparse: field name → expression, or Field to share another field's embedding table; in field order.
        dense: name → expression of a number, or of a vector of fixed width.
        rank: configuration of the ranking model (a dataclass of `models`); with challengers, the first
            champion.
        prerank: configuration of the two-tower pre-rank model, or None.
        challengers: name → ranking model that is trained and scored beside the champion, with its own rows.
            Once it is promoted, it is published and served in the champion's place.
        promotion: rule by which a challenger becomes the champion.
        shadows: name → model that is trained and scored for comparison, with its own rows, and never served.
        calibration: maps the champion's predictions to observed click rates, by segment; None: none.
        weight: number of an example, at least 0, by which it counts in losses and measures; None: 1. It may
            read columns that are not known when an ad is scored, the label too.
        sampling: share of the examples without a click that the log has kept, as a number or as a column of
            the examples' own rates; None: the log is whole. What is predicted and measured is of the whole
            log (models.importance).
        position_bias: place at which an impression was shown, a whole number from 0. Clicks are learned as
            p(seen | place) · p(click | seen); the second is served (models.position_bias). None: an
            impression without a click was seen.
        targets: labels beside the log's own, the click; each has a head beside the ranking model.
        value: expected value of an impression, such as `ads.bid * probability("click")`: rank orders by it,
            pre-rank and recommend cut by it, and it is measured. None: bid of the request times probability
            of a click, and pre-rank knows no bids.
        content: name → images or texts whose features a sub-model embeds.
        items: look-up table of the ranked items (the ads); pre-rank needs it.
        policies: admission, expiry and eviction of rows: a TablePolicy for all embedding tables, or table →
            TablePolicy; None keeps all rows.
        row_values: type in which tables store values: "fp32", or half the memory with "fp16" or "bf16". The
            optimizer's state is fp32, and updates are rounded stochastically, so that small updates are not
            lost.
        settings: settings that the pipeline file fixes; checked by the command line's configuration.

    Raises:
        ConfigError: the parts do not fit together.

    Example:
        pipeline = Pipeline(log, sparse={"user": log.user_id, "ad": log.ad_id}, rank=LR())
    """

    log: View
    _: KW_ONLY
    sparse: Mapping[str, Expr | Field]
    dense: Mapping[str, Expr] = field(default_factory=dict)
    rank: object
    prerank: object | None = None
    challengers: Mapping[str, object] = field(default_factory=dict)
    promotion: Promotion = Promotion()
    shadows: Mapping[str, object] = field(default_factory=dict)
    calibration: Calibration | None = None
    weight: Expr | None = None
    sampling: float | Expr | None = None
    position_bias: Expr | None = None
    targets: Sequence[Target] = ()
    value: Value | None = None
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
        object.__setattr__(self, "log", self._with_counts())
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
        named = {*self.sparse, *self.dense}
        if still := sorted(name for name, was in self.renamed.items() if was in named):
            raise ConfigError(
                f"sparse field {still[0]!r} was {self.renamed[still[0]]!r}, but that is still a feature; "
                "leave was= out, or rename the other"
            )
        for root in self.plan.roots:
            check_root(root, self.log)
        if self.items is not None and self._item_lookup is None:
            raise ConfigError(
                f"items table {self.items.topic} is not looked up; add .lookup({self.items.topic}) to the log"
            )
        if self.prerank is not None:
            features = {**self.plan.sparse, **self.plan.dense}
            check_towers(self.prerank, features, self.items, {root.name for root in self.item_roots})
        _ = self.table_policies
        if self.row_values not in get_args(Values):
            raise ConfigError(
                f"Pipeline: row_values is {self.row_values!r}; it must be {' or '.join(get_args(Values))}"
            )
        check_contents(self.content, self.plan.sparse)
        check_names(self.challengers, self.shadows)
        check_contest(self.challengers, self.promotion)
        check_calibration(self.calibration, self.plan.sparse)
        _ = self.example_weights
        if self.shown is not None:
            check_beside(self.sampling, self.calibration, self.rank)
        check_targets(self.targets, self.log, self.rank, self.challengers, positioned=self.shown is not None)
        _ = self.worths
        check_models(self.models, self.plan, self.content)

    # Features

    @cached_property
    def plan(self) -> FeaturePlan:
        """Feature plan of all fields and dense numbers."""
        exprs = {
            name: entry.expr if isinstance(entry, Field) else entry for name, entry in self.sparse.items()
        }
        return FeaturePlan(exprs, self.dense)

    def _with_counts(self) -> View:
        """The log with the look-ups of the counters that features read."""
        refs = [root.ref for root in self.plan.roots if isinstance(root.ref, CountedRef)]
        counted = [Lookup.of_counters(ref.counted) for ref in refs if ref.counted is not None]
        return replace(self.log, lookups=(*(e for e in self.log.lookups if e.counted is None), *counted))

    @property
    def features(self) -> int:
        """Number of fields and dense features."""
        return len(self.fields) + len(self.plan.dense_names)

    @cached_property
    def fields(self) -> tuple[FieldSpec, ...]:
        """Sparse fields in field order."""
        return tuple(
            FieldSpec(name, table, index) for index, (name, table) in enumerate(self._tables.items())
        )

    @cached_property
    def table_policies(self) -> dict[str, TablePolicy]:
        """Embedding table → policy, for the tables with a policy."""
        return by_table(self.policies, self._tables.values(), timed=self.log.impressions.time is not None)

    @property
    def _tables(self) -> dict[str, str]:
        return {
            name: entry.table or name if isinstance(entry, Field) else name
            for name, entry in self.sparse.items()
        }

    @property
    def renamed(self) -> dict[str, str]:
        """Sparse field → name that it had in a run which this pipeline continues, where it has another."""
        return {
            name: entry.was
            for name, entry in self.sparse.items()
            if isinstance(entry, Field) and entry.was is not None
        }

    @property
    def segment_field(self) -> int | None:
        """Number of the field whose values are the calibration's segments; None: there are no segments."""
        by = None if self.calibration is None else self.calibration.by
        return None if by is None else self.plan.fields.index(by)

    @cached_property
    def example_weights(self) -> ExampleWeights | None:
        """Weights and sampling of the examples; None: each counts once."""
        if self.weight is None and self.sampling is None:
            return None
        return ExampleWeights(self.weight, self.sampling, self.log)

    @property
    def valued(self) -> tuple[Target, ...]:
        """Targets with values, in the order of the targets."""
        return tuple(target for target in self.targets if target.value is not None)

    @cached_property
    def worths(self) -> Worths | None:
        """Worths of the labels; None: there is no `value`."""
        if self.value is None:
            return None
        return Worths(self.value, self.log, self.items, self.targets, self.prerank is not None)

    @cached_property
    def shown(self) -> ShownAt | None:
        """Places of impressions; None: the pipeline names no position."""
        return None if self.position_bias is None else ShownAt(self.position_bias, self.log)

    @property
    def contenders(self) -> dict[str, object]:
        """Role → ranking model that may be published, the first champion first."""
        return {"rank": self.rank, **self.challengers}

    @property
    def models(self) -> dict[str, object]:
        """Role → model, None for a pipeline without a pre-rank model."""
        return {"rank": self.rank, "prerank": self.prerank, **self.challengers, **self.shadows}

    @property
    def map_of_dense(self) -> str:
        """Map of dense features into networks (`models.ModelConfig.map_of_dense`); "": none enters any."""
        models = self.models.values() if self.plan.dense_names else ()
        return max((getattr(model, "map_of_dense", "") for model in models), default="")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that checkpoints and published models depend on.

        The rule of promotion and the window of the calibration are no part of it: they may change during a
        run.
        """
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
            *([list(self.challengers.items())] if self.challengers else []),
            *([("calibration", self.calibration.by)] if self.calibration is not None else []),
            *([("dense", self.map_of_dense)] if self.map_of_dense else []),
            *([("weights", self.example_weights.meaning)] if self.example_weights is not None else []),
            *([("position", self.shown.expr.meaning)] if self.shown is not None else []),
            *([("targets", [target.meaning for target in self.targets])] if self.targets else []),
            *([("value", self.value.meaning)] if self.value is not None else []),
        )
        return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()

    def select(self, names: Collection[str]) -> Pipeline:
        """Copy of this pipeline whose plan has the named features only.

        A source opened with it reads and joins just the columns they need. Fields, models and fingerprint
        stay those of the full pipeline, and histories are kept for every recent() root. So a checkpoint and a
        published version do not depend on where features come from.
        """
        sparse = {name: node for name, node in self.plan.sparse.items() if name in names}
        dense = {name: node for name, node in self.plan.dense.items() if name in names}
        return self._with(FeaturePlan(sparse, dense))

    def _with(self, plan: FeaturePlan) -> Pipeline:
        part = object.__new__(Pipeline)
        vars(part).update({declared.name: getattr(self, declared.name) for declared in fields(self)})
        vars(part).update(plan=plan, fingerprint=self.fingerprint, history_roots=self.history_roots)
        return part

    @property
    def learned(self) -> Pipeline:
        """Copy of this pipeline whose source of examples also reads weights, targets, places and value."""
        weights = self.example_weights
        more = {f"#{target.role}": target.label for target in self.targets if target.label is not None}
        more |= {f"#{t.role}.value": t.value for t in self.targets if t.value is not None}
        more |= {} if weights is None else weights.columns
        more |= {} if self.worths is None else self.worths.columns
        more |= {} if self.shown is None else self.shown.columns
        if not more and weights is None:
            return self
        return self._with(FeaturePlan(self.plan.sparse, {**self.plan.dense, **more}))

    @property
    def with_worths(self) -> Pipeline:
        """Copy of this pipeline whose plan also reads the columns of look-up rows that have worths."""
        return self if self.worths is None else self._reading(self.worths.row_plan)

    @property
    def priced(self) -> Pipeline:
        """Copy of this pipeline whose plan also reads the columns of all worths."""
        return self if self.worths is None else self._reading(self.worths.plan)

    def _reading(self, worths: FeaturePlan) -> Pipeline:
        more = {f"#value.{label}": worth for label, worth in worths.dense.items()}
        return self._with(FeaturePlan(self.plan.sparse, {**self.plan.dense, **more})) if more else self

    def computed(self, materialized: Collection[str]) -> Pipeline:
        """Copy of this pipeline whose plan lacks the materialized features, which are read (see `select`)."""
        return self.select(
            [name for name in (*self.plan.sparse, *self.plan.dense) if name not in materialized]
        )

    # Inputs

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Event streams: impressions, clicks, and those of other labels."""
        clicks = () if self.log.clicks is None else (self.log.clicks,)
        return (self.log.impressions, *clicks, *(label.stream for label in self.log.more_labels))

    @property
    def tables(self) -> tuple[Table, ...]:
        """Look-up tables that are read."""
        return tuple(lookup.table for lookup in self.log.lookups if lookup.counted is None)

    @property
    def counters(self) -> tuple[Lookup, ...]:
        """Look-ups of counters."""
        return tuple(lookup for lookup in self.log.lookups if lookup.counted is not None)

    @cached_property
    def request_roots(self) -> tuple[Expr, ...]:
        """Columns of the impression stream that features read: a serving request carries them."""
        topic = self.log.impressions.topic
        return tuple(root for root in self._columns if root.ref.source == topic and not root.params[0].table)

    @property
    def amounts(self) -> dict[str, Expr]:
        """Label beside the click → column of its events that the value of its target reads."""
        of = {label.stream.topic: label.name for label in self.log.more_labels}
        roots = [root for root in self._columns if root.ref.source in of and not root.params[0].table]
        return {of[root.ref.source]: root for root in roots}

    @property
    def _columns(self) -> list[Expr]:
        """Columns that features read."""
        return [root for root in self.plan.roots if _is_column(root)]

    @cached_property
    def lookup_roots(self) -> dict[str, tuple[Expr, ...]]:
        """Table topic → its columns that features read."""
        roots = [root for root in self._columns if root.params[0].table]
        return {
            lookup.table.topic: tuple(root for root in roots if root.ref.source == lookup.table.topic)
            for lookup in self.log.lookups
        }

    @property
    def joined(self) -> tuple[Lookup, ...]:
        """Look-ups of which features read a column."""
        return tuple(lookup for lookup in self.log.lookups if self.lookup_roots[lookup.table.topic])

    @property
    def narrow_tables(self) -> tuple[Table, ...]:
        """Look-up tables that features read, with only the columns they read."""
        return tuple(
            lookup.table.narrow(_columns_of(self.lookup_roots[lookup.table.topic]))
            for lookup in self.joined
            if lookup.counted is None
        )

    @property
    def versioned(self) -> frozenset[str]:
        """Topics of look-up tables whose rows are looked up as of the impression's time."""
        timed = self.log.impressions.time is not None
        return frozenset(
            lookup.table.topic
            for lookup in self.joined
            if timed and lookup.table.time is not None and lookup.as_of is None
        )

    @cached_property
    def history_roots(self) -> tuple[Expr, ...]:
        """The recent() roots."""
        return tuple(root for root in self.plan.roots if isinstance(root.ref, RecentRef))

    # Features of the item alone

    @property
    def _item_lookup(self) -> Lookup | None:
        if self.items is None:
            return None
        return next((lookup for lookup in self.log.lookups if lookup.table.topic == self.items.topic), None)

    @property
    def item_column(self) -> str | None:
        """Impression column of the item: the key into the items table; None without such a table."""
        lookup = self._item_lookup
        return None if lookup is None else lookup.on

    @cached_property
    def item_roots(self) -> tuple[Expr, ...]:
        """Roots known from the items table alone: its columns, and the impression column with its key."""
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
        """Batch of all plan roots for rows of the items table (plain column names); other roots are null."""
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


def _columns_of(roots: Iterable[Expr]) -> tuple[str, ...]:
    return tuple(root.params[0].column for root in roots)


def _is_column(root: Expr) -> bool:
    return isinstance(root.params[0], ColumnRef)


def load_pipeline(path: str | Path) -> Pipeline:
    """Run a user's pipeline file, which may import modules in its folder, and return its variable `pipeline`.

    Raises:
        ConfigError: the file does not exist, raises, or has no such variable; with "file:line: message".
    """
    file = pipeline_file(path)
    sys.path.insert(0, str(file.resolve().parent))
    try:
        names = runpy.run_path(str(file))
    except (Exception, SystemExit) as error:
        raise ConfigError(_located(file, error)) from error
    finally:
        sys.path.pop(0)
    pipeline = names.get("pipeline")
    if not isinstance(pipeline, Pipeline):
        raise ConfigError(f"{file}: there is no variable `pipeline = Pipeline(...)`")
    return pipeline


def pipeline_file(path: str | Path) -> Path:
    """Path of a pipeline file that exists.

    Raises:
        ConfigError: it does not, or is a folder.
    """
    file = Path(path)
    if file.is_dir():
        inside = sorted(each.name for each in file.glob("*.py"))
        name = "pipeline.py" if "pipeline.py" in inside else inside[0] if len(inside) == 1 else "FILE.py"
        raise ConfigError(f"{file} is a folder: name the pipeline file, such as {file / name}")
    if not file.is_file():
        raise ConfigError(f"pipeline file {file} does not exist")
    return file


def _located(file: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    is_sentence = isinstance(error, UserError | ValueError)  # their messages are sentences for users
    message = str(error) if is_sentence else f"{type(error).__name__}: {error}"
    return f"{file}:{lines[-1]}: {message}" if lines else f"{file}: {message}"
