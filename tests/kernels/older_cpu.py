"""Units of the kernel library as the compiler makes them for an older CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from livectr.kernels.runtime.compiler import KERNELS, compiler_words, host_flags, run_compiler
from livectr.system.cpu import own_levels

FEWER = ("-mno-avx512f", "-mno-avx512f -mno-fma -mno-f16c")
"""Flags of the compiler that take vectors away from this CPU."""


def built_for_older(units: Sequence[str], folder: Path, fewer: str) -> Path:
    """Compile units alone, such as "network/packed.cpp", into one library; returns its file."""
    source = "\n".join((KERNELS / unit).read_text() for unit in units)
    library = folder / "units.so"
    run_compiler(
        [*compiler_words(), *host_flags(own_levels()[0]), *fewer.split()], library, "older CPU", source=source
    )
    return library


def using(library: Path | None) -> str:
    """Statements that make a program take its kernels from a library that was built so."""
    if library is None:
        return ""
    return (
        "import ctypes; from livectr.kernels.runtime import library;"
        f"library.kernel_library = lambda: ctypes.CDLL({str(library)!r});"
    )
