"""CTR networks as DES sub-operators; the trainer and the servers run the same ones.  Imports torch only."""

from models.base import (
    CTRModel,
    Gathered,
    Gathers,
    ModelConfig,
    OptimiserSpec,
    Ragged,
    SegmentSpec,
    adagrad,
    adam,
    ftrl,
    sgd,
)
from models.deepfm import DeepFM
from models.fm import FM
from models.lr import LR
from models.two_tower import TwoTower

__all__ = [
    "FM",
    "LR",
    "CTRModel",
    "DeepFM",
    "Gathered",
    "Gathers",
    "ModelConfig",
    "OptimiserSpec",
    "Ragged",
    "SegmentSpec",
    "TwoTower",
    "adagrad",
    "adam",
    "ftrl",
    "sgd",
]
