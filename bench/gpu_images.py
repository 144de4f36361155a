"""Encoding of pictures by VGG16 up to FC6 in bfloat16, beside the rate of a large product there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.gpu_timing import Rows, Target, once
from bench.rows import row
from livectr.models.vgg16 import CONVOLUTIONS, VGG16

BATCHES = (64, 256)
GOAL = 0.4
"""Least share of the limit by products."""


def measure(target: Target, device: str, *, small: bool) -> Rows:
    """Rows of pictures a second on PyTorch's device; `target` is the other benchmarks'."""
    side, product = (32, 256) if small else (VGG16.size, 8192)
    network = _random(device)
    rate = flops(product, device)
    limit = rate / (2 * multiplications(side))
    found: Rows = []
    for batch in (1,) if small else BATCHES:
        pictures = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8, device=device)
        kind = torch.device(device).type
        with torch.inference_mode(), torch.autocast(kind, torch.bfloat16):
            taken = least_s(lambda: network(pictures), device, 2 if small else 10)  # noqa: B023
        workload = f"VGG16 to FC6, {side}×{side} pixels, batch {batch}, bf16"
        beside = f"a product of {product}³ in bf16, {rate / 1e12:.3g} TFLOP/s"
        found.append(
            row(
                "pictures encoded",
                workload,
                "pictures/s",
                batch / taken,
                peer_name=beside,
                peer=limit,
                goal=GOAL,
            )
        )
    return found


def multiplications(side: int) -> int:
    """Multiplications of a picture of side × side pixels."""
    total, channels, pixels = 0, 3, side * side
    for out in CONVOLUTIONS:
        if out:
            total += 9 * channels * out * pixels
            channels = out
        else:
            pixels //= 4
    return total + 512 * 7 * 7 * VGG16.width


def flops(size: int, device: str) -> float:
    """FLOP/s of a product of two random size × size matrices in bfloat16."""
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    return 2 * size**3 / least_s(lambda: a @ b, device, 10)


def least_s(work: Callable[[], object], device: str, times: int) -> float:
    """Least seconds of `times` calls with their queued work, after one that does not count."""

    def call() -> None:
        work()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()

    call()
    return min(once(call) for _ in range(times))


def _random(device: str) -> Any:
    """The network with random weights that keep activations finite."""
    network = VGG16().to_empty(device=device)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.normal_(module.weight, std=(2 / module.weight[0].numel()) ** 0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    network.mean.fill_(0.45)
    network.std.fill_(0.22)
    return network.eval()
