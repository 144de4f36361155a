"""CTR networks as DES sub-operators; the trainer and the servers run the same code. Imports torch only."""

from livectr.models.autoint import AutoInt
from livectr.models.base import CTRModel, ModelConfig
from livectr.models.dcn import DCN
from livectr.models.deepfm import DeepFM
from livectr.models.dicm import DICM
from livectr.models.dien import DIEN
from livectr.models.din import DIN
from livectr.models.dnn import DNN
from livectr.models.embedding import EmbeddingModel, SubModel, TextProjection
from livectr.models.flen import FLEN
from livectr.models.fm import FM
from livectr.models.hedge import Hedge
from livectr.models.inputs import Gathered, Gathers, Ragged
from livectr.models.learning import OptimiserSpec, Schedule, adagrad, adam, decay, ftrl, rowwise_adagrad, sgd
from livectr.models.lr import LR
from livectr.models.mmoe import MMoE
from livectr.models.ple import PLE
from livectr.models.pnn import PNN
from livectr.models.segments import SegmentSpec
from livectr.models.shared_bottom import SharedBottom
from livectr.models.two_tower import TwoTower
from livectr.models.wide_deep import WideDeep
from livectr.models.xdeepfm import XDeepFM

__all__ = [
    "DCN",
    "DICM",
    "DIEN",
    "DIN",
    "DNN",
    "FLEN",
    "FM",
    "LR",
    "PLE",
    "PNN",
    "AutoInt",
    "CTRModel",
    "DeepFM",
    "EmbeddingModel",
    "Gathered",
    "Gathers",
    "Hedge",
    "MMoE",
    "ModelConfig",
    "OptimiserSpec",
    "Ragged",
    "Schedule",
    "SegmentSpec",
    "SharedBottom",
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
