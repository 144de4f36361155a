"""Build of the native front's library: `front.cpp` with gRPC's C++ library of the distribution.

    python -m livectr.serving.native.build [FOLDER]

compiles it into FOLDER, with copies of the libraries that it needs, else into the cache. A checkout has it
beside its kernels, in BUILT. gRPC's C++ library
is the system's, or Debian's packages that `setup.sh` has unpacked into the cache: that takes no right to
install.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from livectr.kernels.runtime.compiler import (
    KERNELS,
    cache_folder,
    compiler_words,
    make_folder,
    prebuilt_folders,
    run_compiler,
    sanitizer_flags,
    text_key,
)
from livectr.system.errors import ConfigError, LiveCTRError

BUILT = KERNELS / "built"
"""Folder of the libraries of a checkout."""
_SOURCE = Path(__file__).with_name("front.cpp")
_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-pthread", *sanitizer_flags())
_LIBRARIES = ("-lgrpc++", "-lgrpc", "-lgpr")
_SYSTEM = Path("/usr")
_EVERYWHERE = ("libc.", "libm.", "libdl.", "librt.", "libpthread.", "libstdc++.", "libgcc_s.")


class NoGrpcError(ConfigError):
    """There is no C++ library of gRPC to compile with."""


def unpacked() -> Path:
    """Folder into which `setup.sh` unpacks Debian's packages."""
    return cache_folder().parent / "grpc"


def build(folder: Path, *, alone: bool = False) -> Path:
    """Compile the library into a folder, unless it is there.

    Args:
        folder: where it is found again, if it is BUILT, the cache's or one of $LIVECTR_KERNELS.
        alone: copy the libraries that it needs into FOLDER/grpc, and let it find them there.

    Raises:
        NoGrpcError: no C++ library of gRPC.
        KernelError: it does not compile.
        ConfigError: no compiler, or a folder that cannot be written.
    """
    path = folder / _name()
    if path.exists():
        return path
    root = next((root for root in (unpacked() / "usr", _SYSTEM) if _has_headers(root)), None)
    if root is None:
        raise NoGrpcError("there is no C++ library of gRPC: install libgrpc++-dev, or run setup.sh")
    make_folder(folder)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        built = Path(temporary, "front.so")
        beside = ["-Wl,-rpath,$ORIGIN/grpc,--disable-new-dtags"] if alone else []
        source = [f"-I{KERNELS}", str(_SOURCE), *_LIBRARIES]
        run_compiler([*compiler_words(), *_FLAGS, *beside, *_places(root), *source], built, "front")
        if alone:
            _copy_needed(built, folder / "grpc")
        built.replace(path)
    return path


@functools.cache
def front_library() -> ctypes.CDLL | str:
    """Library of the front; a reason where there is none, or it cannot be loaded."""
    for folder in (*prebuilt_folders(), BUILT, _cache()):
        if (path := folder / _name()).exists():
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:
                return f"its library cannot be loaded ({error})"
    return "its library is not built"


def _copy_needed(library: Path, to: Path) -> None:
    """Copy the libraries that a library needs, but for those that every Python has loaded."""
    to.mkdir(exist_ok=True)
    listed = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow and not name.startswith(_EVERYWHERE):
            shutil.copy(rest.split()[0], to / name)


def _cache() -> Path:
    return cache_folder().parent / "front"


def _name() -> str:
    """File of the library, named by the SHA-256 of what decides its content."""
    answer = KERNELS / "request" / "answer.hpp"
    return f"front-{text_key(_SOURCE.read_text(), answer.read_text(), *_FLAGS, *_LIBRARIES)}.so"


def _has_headers(root: Path) -> bool:
    return Path(root, "include", "grpcpp", "grpcpp.h").exists()


def _places(root: Path) -> list[str]:
    """Flags that find gRPC below a folder, also when the library is loaded; the system's needs none."""
    if root == _SYSTEM:
        return []
    libraries = sorted({path.parent for path in Path(root, "lib").rglob("libgrpc++.so*")})
    found = [f"-I{root / 'include'}"]
    for folder in libraries:
        # An rpath, not a runpath: it holds for the libraries of the library, too.
        found += [f"-L{folder}", f"-Wl,-rpath,{folder},-rpath-link,{folder},--disable-new-dtags"]
    return found


def main() -> None:
    """Build into the folder of the command line, else into the cache; a reason on stderr where it cannot."""
    try:
        print(build(Path(sys.argv[1]), alone=True) if len(sys.argv) > 1 else build(_cache()))
    except LiveCTRError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
