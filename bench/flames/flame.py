"""Flame graph as a small SVG: py-spy samples stacks, callers below callees.

A frame is as wide as its share of the samples. Native code has frames of its own where it is recorded, and
else counts for the Python function that called it. Threads that only wait are left out.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from bench.environment import python

HZ = 250
WIDTH, LINE = 1000, 17
LEAST = 0.004
"""Share of the samples below which a frame is left out."""
COLOURS = {
    "LiveCTR": "#8fbcdb",
    "its kernels": "#f2c879",
    "gRPC, protobuf": "#eaa9b1",
    "NumPy, PyArrow, PyTorch": "#a9d0ae",
    "Python": "#d8d8d8",
}
_PACKAGES = {
    "grpc": "gRPC, protobuf", "google": "gRPC, protobuf", "numpy": "NumPy, PyArrow, PyTorch",
    "pyarrow": "NumPy, PyArrow, PyTorch", "torch": "NumPy, PyArrow, PyTorch",
}  # fmt: skip
_KERNELS = re.compile(r"[0-9a-f]{64}\.so")
_GLUE = re.compile(
    r"0x[0-9a-f]+ |.*\((libffi|_ctypes|libpython|python3)"
    r"|(\(anonymous namespace\)::|void )?(THP|(torch::autograd|torch::jit|at::_ops|c10|std)\b)"
)
"""Native frames between a caller and what it calls: left out."""


@dataclass
class Frame:
    """Function of a stack with its callees; samples include theirs."""

    name: str = "all"
    samples: int = 0
    callees: dict[str, Frame] = field(default_factory=dict)


def record(pid: int, seconds: float, *, native: bool = False) -> str:
    """Folded stacks of a process, "caller;callee;… samples" a line. Raises ConfigError without py-spy."""
    spy = python(Path(__file__).with_name("profiler.txt"), program="flame graphs").with_name("py-spy")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "stacks")
        words = ["record", "--pid", pid, "--duration", round(seconds), "--rate", HZ, "--function"]
        words += ["--native"] * native
        command = [spy, *words, "--format", "raw", "--output", out]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        return out.read_text()


def tree(folded: str, entry: str) -> Frame:
    """Frames from folded stacks, from the first on whose name begins with `entry`; others do not count."""
    root = Frame()
    for line in folded.splitlines():
        stack, _, count = line.rpartition(" ")
        names = stack.split(";")
        first = next((i for i, name in enumerate(names) if name.startswith(entry)), None)
        if first is None:
            continue
        names = [_plain(name) for name in names[first:] if not _GLUE.match(name)]
        root.samples += int(count)
        frame = root
        for name in names:
            frame = frame.callees.setdefault(name, Frame(name))
            frame.samples += int(count)
    return root


def _plain(name: str) -> str:
    """Name of a native frame without template arguments."""
    if not re.search(r"\([^()/]*\.so[.\d]*\)$", name):
        return name
    shorter = re.sub(r"<[^<>]*>", "", name)
    while shorter != name:
        name, shorter = shorter, re.sub(r"<[^<>]*>", "", shorter)
    return re.sub(r"(\([^()]*\))?::\{lambda.*\}.* \(", " (", name)


def svg(root: Frame, title: str) -> str:
    """Picture of the frames."""
    least = max(1.0, LEAST * root.samples)
    height = LINE * (_depth(root, least) + 2) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="4" y="13">{escape(title)}</text>',
    ]
    for i, (group, colour) in enumerate(COLOURS.items()):
        x = WIDTH - 165 * (len(COLOURS) - i)
        parts.append(f'<rect x="{x}" y="4" width="11" height="11" fill="{colour}"/>')
        parts.append(f'<text x="{x + 15}" y="14">{group}</text>')
    _draw(root, 0.0, height - LINE - 2, WIDTH / max(1, root.samples), least, parts)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _depth(frame: Frame, least: float) -> int:
    return 1 + max((_depth(f, least) for f in frame.callees.values() if f.samples >= least), default=0)


def _draw(frame: Frame, x: float, y: float, scale: float, least: float, parts: list[str]) -> None:
    width = frame.samples * scale
    colour = COLOURS[_group(frame.name)]
    label = _label(frame.name)
    share = 100 * width / WIDTH
    shown = escape(_cut(label, int(width / 6.2)))
    parts.append(
        f'<g><title>{escape(label)}, {share:.1f} %</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{LINE - 1}" fill="{colour}" stroke="white" stroke-width=".5"/>'
        + (f'<text x="{x + 3:.1f}" y="{y + 12}">{shown}</text>' if shown else "")
        + "</g>"
    )
    for callee in sorted(frame.callees.values(), key=lambda f: f.name):
        if callee.samples >= least:
            _draw(callee, x, y - LINE, scale, least, parts)
        x += callee.samples * scale


def _label(name: str) -> str:
    """Function and file of a frame "function (path)"."""
    function, _, path = name.partition(" (")
    file = path.partition(":")[0].rstrip(")").removeprefix("livectr/")
    return f"{function} {'' if _KERNELS.fullmatch(file) else file}".rstrip()


def _cut(text: str, characters: int) -> str:
    if characters < 3:
        return ""
    return text if len(text) <= characters else text[: characters - 1] + "…"


def _group(name: str) -> str:
    path = name.rpartition(" (")[2].rstrip(")").removeprefix("livectr/")
    first = path.split("/")[0]
    if _KERNELS.fullmatch(first):
        return "its kernels"
    if first.startswith(("libtorch", "libmkl", "libgomp", "libhiredis")):
        return "NumPy, PyArrow, PyTorch"
    if first in ("client", "ingest", "kernels", "models", "protos", "serving", "store", "system", "trainer"):
        return "LiveCTR"
    return _PACKAGES.get(first, "Python")
