"""The walls of the house: which folder and room may import which, and no cycles."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("system", "kernels", "protos", "store", "client", "models", "ingest", "trainer", "serving")
"""Links in `livectr`, so that everything is imported as livectr.…"""

MAY_IMPORT = {
    "system": set(),
    "kernels": {"system"},
    "protos": set(),
    "store": {"system"},
    "client": {"protos", "system"},
    "models": {"kernels", "system"},
    "ingest": {"kernels", "system"},
    "trainer": {"ingest", "models", "kernels", "store", "system"},
    "serving": {"client", "ingest", "models", "kernels", "protos", "store", "system"},
    "livectr": {"client", "ingest", "models", "kernels", "protos", "store", "system", "trainer", "serving"},
}

ORDER = {
    "kernels": "runtime keys operators extract row table tiers online gpu_table stream protobuf "
    "network request",
    "ingest": "limits metrics language operators plan pipeline chunks addresses extract dead_letters "
    "decode sources join hints materialized common_features content drift",
    "trainer": "telemetry step_settings warm_parts keep_rule ramp options process host_copies groups "
    "feature_parts comm setup part drift counts placement content tables des finite checkpoint main_step "
    "learner publish stream delayed position_bias quality carry holds progress parts commit_state "
    "change_marks schedule commits stages unlearned build report run",
    "serving": "front errors status_details deadlines limits canary explore options tracing metrics calls "
    "reply pauses grpc_health probes tls access connections version request served score native server roles "
    "sides describe workers app",
    "livectr": "checkout console evaluation local ops prebuilt secrets config simulator demo library logs "
    "analysis guess operator_page values_page versions inspection plan check verify up status rollout "
    "commands cli",
}
"""Rooms and files of a folder; each imports from itself and from those to its left."""

WALKS = ("An impression", "A row", "A request")
"""Walks of docs/architecture.md."""


@cache
def sources(folder: str) -> tuple[Path, ...]:
    found = sorted(p for p in (ROOT / folder).rglob("*.py") if "_pb2" not in p.name)
    assert found, f"{folder}/ holds no module"
    return tuple(found)


def name_of(source: Path) -> str:
    """trainer/des/step.py → livectr.trainer.des.step"""
    parts = source.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(("livectr", *parts) if parts[0] in FOLDERS else parts)


@cache
def modules() -> dict[str, Path]:
    return {name_of(source): source for folder in MAY_IMPORT for source in sources(folder)}


@cache
def imports(source: Path, *, lazy: bool = True) -> frozenset[str]:
    """Full names that a module imports; without `lazy` only those that are imported when it is."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                assert child.level == 0, f"{source}: import by the full name"
                names = {f"{child.module}.{alias.name}" for alias in child.names}
                found.update(names & modules().keys())
                if not names <= modules().keys():
                    found.add(child.module)
            deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            )
            if lazy or not deferred:
                visit(child)

    visit(ast.parse(source.read_text()))
    return frozenset(found)


def folder_of(module: str) -> str:
    """livectr.trainer.run → trainer; livectr.config → livectr"""
    first, *rest = module.split(".")
    return rest[0] if first == "livectr" and rest and rest[0] in FOLDERS else first


def room_of(module: str) -> str:
    """livectr.trainer.des.step → des; livectr.trainer.run → run; livectr.config.field → config"""
    parts = module.split(".")
    return ".".join(parts[2:3] if folder_of(module) in FOLDERS else parts[1:2])


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_imports_point_one_way(folder: str) -> None:
    known = set(MAY_IMPORT) | {"bench", "tests", "examples"}
    wrong = {
        str(source.relative_to(ROOT)): sorted(bad)
        for source in sources(folder)
        if (bad := {folder_of(name) for name in imports(source)} & known - MAY_IMPORT[folder] - {folder})
    }
    assert not wrong, f"{folder} may import only {sorted(MAY_IMPORT[folder])}: {wrong}"


@pytest.mark.parametrize("folder", sorted(ORDER))
def test_rooms_import_downwards(folder: str) -> None:
    order = ORDER[folder].split()
    rooms = {room for source in sources(folder) if (room := room_of(name_of(source)))} - {"__main__"}
    assert rooms == set(order), f"{folder}/: ORDER and the folder differ in {rooms ^ set(order)}"
    upward = [
        f"{name_of(source)} imports {other}"
        for source in sources(folder)
        if (room := room_of(name_of(source))) in order
        for other in imports(source)
        if folder_of(other) == folder and room_of(other) and order.index(room_of(other)) > order.index(room)
    ]
    assert not upward, upward


def test_benchmarks_do_not_import_commands() -> None:
    """`livectr bench` imports the benchmarks of a checkout; the other direction would be a cycle."""
    wrong = [
        f"{name_of(source)} imports {name}"
        for source in sources("bench")
        for name in imports(source)
        if name.split(".")[1:2] in (["commands"], ["cli"])
    ]
    assert not wrong, wrong


