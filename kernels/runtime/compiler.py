"""Run-time compiler: one CUDA C++ source, two targets.

`compile_host` builds a shared library with the host's C++ compiler and keeps it in a cache;
`compile_cubin` builds the same source for a GPU with NVRTC (no GPU is needed to compile).
A source is a string; `#include "room/file"` finds the files of `kernels/`.

Prebuilt kernels need no compiler: $LIVECTR_KERNELS names folders, FOLDER/LEVEL/KEY.so, and `compile_host`
looks there first, from this CPU's highest level down. `noting` and `prebuild` make them. Those of a GPU
are FOLDER/ARCH/KEY.cubin.
"""

import ctypes
import fcntl
import functools
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from livectr.system.cpu import Level, own_levels
from livectr.system.errors import ConfigError, KernelError, NoCompilerError

KERNELS = Path(__file__).resolve().parents[1]
"""Folder where `#include "room/file"` looks."""


def host_flags(level: Level | None = None) -> tuple[str, ...]:
    """Flags of the host's compiler for a level of CPUs, or for this CPU."""
    # -ffp-contract=off: a fused multiply-add rounds once, not twice, so results would depend on the CPU.
    return (
        *("-std=c++17", "-O3", *(level.flags if level is not None else ("-march=native",))),
        *("-shared", "-fPIC", "-pthread", *sanitizer_flags()),
        *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"),
    )


def sanitizer_flags() -> tuple[str, ...]:
    """Flags of the sanitizers in $LIVECTR_SANITIZE, as -fsanitize takes them; tests/sanitizers.py sets it."""
    names = os.environ.get("LIVECTR_SANITIZE", "")
    if not names:
        return ()
    # -O1 -g1: reports name lines, and nothing else of -g, which takes longer to compile. Hashes wrap unsigned
    # numbers, which is no error in C++.
    return (f"-fsanitize={names}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1", "-O1")


HOST_FLAGS = host_flags()
# -default-device: a generic lambda inside a device function is a device function too.
DEVICE_FLAGS = ("-std=c++17", "-fmad=false", "-default-device")
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)

Run: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]
_loaded: dict[Path, ctypes.CDLL] = {}
_lock = threading.Lock()
_first = threading.Lock()
"""Held while NVRTC is used first: it opens a library then, and fails where another thread does so as well."""


@dataclass(frozen=True)
class HostSource:
    """Arguments of `compile_host`."""

    source: str
    name: str
    flags: tuple[str, ...]

    def path(self, folder: Path, level: Level) -> Path:
        """File in a folder of prebuilt kernels, named by the SHA-256 of source, included files and flags."""
        key = text_key("\0".join((*host_flags(level), *self.flags)), self.source, *included(self.source))
        return folder / level.name / f"{key}.so"


@dataclass(frozen=True)
class Noting:
    """Note of every source that `compile_host` gets; what it loads is compiled into `folder`.

    Args:
        level: level that this CPU has.
        folder: folder of prebuilt kernels.
        sources: sources so far, each once.
    """

    level: Level
    folder: Path
    sources: dict[HostSource, None]

    def prebuild(self, wanted: HostSource) -> Path:
        """Note a source and compile it."""
        self.sources[wanted] = None
        return prebuild(wanted, self.level, self.folder)


_noting: Noting | None = None


def thread_count() -> int:
    """Number of threads of the host kernels (`runtime/threads.hpp`).

    It is LIVECTR_THREADS, else the machine's CPUs. Raises ConfigError for another text.
    """
    text = os.environ.get("LIVECTR_THREADS", "")
    if not text:
        return os.cpu_count() or 1
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"LIVECTR_THREADS={text!r} must be a whole number of at least 1")
    return int(text)


