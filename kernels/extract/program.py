"""Library of operators: functions that plans of calls are made of, and the driver that runs these plans."""

from __future__ import annotations

import ctypes
import functools

from livectr.kernels.runtime.compiler import KERNELS, compile_host


def _source() -> str:
    """Translation unit of the driver and all operators."""
    files = ["extract/program.cpp", "operators/calls.cpp"]
    files += [f"operators/{path.name}" for path in sorted((KERNELS / "operators").glob("calls_*.cpp"))]
    return "\n".join(f'#include "{file}"' for file in files)


@functools.cache
def _library() -> ctypes.CDLL:
    library = compile_host(_source(), name="operators")
    library.calls_find.argtypes, library.calls_find.restype = [ctypes.c_char_p], ctypes.c_void_p
    return library


def library() -> ctypes.CDLL:
    """Library with the functions `program_*` (kernels/extract/program.cpp)."""
    return _library()


def find_function(name: str) -> int:
    """Address of an operator's function; 0 if the library has none of that name."""
    return int(_library().calls_find(name.encode()) or 0)
