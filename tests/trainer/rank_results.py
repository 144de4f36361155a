"""Results of the ranks of `des_worker`, and the tolerances of their comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

# Ranks add their partial results in another order than one rank does, so that logits differ in the last bits.
# Adam divides a gradient by its own size, which can turn a last-bit difference of a gradient near zero into a
# share of one learning rate (2e-3); weights are allowed a twentieth of it.
LOGITS = dict(rtol=1e-4, atol=1e-5)
WEIGHTS = dict(rtol=1e-3, atol=1e-4)


def merged(folder: Path, name: str) -> dict[str, Tensor]:
    """Results of all ranks, merged; a tensor of several ranks must have the same bits."""
    whole: dict[str, Tensor] = {}
    for file in sorted(folder.glob(f"{name}.rank*.safetensors")):
        for key, tensor in load_file(file).items():
            assert key not in whole or torch.equal(whole[key], tensor), f"{key} differs between ranks"
            whole[key] = tensor
    return whole


def facts(folder: Path, name: str) -> list[dict[str, Any]]:
    """Each rank's facts, in the order of the ranks."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob(f"{name}.rank*.json"))]