def test_no_import_cycles() -> None:
    graph = {name: imports(path) & modules().keys() - {name} for name, path in modules().items()}
    while leaves := {name for name, needs in graph.items() if not needs & graph.keys()}:
        graph = {name: needs for name, needs in graph.items() if name not in leaves}
    in_cycles = {name for name in graph if name in reachable(graph, name)}
    assert not in_cycles, sorted(in_cycles)


def test_the_reference_scorer_knows_nothing_of_serving() -> None:
    """`livectr query verify` judges servers by it."""
    graph = {name: imports(path, lazy=False) & modules().keys() for name, path in modules().items()}
    found = {n for n in reachable(graph, "livectr.library.scoring") if n.startswith("livectr.serving.")}
    assert not found, sorted(found)


def reachable(graph: dict[str, frozenset[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen and name in graph:
            seen.add(name)
            waiting += graph[name]
    return seen


def every_source() -> Iterator[Path]:
    for folder in (*MAY_IMPORT, "bench", "tests", "examples"):
        yield from sources(folder)


def test_everything_is_imported_as_livectr() -> None:
    """An installed LiveCTR is one package; bare names are those of other people's packages."""
    for folder in FOLDERS:
        link = ROOT / "livectr" / folder
        assert link.is_symlink() and link.resolve() == (ROOT / folder).resolve()
    bare = [
        f"{source.relative_to(ROOT)}: {name}"
        for source in every_source()
        for name in imports(source)
        if name.split(".")[0] in FOLDERS
    ]
    assert not bare, bare


@pytest.mark.parametrize("walk", WALKS)
def test_walks_name_files(walk: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split(f"\n### {walk}: ")[1].split("\n#")[0]
    steps = re.findall(r"^\| (\d+) \| `([^`]+)` \|", section, re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    missing = [name for _, name in steps if not (ROOT / name).is_file()]
    assert steps and not missing, missing


def test_models_import_torch_only() -> None:
    for source in sources("models"):
        others = {name.split(".")[0] for name in imports(source)} & {
            "numpy",
            "pyarrow",
            "redis",
            "grpc",
            "kafka",
        }
        assert not others, f"{source.name} imports {others}: models know tensors only"


def test_no_pickle_anywhere() -> None:
    """torch.load, pickle and their kin execute what they read; checkpoints are safetensors and Arrow."""
    for folder in MAY_IMPORT:
        for source in sources(folder):
            assert "pickle" not in {name.split(".")[0] for name in imports(source)}, source
            calls = {
                ast.unparse(n.func)
                for n in ast.walk(ast.parse(source.read_text()))
                if isinstance(n, ast.Call)
            }
            assert not calls & {"torch.load", "torch.save"}, source
            if source.name != "tensors.py":
                assert "safetensors.numpy.save" not in calls, f"{source}: views have other bytes; use packed"


def test_nothing_forks() -> None:
    """A child forked beside the threads of gRPC may hang or crash; livectr/system/children.py.

    The supervisor of a server's workers has no threads, and asks before it forks.
    """
    for folder in (*MAY_IMPORT, "bench"):
        for source in sources(folder):
            if source == ROOT / "serving/workers.py":
                continue
            text = source.read_text()
            assert not re.search(r"preexec_fn=|\bos\.fork|multiprocessing", text), source


def test_no_address_is_of_a_temporary() -> None:
    """An array without a name is freed before compiled code reads it, and a thread may take its memory."""
    wrong = [
        f"{source.relative_to(ROOT)}:{node.lineno}"
        for folder in MAY_IMPORT
        for source in sources(folder)
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("address", "addresses")
        and any(isinstance(argument, ast.Call) for argument in node.args)
    ]
    assert not wrong, wrong


def test_no_test_module_is_imported() -> None:
    """Helpers that tests share lie beside them; programs that tests start as text import from there, too."""
    pattern = re.compile(r"\b(?:from|import) tests(?:\.\w+)*(?:\.| import (?:\(\s*)?(?:\w+,\s*)*)test_\w+")
    wrong = {
        str(source.relative_to(ROOT)): found
        for source in sources("tests")
        if (found := pattern.findall(source.read_text()))
    }
    assert not wrong, wrong


def test_tests_wait_in_one_way() -> None:
    """`until` of tests/waiting.py ends with the test, and says what it saw."""
    wrong = [
        f"{source.relative_to(ROOT)}:{node.lineno}"
        for source in sources("tests")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.While) and [ast.unparse(part)[:11] for part in node.body] == ["time.sleep("]
    ]
    assert not wrong, wrong


def test_metrics_are_read_from_their_page() -> None:
    """`metric_value` of tests/metrics_page.py reads what Prometheus gets, and no insides of its client."""
    wrong = [str(source) for source in sources("tests") if re.search(r"\._value\.get\b", source.read_text())]
    assert not wrong, wrong


def test_no_large_file_is_committed() -> None:
    """A wheel or a log that lies in the checkout is no source."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    there = [name for name in files.stdout.split("\0") if (ROOT / name).is_file()]
    assert [name for name in there if (ROOT / name).stat().st_size > 1 << 18] == []


def test_no_registry_address_or_machine_path_is_committed() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    assert "http" not in constraints and " @ " not in constraints