def compile_host(source: str, *, name: str, flags: Sequence[str] = ()) -> ctypes.CDLL:
    """Compiles C++17 for this machine, or finds it prebuilt or in the cache, and loads the library.

    The cache is $LIVECTR_CACHE_DIR/kernels (default ~/.cache/livectr/kernels). A file's name is the SHA-256
    of everything that decides its content: source, included files, flags, compiler, and the features of the
    CPU. Calls into the library release the GIL.

    Args:
        source: text of the source.
        name: name in error messages only.
        flags: flags of the compiler besides HOST_FLAGS.

    Raises:
        KernelError: the source does not compile; the message has the compiler's text.
        ConfigError: a bad LIVECTR_THREADS, no compiler, or a cache folder that cannot be written.
    """
    thread_count()  # the library reads the same variable and cannot complain about it
    wanted = HostSource(source, name, tuple(flags))
    path, command = _place(wanted)
    with _lock:
        if path not in _loaded:
            if not path.exists():
                _build(source, path, command, name)
            _loaded[path] = ctypes.CDLL(str(path))
        return _loaded[path]


def find_host(source: str, *, name: str) -> ctypes.CDLL | None:
    """Load what `compile_host` would give if it is prebuilt or in the cache, else return None.

    Meanwhile kernels are noted (`noting`), it compiles.

    Raises:
        NoCompilerError: it is not prebuilt, and no compiler is there to compile it.
    """
    path, _ = _place(HostSource(source, name, ()))
    return compile_host(source, name=name) if path.exists() else None


def build_host(source: str, *, name: str, run: Run = subprocess.run) -> None:
    """Compile into the cache for `find_host`, without a lock that a call of `compile_host` waits for.

    Args:
        source: C++ text.
        name: of the kernel, in errors and file names.
        run: runs the compiler, as subprocess.run does.

    Raises:
        KernelError, ConfigError: as `compile_host`.
    """
    path, command = _place(HostSource(source, name, ()))
    if not path.exists():
        _build(source, path, command, name, run)


def _place(wanted: HostSource) -> tuple[Path, list[str]]:
    """File of a source, prebuilt or in the cache, and the command that compiles it."""
    path = _prebuilt(wanted) if _noting is None else _noting.prebuild(wanted)
    if path is not None:
        return path, []
    compiler = compiler_words()
    all_flags = (*HOST_FLAGS, *wanted.flags)
    parts = ("\0".join(all_flags), wanted.source, *included(wanted.source))
    key = text_key(compiler_identity(tuple(compiler)), *parts)
    return cache_folder() / f"{key}.so", [*compiler, *all_flags]


@contextmanager
def noting(level: Level, folder: Path) -> Iterator[dict[HostSource, None]]:
    """Note every source that this process compiles meanwhile, in any thread; see `Noting`."""
    global _noting
    before, _noting = _noting, Noting(level, folder, {})
    try:
        yield _noting.sources
    finally:
        _noting = before


def prebuild(wanted: HostSource, level: Level, folder: Path) -> Path:
    """Compile a source for a level of CPUs into FOLDER/LEVEL.

    It is not compiled if it is there, or in a folder of $LIVECTR_KERNELS. It is not loaded: this CPU may lack
    the level.

    Returns:
        The kernel's file.

    Raises:
        KernelError: the source does not compile.
        ConfigError: no compiler, or a folder that cannot be written.
    """
    for known in (*prebuilt_folders(), folder):
        path = wanted.path(known, level)
        if path.exists():
            return path
    _build(wanted.source, path, [*compiler_words(), *host_flags(level), *wanted.flags], wanted.name)
    return path


def _prebuilt(wanted: HostSource) -> Path | None:
    """File of the highest level that this CPU has, in the first folder that has any."""
    for folder in prebuilt_folders():
        for level in own_levels():
            path = wanted.path(folder, level)
            if path.exists():
                return path
    return None


def prebuilt_folders() -> list[Path]:
    """Folders of libraries that $LIVECTR_KERNELS names."""
    return [Path(text) for text in os.environ.get("LIVECTR_KERNELS", "").split(os.pathsep) if text]


