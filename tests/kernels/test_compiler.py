"""The run-time compiler: cache, errors, both targets."""

import ctypes
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from livectr.kernels.runtime import compiler
from livectr.kernels.runtime.compiler import (
    KERNELS,
    cached_cubin,
    compile_cubin,
    compile_host,
    prebuild_cubin,
)
from livectr.system.errors import ConfigError, KernelError

HASHES = """
#include "runtime/hash.cuh"
extern "C" uint64_t bytes_hash(const uint8_t* p, int64_t n, uint64_t seed) { return hash_bytes(p, n, seed); }
extern "C" uint64_t integer_hash(uint64_t x) { return mix64(x); }
extern "C" float uniform(uint64_t base, uint32_t i) { return uniform_at(base, i); }
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIVECTR_CACHE_DIR", str(tmp_path))
    return tmp_path / "kernels"


def test_compiles_once_and_follows_includes(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outer.cuh").write_text('#include "inner.cuh"\n')
    (tmp_path / "inner.cuh").write_text("#define ANSWER 41\n")
    monkeypatch.setattr(compiler, "KERNELS", tmp_path)
    source = '#include "outer.cuh"\nextern "C" int answer() { return ANSWER; }'
    assert compile_host(source, name="answer").answer() == 41
    assert compile_host(source, name="answer").answer() == 41
    assert len(list(cache.iterdir())) == 1
    (tmp_path / "inner.cuh").write_text("#define ANSWER 42\n")
    assert compile_host(source, name="answer").answer() == 42
    assert len(list(cache.iterdir())) == 2


def test_a_compiler_that_does_otherwise_compiles_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapper tells its compiler's version, and may add flags, as another CPU does by -march=native."""
    source = """extern "C" int wide() {
#ifdef __AVX__
        return 1;
#else
        return 0;
#endif
    }"""
    wrapper = tmp_path / "wrapper"
    for flag, wide in (("-mavx", 1), ("-mno-avx", 0)):
        wrapper.write_text(f'#!/bin/sh\nexec c++ "$@" {flag}\n')
        wrapper.chmod(0o755)
        monkeypatch.setenv("CXX", str(wrapper))
        compiler.compiler_identity.cache_clear()  # as in another process
        assert compile_host(source, name="wide").wide() == wide
    compiler.compiler_identity.cache_clear()
    assert len(list(cache.iterdir())) == 2


