"""The staged peer's last step: the same model, trained from features that Spark has written.

Keys lie there as int64 and list<int64>, numbers as float32; nothing is left to extract.
"""

from bench.featurebox.pipeline import display_ads
from bench.featurebox.schema import LABEL
from livectr.ingest.language import dtypes
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.pipeline import Pipeline
from livectr.models.lr import LR

plan = display_ads().plan
columns = {"request_id": "int64", LABEL: "int32"}
columns |= {
    name: "list<int64>" if dtypes.is_list(expr.dtype) else "int64" for name, expr in plan.sparse.items()
}
columns |= dict.fromkeys(plan.dense, "float32")
log = labelled(Stream("extracted", key="request_id", columns=columns), label=LABEL)
pipeline = Pipeline(
    log,
    sparse={name: log[name] for name in plan.sparse},
    dense={name: log[name] for name in plan.dense},
    rank=LR(),
)
