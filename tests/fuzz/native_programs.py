"""Harnesses in C++: with libFuzzer one program each, for replays one program of all."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from livectr.kernels.runtime.compiler import (
    KERNELS,
    cache_folder,
    compiler_identity,
    compiler_words,
    included,
    make_folder,
    run_compiler,
    text_key,
)
from livectr.serving.native import build as front
from livectr.system.errors import ConfigError
from tests.fuzz.targets import NATIVE

_SANITIZERS = "address,undefined"
_FLAGS = (
    *("-std=c++17", "-O1", "-g", "-march=native", "-pthread", "-ffp-contract=off", "-Wno-psabi"),
    *("-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
)
_CONNECTION = "connection"
"""Harness of the native front, whose turns it takes from outside."""
_OF_FRONT = (f"-I{front.SOURCES[0].parent}", "-fno-access-control")
_NO_CLANG = (
    "the targets in C++ need clang++ with libFuzzer: install Debian's packages clang and libclang-rt-14-dev "
    "(the number is clang's), or run `make fuzz` as root, which does"
)
ENVIRONMENT = {
    # Leaks are no concern of a reader; memory that a length from outside asks for must be checked before.
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "LIVECTR_THREADS": "1",
}


def fuzzer(name: str) -> Path:
    """Program of a target with libFuzzer, compiled unless the cache has it.

    Raises:
        ConfigError: clang++ or its libFuzzer is missing.
        KernelError: the harness does not compile.
    """
    found = shutil.which("clang++")
    if found is None:
        raise ConfigError(_NO_CLANG)
    command = [found, *_FLAGS, f"-fsanitize=fuzzer,{_SANITIZERS}"]
    runtime = subprocess.run([found, "-print-runtime-dir"], capture_output=True, text=True, check=True).stdout
    if not any(Path(runtime.strip()).glob("libclang_rt.fuzzer*")):
        raise ConfigError(_NO_CLANG)
    return _built(command, NATIVE / f"{name}.cpp", name, ())


def replayer(names: Sequence[str]) -> Path:
    """Program that runs harnesses over files, with the sanitizers of the C++ compiler of kernels."""
    compiler = compiler_words()
    command = [*compiler, *_FLAGS, f"-fsanitize={_SANITIZERS}", "-DLIVECTR_REPLAY", "-O0"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(
            pool.map(
                lambda name: _built([*command, "-c"], NATIVE / f"{name}.cpp", name, ()), ("replay", *names)
            )
        )
    return _built(command, None, "replay", objects)


def replay(program: Path, inputs: Sequence[tuple[str, Path]]) -> str:
    """Run inputs, each of a target, in one process; "" if none fails, else the report."""
    words = [f"{name}={path}" for name, path in inputs]
    done = subprocess.run(
        [program, *words], env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True
    )
    return "" if done.returncode == 0 else done.stderr


def _built(command: list[str], source: Path | None, name: str, objects: Sequence[Path]) -> Path:
    """File that a command makes of a source or of objects, named by all that decides its content."""
    texts = [] if source is None else _texts(source)
    key = text_key(compiler_identity((command[0],)), *command, *texts, *(path.name for path in objects))
    path = cache_folder() / "fuzz" / f"{name}-{key}"
    if not path.exists():
        make_folder(path.parent)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder, "made")
            given = [f"-I{KERNELS}", str(source)] if source is not None else [str(one) for one in objects]
            suffix = ["-x", "c++"] if source is not None else ["-x", "none"]
            of_front = ["-x", "none", *_OF_FRONT, *front.words()] if name in (_CONNECTION, "replay") else []
            run_compiler([*command, *suffix, *given, *of_front], made, name)
            made.replace(path)
    return path


def _texts(source: Path) -> list[str]:
    """Text of a harness, of its neighbours, and of the kernels that it includes."""
    own = front.SOURCES if source.stem == _CONNECTION else []
    texts = [
        *(path.read_text() for path in (source, *own)),
        *(path.read_text() for path in sorted(NATIVE.glob("*.hpp"))),
    ]
    return [*texts, *(text for one in texts for text in included(one))]
