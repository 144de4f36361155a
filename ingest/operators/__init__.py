"""The operators of the feature language. An operator is a function from expressions to an expression.

`from ingest.operators import *` gives all of them; `operator` makes new ones from C++.
"""

from ingest.operators.bucketize import bucketize
from ingest.operators.cross import cross
from ingest.operators.fill import fill_null
from ingest.operators.key import key
from ingest.operators.numbers import clip, log1p, normalise
from ingest.operators.sizes import length
from ingest.operators.strings import lower, ngrams, split
from ingest.operators.times import hour, weekday
from ingest.operators.user import Operator, operator
from ingest.operators.where import where

__all__ = [
    "Operator",
    "bucketize",
    "clip",
    "cross",
    "fill_null",
    "hour",
    "key",
    "length",
    "log1p",
    "lower",
    "ngrams",
    "normalise",
    "operator",
    "split",
    "weekday",
    "where",
]
