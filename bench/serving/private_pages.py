"""Private pages of a process: memory that it shares with no other, from /proc/PID/smaps.

heap     malloc's main heap
arenas   malloc's heaps of threads, at multiples of 64 MiB
stacks   of threads, behind a guard page
CUDA     data of CUDA's libraries
data     data of other libraries, with what the loader relocated
other    Python's objects, large arrays
"""

from __future__ import annotations

import re
from pathlib import Path

KINDS = ("heap", "arenas", "stacks", "CUDA", "other")
MIB = 1 << 20
_ARENA_BYTES = 64 << 20
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s*(.*)")
_CUDA = re.compile(r"lib(cu|nv|nccl|torch_cuda|torch_nv|c10_cuda)|site-packages/cuda/")


def private_mib(pid: int | str = "self") -> dict[str, float]:
    """MiB of private pages by kind; their sum is the unique set size (USS)."""
    found = dict.fromkeys(KINDS, 0.0)
    kind, file, file_end, guarded = "other", "", 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if match := _MAPPING.fullmatch(line):
            start, end, rights, name = int(match[1], 16), int(match[2], 16), match[3], match[4]
            if name.startswith("/"):
                file, file_end = name, end if "w" in rights else 0
            if name == "[heap]":
                kind = "heap"
            elif name == "[stack]" or guarded:
                kind = "stacks"
            elif (name.startswith("/") or start == file_end) and _CUDA.search(file):
                kind = "CUDA"  # a library's zeros follow its writable data
            elif not name and start % _ARENA_BYTES == 0:
                kind = "arenas"
            else:
                kind = "other"
            guarded = rights.startswith("---") and end - start <= MIB and not name
        elif line.startswith(("Private_Clean:", "Private_Dirty:")):
            found[kind] += int(line.split()[1]) / 1024
    return found
