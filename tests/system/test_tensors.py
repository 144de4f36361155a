"""Arrays as safetensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from livectr.system.tensors import packed


def test_arrays_of_any_layout_come_back() -> None:
    whole = np.arange(20.0).reshape(5, 4)
    arrays: dict[str, npt.NDArray[Any]] = {
        "column": whole[:, -1],
        "transposed": whole.T,
        "picked": whole[:, [2, 0]],
        "backwards": np.arange(4)[::-1],
        "number": np.array(3, np.float32),
        "none": np.empty((0, 3), np.int64),
    }
    found = safetensors.numpy.load(packed(arrays))
    for name, array in arrays.items():
        assert found[name].shape == array.shape and found[name].dtype == array.dtype
        assert (found[name] == array).all(), name
