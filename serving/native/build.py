"""Build of the native front's library: its sources with nghttp2 and OpenSSL of the distribution.

    python -m livectr.serving.native.build [FOLDER]

compiles it into the cache, and copies it with its nghttp2 into FOLDER. A checkout and an installed package
have it beside their kernels, in BUILT. The headers and nghttp2 are the system's, or Debian's packages that
`setup.sh` has unpacked into the cache: that takes no right to install. OpenSSL is always the system's, which
also keeps it patched.
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
SOURCES = sorted(Path(__file__).parent.glob("*.?pp"))
"""Files of the front in C++."""
_BESIDE = "nghttp2"
"""Folder beside the library, with the libraries that it needs."""
# An rpath, not a runpath: it holds for the libraries of the library, too.
_FOUND = f"-Wl,-rpath,$ORIGIN/{_BESIDE},--disable-new-dtags"
_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-pthread", _FOUND, *sanitizer_flags())
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


def words() -> list[str]:
    """Words of a compiler, behind its sources, for a program with what the front needs.

    Raises:
        NoHttp2Error: no nghttp2 or OpenSSL.
    """
    root = _root()
    found = [] if root == _SYSTEM else [f"-Wl,-rpath,{folder}" for folder in _libraries(root)]
    return [*_places(root), *found, *_LIBRARIES]


def build(folder: Path | None = None) -> Path:
    """Compile the library into the cache, unless it is there, and copy it into a folder.

    Args:
        folder: where it is found again, if it is BUILT or one of $LIVECTR_KERNELS; None: the cache is enough.

    Raises:
        NoHttp2Error: no nghttp2 or OpenSSL.
        KernelError: it does not compile.
        ConfigError: no compiler, or a folder that cannot be written.
    """
    path = _cache() / _name()
    if not path.exists():
        root = _root()
        make_folder(path.parent)
        with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
            built = Path(temporary, path.name)
            source = [f"-I{KERNELS}", *(str(file) for file in SOURCES if file.suffix == ".cpp"), *_LIBRARIES]
            run_compiler([*compiler_words(), *_FLAGS, *_places(root), *source], built, "front")
            for library in _needed(built, root):
                put(library, path.parent / _BESIDE)
            built.replace(path)
    if folder is None:
        return path
    for library in (path.parent / _BESIDE).iterdir():
        put(library, folder / _BESIDE)
    return put(path, folder)


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


def put(file: Path, folder: Path) -> Path:
    """Copy a file into a folder; a process may have the one before in its memory, and keeps it."""
    make_folder(folder)
    copy = folder / f".{file.name}.{os.getpid()}"
    shutil.copy(file, copy)
    return copy.replace(folder / file.name)


def _needed(library: Path, root: Path) -> list[Path]:
    """Libraries that a library needs, but for those that every Python has loaded."""
    known = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(map(str, _libraries(root)))}
    listed = subprocess.run(
        ["ldd", str(library)], capture_output=True, text=True, check=True, env=known
    ).stdout
    lines = (line.strip().partition(" => ") for line in listed.splitlines())
    return [Path(rest.split()[0]) for name, arrow, rest in lines if arrow and not name.startswith(_OF_SYSTEM)]


def _cache() -> Path:
    return cache_folder().parent / "front"


def _name() -> str:
    """File of the library, named by the SHA-256 of what decides its content."""
    answer = KERNELS / "request" / "answer.hpp"
    texts = (file.read_text() for file in (*SOURCES, answer))
    return f"front-{text_key(*texts, *_FLAGS, *_LIBRARIES)}.so"


def _root() -> Path:
    """Folder with the headers. Raises NoHttp2Error without one."""
    for root in (unpacked() / "usr", _SYSTEM):
        if _has_headers(root):
            return root
    raise NoHttp2Error(
        "there is no nghttp2 or OpenSSL: install libnghttp2-dev and libssl-dev, or run setup.sh"
    )


def _has_headers(root: Path) -> bool:
    return Path(root, "include", "nghttp2", "nghttp2.h").exists() and any(
        Path(at, "include", "openssl", "ssl.h").exists() for at in (root, _SYSTEM)
    )


def _libraries(root: Path) -> list[Path]:
    """Folders of nghttp2's library below a folder."""
    return sorted({path.parent for path in Path(root, "lib").rglob("libnghttp2.so*")})


def _places(root: Path) -> list[str]:
    """Flags that find nghttp2 below a folder; the system's needs none."""
    if root == _SYSTEM:
        return []
    headers = [root / "include", *root.glob("include/*-linux-gnu")]
    libraries = _libraries(root)
    return [
        *(f"-I{folder}" for folder in headers),
        *(f"-L{folder}" for folder in libraries),
        *(f"-Wl,-rpath-link,{folder}" for folder in libraries),
    ]


def main() -> None:
    """Build into the folder of the command line, else into the cache; a reason on stderr where it cannot."""
    try:
        print(build(*map(Path, sys.argv[1:2])))
    except LiveCTRError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
