"""CTR networks as DES sub-operators; the trainer and the servers run the same ones.  Imports torch only."""

from models.autoint import AutoInt
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
from models.dicm import DICM
from models.dien import DIEN
from models.din import DIN
from models.dnn import DNN
from models.embedding import EmbeddingModel, SubModel, TextProjection
from models.flen import FLEN
from models.fm import FM
from models.lr import LR
from models.pnn import PNN
from models.two_tower import TwoTower
from models.wide_deep import WideDeep
from models.xdeepfm import XDeepFM

__all__ = [
    "DCN",
    "DICM",
    "DIEN",
    "DIN",
    "DNN",
    "FLEN",
    "FM",
    "LR",
    "PNN",
    "AutoInt",
    "CTRModel",
    "DeepFM",
    "EmbeddingModel",
    "Gathered",
    "Gathers",
    "ModelConfig",
    "OptimiserSpec",
    "Ragged",
    "Schedule",
    "SegmentSpec",
    "SubModel",
    "TextProjection",
    "TwoTower",
    "WideDeep",
    "XDeepFM",
    "adagrad",
    "adam",
    "decay",
    "ftrl",
    "rowwise_adagrad",
    "sgd",
]
