"""Constants of the kernels that Python needs, read from the C++ files that define them."""

import re

from livectr.kernels.runtime.compiler import KERNELS


def _constant(file: str, name: str) -> int:
    match = re.search(rf"\b{name} = (\d+)", (KERNELS / file).read_text())
    assert match is not None, f"{file} defines no {name}"
    return int(match[1])


MAX_ROW_VALUES = _constant("runtime/columns.cuh", "MAX_ROW_VALUES")
"""Maximum of values that a node may give for a row."""
THREADS = _constant("runtime/threadblock.cuh", "THREADS")
"""Threads, and rows, of a thread block on a device."""
BLOCK_ROWS = _constant("extract/rowblock.hpp", "BLOCK_ROWS")
"""Rows of a block on the host, and most items of lists that a library function gets at once."""