def compile_cubin(source: str, *, arch: str = "sm_90") -> bytes:
    """Compiles CUDA C++ to a cubin with NVRTC.

    Args:
        source: text of the source.
        arch: architecture, such as "sm_90".

    Raises:
        KernelError: CuPy is missing, or the source does not compile.
    """
    try:
        from cupy.cuda import nvrtc
    except ImportError as error:
        raise KernelError('compiling for a GPU needs CuPy: pip install "livectr[gpu]"') from error
    _nvrtc_identity()
    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, [f"-arch={arch}", *DEVICE_FLAGS, f"-I{KERNELS}"])
        # CuPy takes the last byte for the end of a text. It is 0, and a driver refuses a file without it.
        return bytes(nvrtc.getCUBIN(program)) + b"\0"
    except nvrtc.NVRTCError as error:
        raise KernelError(f"{error}\n{nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)


def cached_cubin(source: str, *, arch: str) -> Path:
    """File of `compile_cubin`'s result: prebuilt, or compiled once into the cache of `compile_host`.

    Prebuilt is FOLDER/ARCH/KEY.cubin in a folder of $LIVECTR_KERNELS (`prebuild_cubin`), whichever NVRTC is
    here. A name in the cache depends on NVRTC's build, too.
    """
    if (path := prebuilt_cubin(source, arch)) is not None:
        return path
    path = cache_folder() / f"{text_key(_nvrtc_identity(), cubin_key(source, arch))}.cubin"
    if not path.exists():
        _write_whole(path, compile_cubin(source, arch=arch))
    return path


def cached_cubins(sources: Sequence[str], *, arch: str) -> list[Path]:
    """Files of `cached_cubin` for each source, compiled side by side on `thread_count` threads."""
    with ThreadPoolExecutor(thread_count(), "nvrtc") as pool:
        return list(pool.map(functools.partial(cached_cubin, arch=arch), sources))


def prebuilt_cubin(source: str, arch: str) -> Path | None:
    """File of a source in the first folder of $LIVECTR_KERNELS that has it."""
    places = (_cubin_in(folder, source, arch) for folder in prebuilt_folders())
    return next((path for path in places if path.exists()), None)


def prebuild_cubin(source: str, *, arch: str, folder: Path) -> Path:
    """Compile a source into FOLDER/ARCH, unless it is there. Returns its file. Raises KernelError."""
    path = _cubin_in(folder, source, arch)
    if not path.exists():
        _write_whole(path, compile_cubin(source, arch=arch))
    return path


def _cubin_in(folder: Path, source: str, arch: str) -> Path:
    return folder / arch / f"{cubin_key(source, arch)}.cubin"


def cubin_key(source: str, arch: str) -> str:
    """SHA-256 of source, included files, flags and arch; "whole": files of earlier versions lack a byte."""
    return text_key("whole", arch, "\0".join(DEVICE_FLAGS), source, *included(source))


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file that another process sees whole or not at all."""
    make_folder(path.parent)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as built:
        built.write(content)
    Path(built.name).chmod(0o644)  # others may read what is brought along
    Path(built.name).replace(path)


def make_folder(folder: Path) -> None:
    """Make a folder of compiled kernels, unless it is there.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the kernel cache {folder} cannot be made ({error.strerror}); set LIVECTR_CACHE_DIR"
        ) from None


def made_cache_folder() -> Path:
    """Folder of compiled kernels, made if need be.

    Raises:
        ConfigError: it cannot be made.
    """
    make_folder(cache_folder())
    return cache_folder()


