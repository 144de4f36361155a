"""Build of the native front's library: its sources with nghttp2 and OpenSSL of the distribution.

    python -m livectr.serving.native.build [FOLDER]

compiles it into FOLDER, with a copy of nghttp2, else into the cache. A checkout has it beside its kernels, in
BUILT. The headers and nghttp2 are the system's, or Debian's packages that `setup.sh` has unpacked into the
cache: that takes no right to install. OpenSSL is always the system's, which also keeps it patched.
"""

from __future__ import annotations

import ctypes
import functools
import os
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
_SOURCES = sorted(Path(__file__).parent.glob("*.?pp"))
_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-pthread", *sanitizer_flags())
_LIBRARIES = ("-lnghttp2", "-l:libssl.so.3", "-l:libcrypto.so.3")
_SYSTEM = Path("/usr")
_OF_SYSTEM = (
    *("libc.", "libm.", "libdl.", "librt.", "libpthread.", "libstdc++.", "libgcc_s."),
    *("libssl.", "libcrypto."),
)


class NoHttp2Error(ConfigError):
    """There is no library of HTTP/2, or none of TLS, to compile with."""


def unpacked() -> Path:
    """Folder into which `setup.sh` unpacks Debian's packages."""
    return cache_folder().parent / "nghttp2"


def build(folder: Path, *, alone: bool = False) -> Path:
    """Compile the library into a folder, unless it is there.

    Args:
        folder: where it is found again, if it is BUILT, the cache's or one of $LIVECTR_KERNELS.
        alone: copy nghttp2 into FOLDER/nghttp2, and let it find it there.

    Raises:
        NoHttp2Error: no nghttp2 or OpenSSL.
        KernelError: it does not compile.
        ConfigError: no compiler, or a folder that cannot be written.
    """
    path = folder / _name()
    if path.exists():
        return path
    root = next((root for root in (unpacked() / "usr", _SYSTEM) if _has_headers(root)), None)
    if root is None:
        raise NoHttp2Error(
            "there is no nghttp2 or OpenSSL: install libnghttp2-dev and libssl-dev, or run setup.sh"
        )
    make_folder(folder)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        built = Path(temporary, "front.so")
        beside = ["-Wl,-rpath,$ORIGIN/nghttp2,--disable-new-dtags"] if alone else []
        source = [f"-I{KERNELS}", *(str(file) for file in _SOURCES if file.suffix == ".cpp"), *_LIBRARIES]
        run_compiler([*compiler_words(), *_FLAGS, *beside, *_places(root), *source], built, "front")
        if alone:
            copy_needed(built, folder / "nghttp2")
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


def copy_needed(library: Path, to: Path) -> None:
    """Copy the libraries that a library needs, but for those that every Python has loaded."""
    to.mkdir(exist_ok=True)
    listed = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow and not name.startswith(_OF_SYSTEM):
            copy = to / f".{name}.{os.getpid()}"
            shutil.copy(rest.split()[0], copy)
            copy.replace(to / name)  # a process may have the one before in its memory


def _cache() -> Path:
    return cache_folder().parent / "front"


def _name() -> str:
    """File of the library, named by the SHA-256 of what decides its content."""
    answer = KERNELS / "request" / "answer.hpp"
    texts = (file.read_text() for file in (*_SOURCES, answer))
    return f"front-{text_key(*texts, *_FLAGS, *_LIBRARIES)}.so"


def _has_headers(root: Path) -> bool:
    return Path(root, "include", "nghttp2", "nghttp2.h").exists() and any(
        Path(at, "include", "openssl", "ssl.h").exists() for at in (root, _SYSTEM)
    )


def _places(root: Path) -> list[str]:
    """Flags that find nghttp2 below a folder, also when the library is loaded; the system's needs none."""
    if root == _SYSTEM:
        return []
    libraries = sorted({path.parent for path in Path(root, "lib").rglob("libnghttp2.so*")})
    found = [f"-I{folder}" for folder in (root / "include", *root.glob("include/*-linux-gnu"))]
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
