"""Arrow's C data interface: record batches as arguments of compiled functions."""

from __future__ import annotations

import ctypes
from typing import Any

import pyarrow as pa

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def exported(columns: pa.RecordBatch | pa.Array) -> tuple[Any, int]:
    """Owner and address of a batch, or of an array, as `ArrowArray` of Arrow's C data interface."""
    capsule = columns.__arrow_c_array__()[1]
    return capsule, _capsule_pointer(capsule, b"arrow_array")