def test_cubins_are_kept_by_all_that_decides_them(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = 'extern "C" __global__ void f(float* x) { *x = *x * 2.0f + 1.0f; }'
    first = cached_cubin(source, arch="sm_90")
    assert cached_cubin(source, arch="sm_90") == first and first.read_bytes()[:4] == b"\x7fELF"
    others = [cached_cubin(source, arch="sm_100"), cached_cubin(source + " ", arch="sm_90")]
    with monkeypatch.context() as context:
        context.setattr(compiler, "DEVICE_FLAGS", (*compiler.DEVICE_FLAGS, "-fmad=true"))
        others.append(cached_cubin(source, arch="sm_90"))
    assert others[-1].read_bytes() != first.read_bytes()
    with monkeypatch.context() as context:
        build = re.sub(r"V\d+\.\d+\.\d+", "V99.0.1", compiler._nvrtc_identity())
        assert build != compiler._nvrtc_identity()
        context.setattr(compiler, "_nvrtc_identity", lambda: build)
        others.append(cached_cubin(source, arch="sm_90"))
    assert len({first, *others}) == 5 == len(list(cache.iterdir()))


def test_cubins_are_whole_files() -> None:
    """ELF's tables lie inside of the file; its header says where, and the size of their entries."""
    cubin = compile_cubin('extern "C" __global__ void f(int* x) { *x = 1; }')
    begin_programs, begin_sections = struct.unpack_from("<QQ", cubin, 32)
    of_program, programs, of_section, sections = struct.unpack_from("<4H", cubin, 54)
    ends = (begin_programs + of_program * programs, begin_sections + of_section * sections)
    assert len(cubin) == max(ends)


def test_prebuilt_cubins_need_no_nvrtc(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever build of NVRTC made them: the machine that runs them may have another, or none."""
    source = 'extern "C" __global__ void f(int* x) { *x += 1; }'
    built = prebuild_cubin(source, arch="sm_90", folder=tmp_path)
    assert built.parent == tmp_path / "sm_90" and built.read_bytes()[:4] == b"\x7fELF"
    monkeypatch.setenv("LIVECTR_KERNELS", f"/nowhere{os.pathsep}{tmp_path}")
    with monkeypatch.context() as context:
        context.setattr(compiler, "_nvrtc_identity", lambda: pytest.fail("NVRTC is not asked"))
        context.setattr(compiler, "compile_cubin", lambda source, arch: pytest.fail("compiled again"))
        assert cached_cubin(source, arch="sm_90") == built
        assert prebuild_cubin(source, arch="sm_90", folder=tmp_path) == built
    assert cached_cubin(source, arch="sm_100").parent != built.parent  # not among them
    assert cached_cubin(source + " ", arch="sm_90").parent != built.parent


def test_threads_compile_cubins_side_by_side(cache: Path) -> None:
    """In a process of its own: NVRTC's first use fails where two threads share it."""
    program = (
        "from livectr.kernels.runtime.compiler import cached_cubins;"
        "kernel = 'extern \"C\" __global__ void f%d(float* x) { x[threadIdx.x] += %d; }';"
        "print(len(set(cached_cubins([kernel % (i, i) for i in range(8)], arch='sm_90'))))"
    )
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "LIVECTR_THREADS": "8"}
    done = subprocess.run(command, cwd=KERNELS.parent, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "8", done.stderr
    assert len(list(cache.iterdir())) == 8


def test_threads_prebuild_cubins_side_by_side(tmp_path: Path) -> None:
    """The kit builds the units of a plan so: none of them asks for NVRTC's build first."""
    program = (
        "import functools, pathlib, sys; from concurrent.futures import ThreadPoolExecutor;"
        "from livectr.kernels.runtime.compiler import prebuild_cubin;"
        "kernel = 'extern \"C\" __global__ void f%d(float* x) { x[threadIdx.x] += %d; }';"
        "build = functools.partial(prebuild_cubin, arch='sm_90', folder=pathlib.Path(sys.argv[1]));"
        "list(ThreadPoolExecutor(8).map(build, [kernel % (i, i) for i in range(8)]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, cwd=KERNELS.parent, capture_output=True, text=True)
    assert len(list(tmp_path.rglob("*.cubin"))) == 8, done.stderr


def test_processes_that_want_the_same_library_compile_it_once(cache: Path, tmp_path: Path) -> None:
    wrapper, log = tmp_path / "wrapper", tmp_path / "log"
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in *-dM*|*--version*) ;; *) echo x >> {log}; sleep 1;; esac\nexec c++ "$@"\n'
    )
    wrapper.chmod(0o755)
    program = (
        "from livectr.kernels.runtime.compiler import compile_host;"
        "print(compile_host('extern \"C\" int f() { return 7; }', name='f').f())"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=KERNELS.parent,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CXX": str(wrapper)},
        )
        for _ in range(3)
    ]
    assert [process.communicate()[0].strip() for process in running] == ["7"] * 3
    assert log.read_text() == "x\n"
    assert [path.suffix for path in cache.iterdir()] == [".so"]


def test_errors_say_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError, match=r"kernel 'broken' does not compile:[\s\S]*expected"):
        compile_host("int f( {", name="broken")
    assert not list(cache.iterdir())
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"no-such-compiler.*install the package g\+\+ .*or set CXX"):
        compile_host("", name="empty")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("LIVECTR_CACHE_DIR", __file__)
    with pytest.raises(ConfigError, match=r"cannot be made.*set LIVECTR_CACHE_DIR"):
        compile_host("", name="empty")
    monkeypatch.setenv("LIVECTR_THREADS", "many")
    with pytest.raises(ConfigError, match="LIVECTR_THREADS='many'"):
        compile_host("", name="empty")


