"""Quality of predictions: read the log of predictions of `livectr train`; measure AUC, GAUC and log loss."""

from livectr.trainer.quality.metrics import Quality, quality
from livectr.trainer.quality.predictions import PredictionLog, read_predictions, records
from livectr.trainer.quality.seen import is_cold

__all__ = ["PredictionLog", "Quality", "is_cold", "quality", "read_predictions", "records"]
