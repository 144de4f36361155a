"""Kernel library: all kernels that depend on no pipeline, in one shared library for each level of CPUs.

Its units are the files `*.cpp` of `kernels/`. A unit whose first line is `// flags: …` is compiled with these
flags, too. `make setup` and the build of a wheel put libraries into `kernels/built`; where no library of this
CPU and these sources is there, the first process compiles it into the cache.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from livectr.kernels.runtime.compiler import (
    KERNELS,
    cache_folder,
    compiler_identity,
    compiler_words,
    host_flags,
    included,
    make_folder,
    prebuilt_folders,
    run_compiler,
    text_key,
    thread_count,
)
from livectr.system.cpu import Level, own_levels

BUILT = KERNELS / "built"
"""Folder of the libraries that come with the package: BUILT/LEVEL/KEY.so."""
_FLAGS = "// flags:"


@dataclass(frozen=True)
class Unit:
    """Unit of the library: a C++ file with C functions.

    Args:
        name: its path below `kernels/`.
        source: its text.
        texts: texts of the files that it includes, directly or not.
    """

    name: str
    source: str
    texts: tuple[str, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of the compiler besides those of every unit."""
        first = self.source.partition("\n")[0]
        return tuple(first.removeprefix(_FLAGS).split()) if first.startswith(_FLAGS) else ()


@functools.cache
def kernel_library() -> ctypes.CDLL:
    """Load the library of this CPU; compile it first where neither package nor cache has it.

    Raises:
        ConfigError: a bad LIVECTR_THREADS; or there is no library and no compiler.
        KernelError: a unit does not compile.
    """
    thread_count()  # the library reads the same variable and cannot complain about it
    return ctypes.CDLL(str(_found() or build(own_levels()[0], _compiled_folder(), progress=True)))


@functools.cache
def quick_library() -> ctypes.PyDLL:
    """`kernel_library` for calls of less than a microsecond: they keep the interpreter's lock.

    Another thread would take it from a request, which then waits to get it again.
    """
    return ctypes.PyDLL(kernel_library()._name)


def build(level: Level, folder: Path, *, progress: bool = False) -> Path:
    """Compile the library for a level of CPUs into FOLDER/LEVEL, unless it is there.

    Objects are kept in the cache, so that a changed unit is compiled alone. Processes take turns.

    Args:
        level: it need not be one of this CPU.
        folder: folder of libraries.
        progress: say on stderr that it is compiled, and which part.

    Returns:
        The library's file.

    Raises:
        KernelError: a unit does not compile.
        ConfigError: no compiler, or a folder that cannot be written.
    """
    path = _path(folder, level)
    if path.exists():
        return path
    compiler = compiler_words()
    make_folder(path.parent)
    objects = cache_folder() / "objects"
    make_folder(objects)
    with (objects / f"{level.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path
        units = sorted(_units(), key=lambda unit: -len(unit.source))  # the longest first: cores end together
        done = 0
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            made = [pool.submit(_object, unit, level, objects, compiler) for unit in units]
            for future in made:
                future.result()
                done += 1
                if progress:
                    _say(
                        f"compiling the kernels once for this machine: {done} of {len(units)}",
                        done == len(units),
                    )
        with tempfile.TemporaryDirectory(dir=path.parent) as folder_of_result:
            result = Path(folder_of_result, "kernels.so")
            run_compiler(
                [*compiler, "-shared", "-pthread", *(str(o.result()) for o in made)], result, "library"
            )
            result.replace(path)
    return path


def has_library(level: Level) -> bool:
    """Return true if the package or a folder of $LIVECTR_KERNELS has the library of a level."""
    return any(_path(folder, level).exists() for folder in (BUILT, *prebuilt_folders()))


def _found() -> Path | None:
    """Library of the highest level that this CPU has, in the first folder that has any."""
    for folder in (BUILT, *prebuilt_folders(), _compiled_folder()):
        for level in own_levels():
            if (path := _path(folder, level)).exists():
                return path
    return None


def _compiled_folder() -> Path:
    return cache_folder() / "library"


def _path(folder: Path, level: Level) -> Path:
    """File of a library, named by the SHA-256 of its units, what they include, and their flags."""
    return folder / level.name / f"{text_key(*host_flags(level), *_words())}.so"


@functools.cache
def _words() -> tuple[str, ...]:
    """Texts that decide the content of a library."""
    texts = {text: None for unit in _units() for text in (unit.name, unit.source, *unit.texts)}
    return tuple(texts)


@functools.cache
def _units() -> tuple[Unit, ...]:
    found = []
    for path in sorted(KERNELS.rglob("*.cpp")):
        source = path.read_text()
        found.append(Unit(path.relative_to(KERNELS).as_posix(), source, tuple(included(source))))
    return tuple(found)


def _object(unit: Unit, level: Level, folder: Path, compiler: list[str]) -> Path:
    """Object file of a unit, compiled unless the cache has it."""
    flags = [*(flag for flag in host_flags(level) if flag != "-shared"), *unit.flags]
    path = folder / f"{text_key(compiler_identity(tuple(compiler)), *flags, unit.source, *unit.texts)}.o"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            built = Path(temporary, "unit.o")
            run_compiler([*compiler, *flags, "-c"], built, unit.name, source=unit.source)
            built.replace(path)
    return path


def _say(text: str, last: bool) -> None:
    """Write a line that the next one replaces, on a terminal; else the last line alone."""
    if sys.stderr.isatty():
        print(f"\r{text}", end="\n" if last else "", file=sys.stderr, flush=True)
    elif last:
        print(text, file=sys.stderr, flush=True)
