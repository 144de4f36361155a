"""The benchmark's view and its 200 features as a pipeline that `livectr train` runs.

The model is logistic regression, the lightest, so that the comparison is about the way to the model.
"""

from collections.abc import Sequence

from bench.featurebox.features import features
from bench.featurebox.schema import LABEL, LOG, LOG_COLUMNS, TABLES
from livectr.ingest import operators
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Pipeline
from livectr.models.lr import LR


class Ours:
    """`Language` in the feature language."""

    bucketize = staticmethod(operators.bucketize)
    log1p = staticmethod(operators.log1p)
    normalise = staticmethod(operators.normalise)
    clip = staticmethod(operators.clip)
    where = staticmethod(operators.where)
    hour = staticmethod(operators.hour)
    weekday = staticmethod(operators.weekday)
    lower = staticmethod(operators.lower)
    trim = staticmethod(operators.trim)
    contains = staticmethod(operators.contains)
    head = staticmethod(operators.head)
    unique = staticmethod(operators.unique)
    length = staticmethod(operators.length)
    cross = staticmethod(operators.cross)

    def __init__(self, log: Stream, tables: Sequence[Table]) -> None:
        self.sources = {LOG: log, **{table.topic: table for table in tables}}

    def column(self, name: str) -> Expr:
        source, _, column = name.partition(".")
        return self.sources[source][column]

    @staticmethod
    def floor_divide(x: Expr, by: int) -> Expr:
        return x // by

    @staticmethod
    def substring(text: Expr, size: int) -> Expr:
        return operators.substring(text, 0, size)

    @staticmethod
    def words(text: Expr) -> Expr:
        return operators.split(text, " ")

    @staticmethod
    def bigrams(words: Expr) -> Expr:
        return operators.ngrams(words, 2)

    @staticmethod
    def trigrams(text: Expr) -> Expr:
        return operators.ngrams(text, 3)


def display_ads() -> Pipeline:
    """The pipeline."""
    log = Stream(LOG, key="user_id", time="ts", columns=LOG_COLUMNS)
    tables = [Table(name, key=key, columns=columns) for name, (key, columns) in TABLES.items()]
    view = labelled(log, label=LABEL)
    for table in tables:
        view = view.lookup(table)
    sparse, dense = features(Ours(log, tables))
    return Pipeline(view, sparse=sparse, dense=dense, rank=LR())


pipeline = display_ads()
