"""Fixed random encoder of pictures for demos and tests: two random convolutions, nothing to download.

Random filters with pooling keep much of a picture's content (Jarrett et al., "What is the best multi-stage
architecture for object recognition?", ICCV 2009; Saxe et al., ICML 2011); a trainable network behind them
learns what matters. Every sum is of integers below 2²⁴ and so exact in float32: the same picture has the
same bits in any batch, with any number of threads, on any machine.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SEED = 20_180_214
FIRST, SECOND = 32, 84  # channels
CELL = 16  # side in pixels of a cell, whose mean colour is a feature


class RandomConv(nn.Module):
    """Random convolutions uint8[B, 3, 32, 32] → f32[B, 128], most values in -4 … 8.

    Of 128 numbers 12 are the mean red, green and blue of four quarters, 32 the mean responses of the first
    layer's filters (7×7) and 84 the mean responses of the second layer's filters. They are square roots of
    means, which follow the drawing more closely than means. A filter has as many +1 as -1: a plain area gives
    no response.
    """

    width = 128
    size = 32
    short_side = 32
    first: Tensor
    second: Tensor

    def __init__(self) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(SEED)
        self.register_buffer("first", _filters(FIRST, 3, 7, source), persistent=False)
        self.register_buffer("second", _filters(SECOND, FIRST, 3, source), persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Computes the features; raises ValueError for pictures of another size."""
        if pictures.shape[1:] != (3, self.size, self.size):
            raise ValueError(f"pictures are {list(pictures.shape[1:])}, not [3, {self.size}, {self.size}]")
        x = pictures.float().contiguous()
        one = (nn.functional.conv2d(x, self.first, stride=2).relu() / 16).floor()  # [B, 32, 13, 13] ≤ 780
        two = nn.functional.conv2d(one, self.second, stride=2).relu()  # [B, 84, 6, 6] ≤ 74,880
        cells = x.view(-1, 3, self.size // CELL, CELL, self.size // CELL, CELL).sum((3, 5)).flatten(1)
        parts = (
            cells / (CELL * CELL * 32) - 4,
            (one.sum((2, 3)) / (13 * 13)).sqrt(),
            (two.sum((2, 3)) / (6 * 6)).sqrt() / 4,
        )
        return torch.cat(parts, 1)


def _filters(out: int, channels: int, side: int, source: torch.Generator) -> Tensor:
    """Random filters f32[out, channels, side, side]: a third each of -1, 0 and 1."""
    taps = channels * side * side
    values = torch.zeros(taps)
    values[: taps // 3], values[taps // 3 : 2 * (taps // 3)] = 1, -1
    rows = [values[torch.randperm(taps, generator=source)] for _ in range(out)]
    return torch.stack(rows).view(out, channels, side, side)
