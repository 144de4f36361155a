"""Operators of the kernel library, and the driver of plans of calls (kernels/extract/program.cpp)."""

from __future__ import annotations

import ctypes
import functools

from livectr.kernels.runtime.library import kernel_library


def library() -> ctypes.CDLL:
    """Library with the functions `program_*`."""
    return _library()


def find_function(name: str) -> int:
    """Address of an operator's function; 0 if the library has none of that name."""
    return int(_library().calls_find(name.encode()) or 0)


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    library.calls_find.argtypes, library.calls_find.restype = [ctypes.c_char_p], ctypes.c_void_p
    return library
