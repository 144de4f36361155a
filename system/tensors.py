"""Arrays as bytes in safetensors format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy


def packed(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Bytes of arrays of any layout in memory.

    `safetensors` writes the memory from an array's first element on: of a strided view, other numbers.
    """
    found: bytes = safetensors.numpy.save(
        {name: np.asarray(array, order="C") for name, array in arrays.items()}
    )
    return found
