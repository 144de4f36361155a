"""Criteo display advertising (Kaggle layout): 13 counts and 26 hashed categories, the label is a column.

`livectr logs replay train.txt --format criteo` numbers the rows and leaves the names of the data set.
"""

from livectr import Pipeline, Stream, labelled, ops
from livectr.models import DeepFM

counts = [f"I{i}" for i in range(1, 14)]
categories = [f"C{i}" for i in range(1, 27)]

criteo = Stream(
    "criteo",
    key="row",
    columns={
        "row": "int64",
        "label": "int32",
        **dict.fromkeys(counts, "int64"),
        **dict.fromkeys(categories, "string"),
    },
)
log = labelled(criteo, label="label")

# Counts are learned by bins, too: nulls, negative counts, 0 to 3, and then a bin for each doubling.
NULL = -9
bounds = [NULL + 1, 0, 1, 2, 3, *(2**k for k in range(2, 21))]
bins = {name: ops.bucketize(ops.fill_null(log[name], NULL), bounds) for name in counts}

pipeline = Pipeline(
    log,
    sparse={
        **{name: log[name] for name in categories},
        **{f"{name}_bin": of for name, of in bins.items()},
    },
    dense={name: ops.log1p(ops.clip(log[name], 0, None)) for name in counts},
    rank=DeepFM(dim=16, hidden=(256, 128)),
)
