"""Constants of the kernels that Python must know, read where they are defined."""

import re

from livectr.kernels.runtime.compiler import KERNELS


def _constant(file: str, name: str) -> int:
    found = re.search(rf"\b{name} = (\d+)", (KERNELS / file).read_text())
    assert found is not None, f"{file} defines no {name}"
    return int(found[1])


MAX_ROW_VALUES = _constant("runtime/columns.cuh", "MAX_ROW_VALUES")
"""A row for which a node gives more values cannot be extracted."""
THREADS = _constant("runtime/threadblock.cuh", "THREADS")
"""Threads, and rows, of a block on a device."""
