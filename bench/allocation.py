"""Memory of results on the host: the pool of the extractor against a malloc per result."""

from __future__ import annotations

import ctypes
import time

import numpy as np

from bench.gpu import STRING, strings
from bench.rows import row
from livectr.ingest.extract.extractor import Extractor
from livectr.kernels.runtime.compiler import compile_host

_SOURCE = """
#include "extract/rowblock.hpp"
#include <cstdlib>
using namespace livectr;
constexpr int64_t block = 512;  // alive at a time

static int64_t size_of(int64_t i) { return 8 + (i & 31); }

// Nanoseconds are the caller's business; the sum keeps the work from being left out.
extern "C" int64_t with_pool(int64_t count) {
    static HostPool pool;
    int64_t sum = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (i % block == 0) pool.reset();
        const int64_t size = size_of(i);
        if (pool.end - pool.at < size) pool.grow(size);
        pool.at[0] = uint8_t(i);
        sum += reinterpret_cast<uintptr_t>(pool.at) & 1;
        pool.at += size;
    }
    return sum;
}

extern "C" int64_t with_malloc(int64_t count) {
    std::vector<void*> held(static_cast<size_t>(block), nullptr);
    int64_t sum = 0;
    for (int64_t i = 0; i < count; ++i) {
        void*& slot = held[size_t(i % block)];
        std::free(slot);
        slot = std::malloc(size_t(size_of(i)));
        static_cast<uint8_t*>(slot)[0] = uint8_t(i);
        sum += reinterpret_cast<uintptr_t>(slot) & 1;
    }
    for (void* memory : held) std::free(memory);
    return sum;
}
"""
ALIVE = 512


def run(quick: bool = False) -> list[dict[str, object]]:
    """Nanoseconds per allocation, in turn with the peer, and the pool's share of a string layer."""
    count, repeats = 1_000_000 if quick else 20_000_000, 3 if quick else 9
    library = compile_host(_SOURCE, name="allocation")
    calls = (library.with_pool, library.with_malloc)
    for call in calls:
        call.argtypes, call.restype = [ctypes.c_int64], ctypes.c_int64
        call(count // 10)
    seconds: list[list[float]] = [[], []]
    for _ in range(repeats):
        for times, call in zip(seconds, calls, strict=True):
            start = time.perf_counter()
            call(count)
            times.append(time.perf_counter() - start)
    pool, malloc = (float(np.median(times)) / count * 1e9 for times in seconds)
    return [
        row(
            "allocation on the host",
            f"{count:,} results of 8 to 39 bytes, {ALIVE} alive",
            "ns",
            pool,
            peer_name="one malloc and free each",
            peer=malloc,
            better="less",
            goal=1,
        ),
        row(
            "allocation, share of a layer's time",
            f"a string layer, {STRING} bytes a row",
            "%",
            100 * pool / _layer_ns(),
        ),
    ]


def _layer_ns() -> float:
    """Nanoseconds per row of a layer, the mean of lower(), split() and key(), on one core."""
    rows = 65_536
    plan, batch, _ = strings(rows, 1)
    extract = Extractor(plan, engine="fused")
    extract(batch)
    seconds = []
    for _ in range(9):
        start = time.process_time()
        extract(batch)
        seconds.append(time.process_time() - start)
    return float(np.median(seconds)) / rows / 3 * 1e9
