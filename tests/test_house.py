"""The walls of the house: imports between the folders point one way (docs/architecture.md)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "kernels": set(),
    "protos": set(),
    "models": {"kernels"},
    "ingest": {"kernels"},
    "trainer": {"ingest", "models", "kernels", "protos"},
    "serving": {"ingest", "models", "kernels", "protos"},
    "livectr": {"ingest", "models", "kernels", "protos", "trainer", "serving", "bench"},
}


def imported_folders(source: Path) -> set[str]:
    """Top-level names that a module imports, anywhere in it (a late import is an import)."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_imports_point_one_way(folder: str) -> None:
    sources = sorted((ROOT / folder).rglob("*.py"))
    assert sources, f"{folder}/ holds no module"
    rooms = set(MAY_IMPORT) | {"bench", "tests", "examples"}
    wrong = {
        str(source.relative_to(ROOT)): sorted(bad)
        for source in sources
        if (bad := (imported_folders(source) & rooms) - MAY_IMPORT[folder] - {folder})
    }
    assert not wrong, f"{folder} may import only {sorted(MAY_IMPORT[folder])}: {wrong}"


def test_models_import_torch_only() -> None:
    for source in (ROOT / "models").rglob("*.py"):
        others = imported_folders(source) & {"numpy", "pyarrow", "redis", "grpc", "kafka"}
        assert not others, f"{source.name} imports {others}: models know tensors only"


def test_no_pickle_anywhere() -> None:
    """torch.load, pickle and their kin execute what they read; checkpoints are safetensors and Arrow."""
    for folder in MAY_IMPORT:
        for source in (ROOT / folder).rglob("*.py"):
            assert "pickle" not in imported_folders(source), source
            calls = {
                ast.unparse(n.func)
                for n in ast.walk(ast.parse(source.read_text()))
                if isinstance(n, ast.Call)
            }
            assert not calls & {"torch.load", "torch.save"}, source


def test_no_registry_address_or_machine_path_is_committed() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    assert "http" not in constraints and " @ " not in constraints
