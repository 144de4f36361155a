"""docs/models.md lists every model, with the bytes that the models have."""

from __future__ import annotations

import re
from pathlib import Path

from livectr import models
from livectr.models import ModelConfig

PAGE = (Path(__file__).parent.parent.parent / "docs" / "models.md").read_text()
ROW = re.compile(r"^\| \[(\w+)\]\(#(\w+)\)( \w+)? \|[^|]*\|[^|]*\| ([\d,]+) \|", re.MULTILINE)


def test_every_model_has_a_row_and_a_section() -> None:
    exported = {
        name
        for name in models.__all__
        if isinstance(kind := getattr(models, name), type) and issubclass(kind, ModelConfig)
    } - {"ModelConfig"}
    rows = [(name, anchor) for name, anchor, _, _ in ROW.findall(PAGE)]
    assert {name.lower() for name, _ in rows} == {name.lower() for name in exported}
    sections = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
    for name, anchor in rows:
        assert anchor == name.lower() and name in sections, name


def test_bytes_are_the_models() -> None:
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "sizes =" in b]
    names: dict[str, dict[str, int]] = {}
    exec(compile(block, "docs/models.md", "exec"), names)
    reported = {name + kind: int(bytes_.replace(",", "")) for name, _, kind, bytes_ in ROW.findall(PAGE)}
    assert reported == names["sizes"]
