"""Page on the files of a checkpoint: every tensor of rich checkpoints is in its table, as it is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from livectr.cli import main
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.system.heap import loading

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "checkpoint.md"
TYPES = {"int64": "I64", "int32": "I32", "int16": "I16", "uint32": "U32", "uint8": "U8", "float32": "F32"}
TYPES |= {"float64": "F64"}


def documented() -> list[tuple[str, re.Pattern[str], set[str], str]]:
    """(kind, pattern of the name, types, shape) of each line of the page's table."""
    lines = re.findall(r"^\| (\w+) \| `([^`]+)` \| ([\w, ]+) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    assert len(lines) > 25
    found = []
    for kind, name, types, shape in lines:
        pattern = re.escape(name)
        for place in re.findall(r"\\{\w+\\}", pattern):
            pattern = pattern.replace(place, r"[^-]+" if name.count("-") else ".+")
        found.append((kind, re.compile(pattern), {TYPES[one] for one in types.split(", ")}, shape.strip()))
    return found


def tensors(root: Path) -> list[tuple[str, str, str, list[int]]]:
    """(kind, name, type, shape) of every tensor of the newest generation."""
    newest = max(root.glob("gen-*/MANIFEST.json"))
    manifest = json.loads(json.loads(newest.read_text())["body"])
    text = PAGE.read_text()
    assert all(f"`{field}`" in text for field in manifest), manifest.keys()
    found = []
    for entry in manifest["files"]:
        if not entry["path"].endswith(".safetensors"):  # the order log: lines of text
            continue
        with safe_open(root / entry["path"], "numpy") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                part = file.get_slice(name)
                found.append((entry["kind"], name, part.get_dtype(), part.get_shape()))
    return found


def fits(shape: str, actual: list[int]) -> bool:
    """Tell if a shape is as documented: numbers are exact, letters any number."""
    if shape == "…":
        return True
    wanted = [one for one in shape.strip("[]").split(", ") if one]
    exact = all(not word.isdigit() or int(word) == size for word, size in zip(wanted, actual, strict=False))
    return len(wanted) == len(actual) and exact


def rich(logs: str, *, delayed: str | None) -> tuple[Pipeline, set[str]]:
    """Pipeline whose checkpoint has nearly every kind of tensor, and these kinds."""
    with loading():
        from livectr import Table, TablePolicy, counts, label_join
        from livectr.models import LR
    made = load_pipeline(ROOT / "examples" / "display_ads" / "pipeline.py")
    kinds = {"tables", "dense", "source", "statistics", "items", "policies", "drift"}
    if delayed is None:
        policies = {
            "user": TablePolicy(admit_after=2, max_rows=300, evict="lfu"),
            "ad": TablePolicy(max_age="30d"),
        }
        return replace(made, policies=policies, challengers={"lr": LR()}, shadows={}), kinds | {
            "contest",
            "gate",
        }
    streams: Any = made.log.impressions, made.log.clicks
    # Any whole number is a time; these are small, so that every impression finds its row.
    ads = Table("ads", key="ad_id", columns={"ad_id": "int64", "advertiser": "int64"}, time="advertiser")
    log = label_join(*streams, on="request_id", window="5s", wait="1s", delayed="es_dfm").lookup(ads)
    features = {"user": log.user_id, "ad": log.ad_id, "page": log.page, "advertiser": ads.advertiser}
    dense = counts(log, by="ad_id", over=("2s", "5s")).features("ad")
    made = Pipeline(log, sparse=features, dense=dense, rank=LR(), settings={"batch_size": 256})
    return made, kinds - {"statistics", "items", "policies"} | {"scores", "rows", "counters"}


@pytest.mark.parametrize("delayed", [None, "es_dfm"])
def test_every_tensor_of_a_checkpoint_is_documented(
    delayed: str | None, tmp_path: Path, redis_url: str
) -> None:
    with loading():
        from livectr.trainer.options import TrainOptions
        from livectr.trainer.run import train
    logs = f"file:{tmp_path / 'logs'}"
    assert main(["logs", "simulate", "--to", logs, "--fast", "--seconds", "12", "--rate", "500"]) == 0
    pipeline, kinds = rich(logs, delayed=delayed)
    options = TrainOptions(
        logs,
        until_end=True,
        checkpoint=str(tmp_path / "c"),
        publish=redis_url if delayed is None else None,
        namespace="checkpoint-page",
        batch_size=512,
        batch_ramp=256,
        max_steps=None if delayed is None else 12,
        threads=1,
    )
    train(pipeline, options)
    found, lines = tensors(tmp_path / "c"), documented()
    assert kinds <= {kind for kind, *_ in found}
    for kind, name, type_, shape in found:
        places = [line for line in lines if line[0] == kind and line[1].fullmatch(name)]
        assert places, f"{kind}: {name} {type_} {shape} is not on the page"
        assert any(type_ in line[2] and fits(line[3], shape) for line in places), (kind, name, type_, shape)