def _build(source: str, path: Path, command: list[str], name: str, run: Run = subprocess.run) -> None:
    """Compiles into a temporary file, then renames it: another process never loads half a library.

    Processes that want the same library at once, such as the ranks of a run, wait for the first one's.
    """
    make_folder(path.parent)
    with _alone(path.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=path.parent) as folder:
        if path.exists():
            return
        built = Path(folder, "kernel.so")
        run_compiler(command, built, name, source=source, run=run)
        built.replace(path)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock among processes. Its first holder removes its file: what it guards is there by then."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def run_compiler(
    command: list[str], built: Path, name: str, *, source: str | None = None, run: Run = subprocess.run
) -> None:
    """Run a compiler that makes the file `built`, of a source as its input or of the command's files.

    Raises:
        KernelError: it failed, with its text; `name` says of what.
        ConfigError: it made nothing.
    """
    given = [] if source is None else [f"-I{KERNELS}", "-x", "c++", "-"]
    done = run([*command, *given, "-o", str(built)], input=source, capture_output=True, text=True)
    if done.returncode < 0:
        killer = signal.Signals(-done.returncode).name
        raise KernelError(f"the compiler of kernel {name!r} was ended by {killer}; start again")
    if done.returncode != 0:
        raise KernelError(f"kernel {name!r} does not compile:\n{done.stderr.strip()}")
    if not built.exists():
        raise ConfigError(f"{command[0]} is no C++ compiler: {_INSTALL}")


def compiler_words() -> list[str]:
    """Finds $CXX (may hold arguments), else c++, g++ or clang++. Raises NoCompilerError without any."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    for candidate in wanted:
        try:
            words = shlex.split(candidate)
        except ValueError:  # an unclosed quotation
            continue
        if words and shutil.which(words[0]):
            return words
    raise NoCompilerError(f"no C++ compiler found ({' or '.join(wanted)}): {_INSTALL}")


_INSTALL = (
    "install the package g++ (gcc-c++ on Fedora), or set CXX to a C++17 compiler; without one, build kernels "
    "elsewhere with `livectr features compile`, and name their folder in LIVECTR_KERNELS"
)


@functools.cache
def compiler_identity(compiler: tuple[str, ...]) -> str:
    """Identity of the compiler: its file, version, and the macros that it predefines with our flags.

    The macros name the CPU features that -march=native found, and what a wrapper or $CXX adds. So a cache on
    a shared disk or in an image never gives an illegal instruction.
    """
    file = Path(shutil.which(compiler[0]) or compiler[0]).resolve()
    status = file.stat()
    version = _output([*compiler, "--version"])
    macros = _output([*compiler, *HOST_FLAGS, "-dM", "-E", "-x", "c++", os.devnull])
    return "\0".join((*compiler, str(file), str(status.st_size), str(status.st_mtime_ns), version, macros))


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be run ({error.strerror}): {_INSTALL}") from None
    if done.returncode != 0:
        raise ConfigError(f"{command[0]} is no C++ compiler: {_INSTALL}")
    return done.stdout


def _nvrtc_identity() -> str:
    """Build of NVRTC. Once it is known, threads may use NVRTC side by side."""
    with _first:
        return _empty_ptx()


@functools.cache
def _empty_ptx() -> str:
    """PTX of a program without a kernel, into which NVRTC writes its build."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram("", "empty.cu", (), ())
    try:
        nvrtc.compileProgram(program, [])
        return str(nvrtc.getPTX(program))
    finally:
        nvrtc.destroyProgram(program)


def text_key(*parts: str) -> str:
    """SHA-256 of texts, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


def included(source: str) -> list[str]:
    """Texts of the files of `kernels/` that `source` includes, directly or not, in order of first use."""
    texts: dict[str, str] = {}
    waiting = _INCLUDE.findall(source)
    while waiting:
        name = waiting.pop(0)
        path = KERNELS / name
        if name not in texts and path.is_file():
            texts[name] = path.read_text()
            waiting += _INCLUDE.findall(texts[name])
    return list(texts.values())


def cache_folder() -> Path:
    """Folder of compiled kernels."""
    return Path(os.environ.get("LIVECTR_CACHE_DIR") or Path.home() / ".cache" / "livectr") / "kernels"
