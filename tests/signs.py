"""Signs of the house (docs/architecture.md), counted from the sources: `python -m tests.signs`.

`tests/test_house.py` holds the limits of some, and counts import cycles and upward imports.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = (
    "client",
    "ingest",
    "kernels",
    "models",
    "protos",
    "serving",
    "store",
    "system",
    "trainer",
    "livectr",
)
BESIDE = ("bench", "tests", "examples")
"""Folders outside of the package; their files count, too."""
MANY_BY_NATURE = ("ingest/operators", "models")
"""Folders with a file for each operator or model."""
POOR_OPENER = re.compile(r"(What|Whether|How|Where|Those|Of|Which|When)\b")

Defined = ast.FunctionDef | ast.AsyncFunctionDef


def sources(*suffixes: str, folders: tuple[str, ...] = FOLDERS) -> Iterator[Path]:
    """Files of the package, without generated code; links in livectr/ are not followed."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in suffixes and "_pb2" not in path.name:
                yield path


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    for path in sources(".py"):
        for node in ast.walk(ast.parse(path.read_text())):
            yield path, node


def is_stub(node: Defined) -> bool:
    """True for a declaration without code, as in a Protocol."""
    return all(isinstance(part, ast.Expr | ast.Pass) for part in node.body)


def parameters(node: Defined) -> int:
    """Parameters without self and cls."""
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len([arg for arg in given if arg.arg not in ("self", "cls")])


def largest(found: dict[str, int]) -> str:
    """Largest count and its name."""
    name = max(found, key=lambda name: found[name])
    return f"{found[name]} ({name})"


def counts() -> dict[str, str]:
    """Sign → number, with the place of the largest."""
    in_folder = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for path in sources(".py", ".cpp", ".cuh", ".hpp")
        if path.name != "__init__.py"
    )
    lines = {
        p.relative_to(ROOT).as_posix(): len(p.read_text().splitlines())
        for p in sources(".py", ".cpp", ".cuh", ".hpp", folders=(*FOLDERS, *BESIDE))
    }
    constructors: dict[str, int] = {}
    signatures: dict[str, int] = {}
    poor = 0
    for path, node in nodes():
        where = path.relative_to(ROOT).as_posix()
        if isinstance(node, Defined):
            if node.name == "__init__":
                first, last = node.body[0].lineno, node.end_lineno or 0
                constructors[f"{where}:{node.lineno}"] = last - first + 1
            if not is_stub(node):
                signatures[f"{where}:{node.lineno} {node.name}"] = parameters(node)
        if isinstance(node, Defined | ast.ClassDef | ast.Module):
            poor += bool(POOR_OPENER.match(ast.get_docstring(node) or ""))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    return {
        "files in a folder": largest({k: n for k, n in in_folder.items() if k not in MANY_BY_NATURE}),
        "lines of the longest constructor": largest(constructors),
        "parameters of a function": largest(signatures),
        "functions with more than 7 parameters": str(sum(n > 7 for n in signatures.values())),
        "files over 400 lines": str(sum(n > 400 for n in lines.values())),
        "longest file": largest(lines),
        "docstrings that open with What, Whether, …": str(poor),
        "top-level packages in the wheel": str(len({name.rstrip("*") for name in packages})),
    }


if __name__ == "__main__":
    for sign, number in counts().items():
        print(f"{sign:44} {number}")
