"""LiveCTR: learn click-through rates from a live log stream, and serve them while they are learned.

The public API. Names are imported when they are first used (PEP 562), so that `import livectr` is quick and
loads neither torch nor pyarrow.

    from livectr import Pipeline, Stream, labelled, ops
    from livectr.models import DeepFM
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from livectr import evaluation, models, ops
    from livectr.client.aio import AsyncClient, AsyncPreRankClient, AsyncRankClient, AsyncRecommendClient
    from livectr.client.channels import ClientTls
    from livectr.client.clients import Client, PreRankClient, RankClient, RecommendClient, RecommendItems
    from livectr.client.failures import CallError
    from livectr.ingest.content.store import ContentStore
    from livectr.ingest.language.calibration import Calibration
    from livectr.ingest.language.content import Content
    from livectr.ingest.language.event_times import EventTime
    from livectr.ingest.language.policies import TablePolicy
    from livectr.ingest.language.promotion import Promotion
    from livectr.ingest.language.streams import Label, Stream, label_join, labelled, recent
    from livectr.ingest.language.tables import Table
    from livectr.ingest.language.targets import Target
    from livectr.ingest.language.value import expected_value, probability
    from livectr.ingest.operators.ages import ages
    from livectr.ingest.operators.counts import counts
    from livectr.ingest.operators.user import operator
    from livectr.ingest.pipeline import Field, Pipeline, load_pipeline
    from livectr.library.embeddings import read_embeddings
    from livectr.library.features import features
    from livectr.library.scoring import score
    from livectr.library.training import Trained, train, train_options
    from livectr.system.errors import ConfigError, ConnectError, DataError, LiveCTRError, UserError

__version__ = "0.2.0"

_HOMES = {
    "AsyncClient": "livectr.client.aio",
    "AsyncPreRankClient": "livectr.client.aio",
    "AsyncRankClient": "livectr.client.aio",
    "AsyncRecommendClient": "livectr.client.aio",
    "CallError": "livectr.client.failures",
    "Calibration": "livectr.ingest.language.calibration",
    "Client": "livectr.client.clients",
    "ClientTls": "livectr.client.channels",
    "ConfigError": "livectr.system.errors",
    "ConnectError": "livectr.system.errors",
    "Content": "livectr.ingest.language.content",
    "ContentStore": "livectr.ingest.content.store",
    "DataError": "livectr.system.errors",
    "EventTime": "livectr.ingest.language.event_times",
    "Field": "livectr.ingest.pipeline",
    "Label": "livectr.ingest.language.streams",
    "LiveCTRError": "livectr.system.errors",
    "Pipeline": "livectr.ingest.pipeline",
    "PreRankClient": "livectr.client.clients",
    "Promotion": "livectr.ingest.language.promotion",
    "RankClient": "livectr.client.clients",
    "RecommendClient": "livectr.client.clients",
    "RecommendItems": "livectr.client.clients",
    "Stream": "livectr.ingest.language.streams",
    "Table": "livectr.ingest.language.tables",
    "TablePolicy": "livectr.ingest.language.policies",
    "Target": "livectr.ingest.language.targets",
    "Trained": "livectr.library.training",
    "UserError": "livectr.system.errors",
    "ages": "livectr.ingest.operators.ages",
    "counts": "livectr.ingest.operators.counts",
    "expected_value": "livectr.ingest.language.value",
    "features": "livectr.library.features",
    "label_join": "livectr.ingest.language.streams",
    "labelled": "livectr.ingest.language.streams",
    "load_pipeline": "livectr.ingest.pipeline",
    "operator": "livectr.ingest.operators.user",
    "probability": "livectr.ingest.language.value",
    "read_embeddings": "livectr.library.embeddings",
    "recent": "livectr.ingest.language.streams",
    "score": "livectr.library.scoring",
    "train": "livectr.library.training",
    "train_options": "livectr.library.training",
}
"""Public name → the module that defines it."""

_MODULES = ("evaluation", "models", "ops")
"""Public modules."""

__all__ = [
    "AsyncClient",
    "AsyncPreRankClient",
    "AsyncRankClient",
    "AsyncRecommendClient",
    "Calibration",
    "CallError",
    "Client",
    "ClientTls",
    "ConfigError",
    "ConnectError",
    "Content",
    "ContentStore",
    "DataError",
    "EventTime",
    "Field",
    "Label",
    "LiveCTRError",
    "Pipeline",
    "PreRankClient",
    "Promotion",
    "RankClient",
    "RecommendClient",
    "RecommendItems",
    "Stream",
    "Table",
    "TablePolicy",
    "Target",
    "Trained",
    "UserError",
    "__version__",
    "ages",
    "counts",
    "evaluation",
    "expected_value",
    "features",
    "label_join",
    "labelled",
    "load_pipeline",
    "models",
    "operator",
    "ops",
    "probability",
    "read_embeddings",
    "recent",
    "score",
    "train",
    "train_options",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, and keep it."""
    if name in _MODULES:
        return import_module(f"livectr.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'livectr' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """Public names, for tab completion."""
    return sorted({*globals(), *__all__})
