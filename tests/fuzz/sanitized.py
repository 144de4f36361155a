"""Fuzzers in Python over kernels that have AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from livectr.kernels.runtime.compiler import compiler_words
from tests.sanitizers import KINDS, compile_library, environment

COVERAGE = """
#include <dlfcn.h>
#include <cstdint>

namespace {
// A function of atheris's library, once it is loaded.
template <typename... Words>
struct Function {
    const char* name;
    void (*found)(Words...) = nullptr;
    void operator()(Words... words) {
        void* const library = found ? nullptr : dlopen("CORE", RTLD_NOW | RTLD_NOLOAD);
        if (library) found = reinterpret_cast<void (*)(Words...)>(dlsym(library, name));
        if (found) found(words...);
    }
};
Function<uint8_t*, uint8_t*> counters{"__sanitizer_cov_8bit_counters_init"};
Function<const uintptr_t*, const uintptr_t*> places{"__sanitizer_cov_pcs_init"};
Function<uint64_t, uint64_t> compare{"__sanitizer_cov_trace_cmp8"};
Function<uint64_t, uint64_t> compare_constant{"__sanitizer_cov_trace_const_cmp8"};
}

extern "C" {
void __sanitizer_cov_8bit_counters_init(uint8_t* from, uint8_t* to) { counters(from, to); }
void __sanitizer_cov_pcs_init(const uintptr_t* from, const uintptr_t* to) { places(from, to); }
void __sanitizer_cov_trace_cmp8(uint64_t a, uint64_t b) { compare(a, b); }
void __sanitizer_cov_trace_const_cmp8(uint64_t a, uint64_t b) { compare_constant(a, b); }
}
"""
"""Library that gives the branches that atheris counts to its libFuzzer: AddressSanitizer's library has empty
functions of these names, and would get them."""


@contextmanager
def variables(python: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """Variables of a fuzzer's process, and the folder that gets its reports.

    Args:
        python: interpreter with atheris.
    """
    kind = KINDS["address"]
    compile_library(kind)
    (core,) = python.parents[1].glob("lib/python*/site-packages/atheris/core_with_libfuzzer*.so")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = environment(kind, folder)
        library = folder / "coverage.so"
        source = COVERAGE.replace("CORE", str(core))
        command = [*compiler_words(), "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
        subprocess.run(command, input=source, text=True, check=True)
        found["LD_PRELOAD"] = f"{library} {found['LD_PRELOAD']}"
        # Coverage comes first; libFuzzer keeps the input of a process that aborts.
        found["ASAN_OPTIONS"] += ":verify_asan_link_order=0:abort_on_error=1"
        found["UBSAN_OPTIONS"] += ":abort_on_error=1"
        yield found, folder
