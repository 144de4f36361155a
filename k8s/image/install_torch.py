"""Install torch for the CPU or for CUDA, from whatever index pip is configured with.

For Linux on x86-64 many indexes have torch for CUDA only: 3.4 GB of CUDA libraries that a CPU never runs, but
without which torch does not load. So with `cpu` they are not downloaded. Small libraries with their names and
symbols take their place: each function answers "no device". torch then finds no GPU and computes on the CPU.
An index whose torch is for the CPU needs none of them, and gets none.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

CUDA_PACKAGES = re.compile(r"(nvidia|cuda|cupy|triton)\b")
NO_DEVICE = 100  # cudaErrorNoDevice; for the other libraries some error
_TEXT = re.compile(r"(Error|Status|Result).*(String|Name)|String$")
"""Functions that return a text."""


def main() -> None:
    """Install and check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variant", nargs="?", choices=["cpu", "cuda"])
    parser.add_argument("--constraint", type=Path, help="constraints of pip")
    parser.add_argument("--check-cuda", action="store_true", help="fail unless torch has its CUDA libraries")
    given = parser.parse_args()
    if given.check_cuda:
        check_cuda()
    elif given.variant == "cuda":
        pip(given.constraint, "torch")
    elif given.variant == "cpu":
        pip(given.constraint, "--no-deps", "torch")
        wanted = importlib.metadata.requires("torch") or []
        pip(given.constraint, *[name for name in wanted if needed_on_cpu(name)])
        stand_in(Path(str(importlib.metadata.distribution("torch").locate_file("torch/lib"))))
    else:
        parser.error("say cpu or cuda")
    subprocess.run([sys.executable, "-c", _TRIAL], check=True)


_TRIAL = """
import torch
layer = torch.nn.Linear(4, 3)
layer(torch.ones(2, 4)).sum().backward()
print("torch", torch.__version__, "computes; GPUs:", torch.cuda.device_count())
"""


def pip(constraint: Path | None, *words: str) -> None:
    """Run `pip install`."""
    limits = ["--constraint", str(constraint)] if constraint is not None else []
    subprocess.run([sys.executable, "-m", "pip", "install", *limits, *words], check=True)


def needed_on_cpu(requirement: str) -> bool:
    """True for a requirement of torch that is neither an extra nor part of CUDA."""
    return "extra ==" not in requirement and not CUDA_PACKAGES.match(requirement)


def check_cuda() -> None:
    """Exit with a sentence where torch was installed for the CPU."""
    try:
        importlib.metadata.version("nvidia-cuda-runtime")
    except importlib.metadata.PackageNotFoundError:
        sys.exit("the image `gpu` needs torch for CUDA: build it with the build argument TORCH=cuda")


def stand_in(folder: Path) -> None:
    """Make the libraries that torch's libraries need and that nobody has.

    Args:
        folder: of torch's libraries, which look for others there.
    """
    libraries = sorted(folder.glob("*.so*"))
    names = {name for library in libraries for name in needed(library)}
    missing: dict[str, dict[str, str]] = {
        name: {} for name in sorted(names) if not (folder / name).exists() and system_path(name) is None
    }
    """Library → symbol → its version."""
    if not missing:
        return
    system = [path for path in map(system_path, sorted(names)) if path is not None]
    provided = set().union(*(defined(library) for library in (*libraries, *system)))
    for library in libraries:
        for symbol, (file, version) in undefined(library).items():
            if file in missing:
                missing[file][symbol] = version
            elif not file and symbol not in provided:
                # A symbol without a version may be in any library that is loaded.
                missing[min(missing)][symbol] = ""
    for name, symbols in missing.items():
        compile_stand_in(folder / name, name, symbols)
    print(f"torch was built for CUDA: {len(missing)} of its libraries are stand-ins here")


def read(*words: str | Path) -> str:
    """Output of a program of binutils."""
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def needed(library: Path) -> list[str]:
    """Names of the libraries that a library needs."""
    return re.findall(r"NEEDED.*\[(.+)\]", read("readelf", "--dynamic", "--wide", library))


def undefined(library: Path) -> dict[str, tuple[str, str]]:
    """Symbols that a library takes from others → the other library and the version there, or "", ""."""
    found: dict[str, tuple[str, str]] = {}
    files: dict[str, str] = {}
    file = ""
    for line in read("readelf", "--version-info", "--wide", library).splitlines():
        if match := re.search(r"File: (\S+)", line):
            file = match[1]
        elif match := re.search(r"Name: (\S+)", line):
            files[match[1]] = file
    for line in read("nm", "--dynamic", "--undefined-only", "--with-symbol-versions", library).splitlines():
        kind, _, symbol = line.strip().partition(" ")
        name, _, version = symbol.strip().partition("@")
        if kind == "U":  # a weak symbol may stay undefined
            found[name] = files.get(version, ""), version
    return found


def defined(library: Path) -> set[str]:
    """Symbols that a library has."""
    lines = read("nm", "--dynamic", "--defined-only", library).splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines}


def system_path(name: str) -> Path | None:
    """File of one of the system's libraries."""
    for line in read("ldconfig", "--print-cache").splitlines():
        if line.split()[:1] == [name]:
            return Path(line.split()[-1])
    return None


def compile_stand_in(path: Path, name: str, symbols: dict[str, str]) -> None:
    """Compile a library with these symbols, each with its version."""
    lines = []
    for symbol in sorted(symbols):
        if _TEXT.search(symbol):
            lines.append(f'const char* {symbol}(void) {{ return "this image has no CUDA"; }}')
        else:
            lines.append(
                f"long {symbol}(void) {{ return {0 if symbol.startswith('__cuda') else NO_DEVICE}; }}"
            )
    versions: dict[str, list[str]] = defaultdict(list)
    for symbol, version in symbols.items():
        if version:
            versions[version].append(symbol)
    script = "\n".join(f"{version} {{ {'; '.join(names)}; }};" for version, names in sorted(versions.items()))
    with tempfile.TemporaryDirectory() as scratch:
        source, map_file = Path(scratch, "library.c"), Path(scratch, "versions")
        source.write_text("\n".join(lines) + "\n")
        map_file.write_text(script)
        flags = [f"-Wl,--version-script={map_file}"] if script else []
        command = ["gcc", "-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{name}", *flags, "-fno-builtin"]
        subprocess.run([*command, str(source), "-o", str(path)], check=True)


if __name__ == "__main__":
    main()
