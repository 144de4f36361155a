"""Features keep their meaning from release to release: checkpoints and published versions know them by it.

`meanings.json` has the meanings of the last release. A test that fails here means that users' checkpoints,
published versions and running statistics no longer belong to their pipelines. An operator that computes
something else takes another name; new expressions are added with `python -m tests.ingest.test_meanings`.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from livectr.ingest.language.expr import Expr
from livectr.ingest.pipeline import load_pipeline
from tests.ingest.operator_expressions import EXPRESSIONS
from tests.ingest.statistics_expressions import EXPRESSIONS as STATISTICS
from tests.ingest.string_expressions import EXPRESSIONS as TEXT

FILE = Path(__file__).with_name("meanings.json")
EXAMPLES = Path(__file__).parents[2] / "examples"


def _of(nodes: Iterable[Expr]) -> str:
    return hashlib.sha256(repr([node.meaning for node in nodes]).encode()).hexdigest()[:16]


def meanings() -> dict[str, str]:
    """Operator, or example's folder → digest of the meanings of its expressions, or its fingerprint."""
    operators = {name: _of(nodes) for name, nodes in (EXPRESSIONS | TEXT | STATISTICS).items()}
    pipelines = {
        file.parent.name: load_pipeline(file).fingerprint for file in sorted(EXAMPLES.glob("*/pipeline.py"))
    }
    return operators | pipelines


def test_meanings_are_those_of_the_last_release() -> None:
    kept = json.loads(FILE.read_text())
    found = meanings()
    changed = {name for name, meaning in kept.items() if found.get(name) != meaning}
    assert not changed, f"users' checkpoints would belong to another pipeline: {changed}"
    new = found.keys() - kept.keys()
    assert not new, f"run `python -m tests.ingest.test_meanings`, which adds {new}"


def _below(nodes: Iterable[Expr]) -> Iterable[Expr]:
    for node in nodes:
        yield node
        yield from _below(node.inputs)


def test_nodes_of_other_code_have_another_meaning() -> None:
    written = [node for nodes in (EXPRESSIONS | TEXT | STATISTICS).values() for node in nodes]
    for file in EXAMPLES.glob("*/pipeline.py"):
        plan = load_pipeline(file).plan
        written += [*plan.sparse.values(), *plan.dense.values()]
    nodes = {node.digest: node for node in _below(written)}
    assert len({node.meaning for node in nodes.values()}) == len(nodes) > 300


if __name__ == "__main__":
    FILE.write_text(json.dumps(meanings(), indent=1) + "\n")
