"""The library of fp32 products: chosen by rank 0, kept by the checkpoint, told by log and report."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from livectr.models import DeepFM
from livectr.models.library import suited
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint import arithmetic
from livectr.trainer.checkpoint.manifest import MANIFEST, Manifest
from livectr.trainer.options import TrainOptions
from livectr.trainer.run import train
from livectr.trainer.step_settings import Products
from tests.ranks import run_ranks
from tests.trainer.ad_logs import ad_pipeline, write_files

Learn = Callable[..., str]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), 8_000)


@pytest.fixture
def learn(source: str, tmp_path: Path) -> Learn:
    """Learns up to a step in a folder; gives the library that the report names."""

    def run(folder: str, steps: int, products: Products = "auto") -> str:
        options = TrainOptions(
            source, until_end=True, batch_size=1024, batch_ramp=0, max_steps=steps, products=products,
            checkpoint=str(tmp_path / folder), report=str(tmp_path / "report.json"),
        )  # fmt: skip
        train(replace(ad_pipeline(), rank=DeepFM(dim=16, hidden=(64, 32))), options)
        return str(json.loads((tmp_path / "report.json").read_text())["products"])

    return run


def newest(root: Path) -> Manifest:
    return Manifest.from_json(max(root.glob(f"gen-*/{MANIFEST}")).read_bytes())


def networks(root: Path) -> list[str]:
    """Digests of the networks in the newest generation."""
    return [file.sha256 for file in newest(root).files if file.kind == "dense"]


def test_a_first_run_has_the_library_of_this_cpu(learn: Learn, tmp_path: Path) -> None:
    assert learn("c", 2) == suited() == newest(tmp_path / "c").products


def test_a_resumed_run_continues_with_its_library(
    learn: Learn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On a CPU whose own library is another, too."""
    other: Products = "torch" if suited() == "packed" else "packed"
    assert learn("c", 2, other) == other
    assert learn("c", 4) == other == newest(tmp_path / "c").products
    assert not any("last bits" in message for message in caplog.messages)
    assert learn("c", 6, suited()) == suited()
    assert any(
        f"products is {suited()}, but the checkpoint's steps had {other}" in m for m in caplog.messages
    )


def test_a_broken_run_equals_a_whole_one(learn: Learn, tmp_path: Path) -> None:
    for products in ("torch", "packed"):
        learn(f"whole {products}", 4, products)
        learn(f"broken {products}", 2, products)
        learn(f"broken {products}", 4)
        assert networks(tmp_path / f"broken {products}") == networks(tmp_path / f"whole {products}")
    assert networks(tmp_path / "whole torch") != networks(tmp_path / "whole packed"), "neither is used"


def test_the_log_tells_rates_and_what_is_slow(
    learn: Learn, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "products is packed, but torch was faster in a measurement: compare products=torch"
    monkeypatch.setattr(arithmetic, "rates", lambda: {"packed": 60.0, "torch": 100.0})
    with caplog.at_level("INFO"):
        learn("busy", 1, "packed")
        assert slow not in caplog.messages, "other work on the machine does as much"
        monkeypatch.setattr(arithmetic, "rates", lambda: {"packed": 40.0, "torch": 100.0})
        learn("slow", 1, "packed")
    assert "fp32 products: 40 GFLOP/s packed, 100 GFLOP/s by torch" in caplog.messages
    assert slow in caplog.messages


def test_ranks_on_different_cpus_have_one_library(tmp_path: Path) -> None:
    run_ranks(2, "tests.trainer.products_worker", str(tmp_path))
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["packed", "packed"]


def test_an_unknown_library_is_refused() -> None:
    with pytest.raises(ConfigError, match="products is 'mkl', but must be auto or torch or packed"):
        TrainOptions("file:log", products="mkl")  # type: ignore[arg-type]


def test_the_cpu_chooses_for_a_checkpoint_of_an_older_program(learn: Learn, tmp_path: Path) -> None:
    learn("c", 1, "packed")
    for file in (tmp_path / "c").glob(f"gen-*/{MANIFEST}"):
        body = json.loads(json.loads(file.read_bytes())["body"])
        assert body.pop("products") == "packed"
        text = json.dumps(body)
        file.write_text(json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "body": text}))
    assert newest(tmp_path / "c").products == ""
    assert learn("c", 2) == suited()
