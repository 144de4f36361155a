"""CTR networks as DES sub-operators; the trainer and the servers run the same ones.  Imports torch only."""

from models.base import (
    CTRModel,
    Gathered,
    Gathers,
    ModelConfig,
    OptimiserSpec,
    Ragged,
    Schedule,
    SegmentSpec,
    adagrad,
    adam,
    decay,
    ftrl,
    rowwise_adagrad,
    sgd,
)
from models.dcn import DCN
from models.deepfm import DeepFM
from models.dnn import DNN
from models.flen import FLEN
from models.fm import FM
from models.lr import LR
from models.pnn import PNN
from models.two_tower import TwoTower
from models.wide_deep import WideDeep

__all__ = [
    "DCN",
    "DNN",
    "FLEN",
    "FM",
    "LR",
    "PNN",
    "CTRModel",
    "DeepFM",
    "Gathered",
    "Gathers",
    "ModelConfig",
    "OptimiserSpec",
    "Ragged",
    "Schedule",
    "SegmentSpec",
    "TwoTower",
    "WideDeep",
    "adagrad",
    "adam",
    "decay",
    "ftrl",
    "rowwise_adagrad",
    "sgd",
]
