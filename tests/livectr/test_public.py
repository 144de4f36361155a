"""The public API: `import livectr` is quick, gives every public name, and loads nothing before it is used."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import livectr
from livectr.cli import main
from livectr.ingest import operators

ROOT = Path(__file__).parents[2]
PUBLIC = {"livectr", *(f"livectr.{name}" for name in ("evaluation", "models", "ops"))}
IMPORT = re.compile(r"^(?:from (livectr[\w.]*) import|import (livectr[\w.]*))", re.MULTILINE)
LOADED = """
import sys
before = set(sys.modules)
import livectr
print(*sorted(set(sys.modules) - before))
"""


def test_importing_is_quick_and_loads_nothing_heavy() -> None:
    """It loads itself, and a few modules of the standard library that this interpreter lacks at its start."""
    said = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = said.stdout.split()
    assert [name for name in loaded if name.startswith("livectr")] == ["livectr"]
    assert {name.partition(".")[0] for name in loaded} <= {"livectr", *sys.stdlib_module_names}
    assert len(loaded) < 20, loaded


@pytest.mark.parametrize("name", livectr.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(livectr, name) is not None
    assert name in dir(livectr)


def test_operators_are_under_ops() -> None:
    assert set(livectr.ops.__all__) == set(operators.__all__)
    assert all(getattr(livectr.ops, name) is getattr(operators, name) for name in operators.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'livectr' has no attribute 'Streem'"):
        _ = livectr.Streem


def test_submodules_can_still_be_imported() -> None:
    from livectr import config

    assert config.__name__ == "livectr.config"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"livectr {livectr.__version__}\n"


def test_pages_and_examples_import_the_public_api_only() -> None:
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.[mp][dy]")]
    inner = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for found in IMPORT.finditer(file.read_text())
        if (name := found[1] or found[2]) not in PUBLIC
    }
    assert not inner, inner