def test_a_compiler_that_was_ended_is_not_the_source_s_fault(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is asked to end while it compiles."""
    wrapper = tmp_path / "wrapper"
    wrapper.write_text('#!/bin/sh\ncase "$*" in *kernel.so*) kill -TERM $$;; esac\nexec c++ "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    with pytest.raises(KernelError, match=r"^the compiler of kernel 'ended' was ended by SIGTERM; start"):
        compile_host('extern "C" int ended() { return 1; }', name="ended")
    assert not list(cache.iterdir())


@pytest.mark.parametrize("command", ["/nowhere/g++", " ", "'", "/bin/true", "/bin/false", __file__])
def test_what_is_no_compiler_says_which_package_to_install(
    cache: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("CXX", command)
    with pytest.raises(ConfigError, match=r"^[^\n]*no C\+\+ compiler[^\n]*install the package g\+\+[^\n]*$"):
        compile_host("", name="empty")


def test_without_any_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"c\+\+ or g\+\+ or clang\+\+\): install the package g\+\+"):
        compile_host("", name="empty")


def test_hashes_are_the_published_ones() -> None:
    library = compile_host(HASHES, name="hashes")
    library.bytes_hash.restype = library.integer_hash.restype = ctypes.c_uint64
    library.bytes_hash.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_uint64]
    library.integer_hash.argtypes = [ctypes.c_uint64]
    known = {
        b"": 0xEF46DB3751D8E999,
        b"abc": 0x44BC2CF5AD770999,
        b"Nobody inspects the spammish repetition": 0xFBCEA83C8A378BF1,
    }
    assert {text: library.bytes_hash(text, len(text), 0) for text in known} == known
    # SplitMix64's second and third outputs from state 0
    golden = 0x9E3779B97F4A7C15
    assert library.integer_hash(golden) == 0xE220A8397B1DCDAF
    assert library.integer_hash(2 * golden % 2**64) == 0x6E789E6AA1B965F4


READS = """
#include "runtime/shim.cuh"
extern "C" uint64_t eight(const uint8_t* p) { return read_aligned<uint64_t>(p); }
extern "C" uint32_t four(const uint8_t* p) { return read_aligned<uint32_t>(p); }
"""


@pytest.mark.unsanitized  # it reads around the bytes on purpose
def test_a_gpu_reads_numbers_at_any_address_by_aligned_words() -> None:
    """A GPU's way to read, on the host: what stands around the number counts for nothing."""
    library = compile_host(READS, name="reads")
    library.eight.restype, library.four.restype = ctypes.c_uint64, ctypes.c_uint32
    data = np.random.default_rng(1).integers(0, 256, 64, np.uint8)
    for at in range(40):
        place = ctypes.c_void_p(data.ctypes.data + at)
        assert library.eight(place) == int.from_bytes(data[at : at + 8].tobytes(), "little")
        assert library.four(place) == int.from_bytes(data[at : at + 4].tobytes(), "little")


def test_device_functions_compile_for_a_gpu() -> None:
    kernel = """
    #include "runtime/hash.cuh"
    extern "C" __global__ void hashes(const uint8_t* p, const int64_t* offsets, uint64_t* out) {
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        out[i] = hash_combine(hash_bytes(p + offsets[i], offsets[i + 1] - offsets[i]), i);
    }"""
    assert compile_cubin(kernel)[:4] == b"\x7fELF"
    with pytest.raises(KernelError, match="nonsense"):
        compile_cubin("nonsense")


def test_vectors_are_as_wide_as_the_registers() -> None:
    """A compiler takes wider ones apart in memory: without AVX-512, attention took fifty times as long."""
    texts = {file.name: file.read_text() for file in KERNELS.rglob("*.?pp")}
    narrow = {"width.hpp"}  # at most 32 bytes, a register of AVX
    wide = {name for name, text in texts.items() if "vector_size" in text} - narrow
    assert len(wide) > 3 and {name for name in wide if "#ifdef __AVX512F__" not in texts[name]} == set()
