"""Operators of the feature language: functions from expressions to an expression.

Users write `livectr.ops.cross(…)`; `livectr.operator` makes new operators from C++.
"""

from livectr.ingest.operators.bucketize import bucketize
from livectr.ingest.operators.cast import cast
from livectr.ingest.operators.cross import cross
from livectr.ingest.operators.dictionary import lookup
from livectr.ingest.operators.embedding import word_embedding
from livectr.ingest.operators.fill import fill_null
from livectr.ingest.operators.json_field import json_field
from livectr.ingest.operators.key import key
from livectr.ingest.operators.keywords import keywords
from livectr.ingest.operators.lists import (
    contains_item,
    count_of,
    head,
    item,
    largest,
    mean,
    smallest,
    tail,
    total,
    unique,
)
from livectr.ingest.operators.numbers import clip, log1p, normalise
from livectr.ingest.operators.similarity import edit_distance, token_overlap
from livectr.ingest.operators.sizes import length
from livectr.ingest.operators.statistics import frequency, minmax, quantile_bins, zscore
from livectr.ingest.operators.strings import lower, ngrams, split
from livectr.ingest.operators.text import concat, contains, starts_with, substring, trim
from livectr.ingest.operators.times import age, hour, weekday
from livectr.ingest.operators.user import Operator, operator
from livectr.ingest.operators.where import where

__all__ = [
    "Operator",
    "age",
    "bucketize",
    "cast",
    "clip",
    "concat",
    "contains",
    "contains_item",
    "count_of",
    "cross",
    "edit_distance",
    "fill_null",
    "frequency",
    "head",
    "hour",
    "item",
    "json_field",
    "key",
    "keywords",
    "largest",
    "length",
    "log1p",
    "lookup",
    "lower",
    "mean",
    "minmax",
    "ngrams",
    "normalise",
    "operator",
    "quantile_bins",
    "smallest",
    "split",
    "starts_with",
    "substring",
    "tail",
    "token_overlap",
    "total",
    "trim",
    "unique",
    "weekday",
    "where",
    "word_embedding",
    "zscore",
]

GROUPS = {
    "Keys, crosses, buckets": ("key", "cross", "bucketize"),
    "Numbers": ("log1p", "clip", "normalise", "cast", "where", "fill_null"),
    "Times": ("hour", "weekday", "age"),
    "Strings": ("lower", "trim", "substring", "concat", "split", "ngrams", "length"),
    "Search and likeness": ("contains", "starts_with", "keywords", "token_overlap", "edit_distance"),
    "JSON": ("json_field",),
    "Lists": (
        "head", "tail", "item", "unique", "total", "mean", "largest", "smallest", "count_of", "contains_item",
    ),
    "Dictionaries and word vectors": ("lookup", "word_embedding"),
    "Running statistics": ("zscore", "minmax", "quantile_bins", "frequency"),
    "Your own": ("operator",),
}  # fmt: skip
"""Operators as docs/operators.md groups them."""
