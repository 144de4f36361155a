"""The parts of bench.images; one run on two ranks, all else in this process, on a few small images."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.images import scaling, step_time, sweep, table_2
from bench.images.baselines import references
from bench.images.store import random_features, random_store
from bench.images.workload import CLICKED_IMAGES, IMAGE
from bench.sections import section
from livectr.ingest.common_features import CommonFeatures
from livectr.trainer.comm.collectives import Collectives


@pytest.fixture(scope="module")
def trained() -> table_2.Found:
    """All ways to train, on two ranks."""
    return table_2.measured(quick=True)[1]


def test_a_batch_is_the_papers_in_small() -> None:
    """DICM §7.3: 60,000 examples, 32.6 behaviors a sample, 320,000 images and 1.4 million other IDs."""
    log = table_2.PAPER
    batches = [log.batches(rank, 4, 1)[0] for rank in range(4)]
    fields = log.fields.index(CLICKED_IMAGES), log.fields.index(IMAGE)
    images = sum(len(references(batch, fields, log.common)) for batch in batches)
    scale = 60_000 / log.batch
    assert images * scale == pytest.approx(320_000, rel=0.03)
    keys = 0
    for batch in batches:
        assert isinstance(batch.features, CommonFeatures) and len(batch.label) == log.batch // 4
        lengths = batch.features.common.host().lengths[fields[0]]
        assert lengths[batch.features.index].mean() == pytest.approx(32.6, rel=0.05)
        keys += len(batch.features.common.keys) + len(batch.features.own.keys)
    assert (keys - images) * scale == pytest.approx(1_400_000, rel=0.1)
    assert len(log.fields) - 2 == 25


def test_ranks_have_examples_of_their_own() -> None:
    log = table_2.QUICK.ads
    (first, second), (again, _) = log.batches(0, 2, 2), log.batches(0, 2, 2)
    (other,) = log.batches(1, 2, 1)
    assert (first.label == again.label).all()
    assert (first.label != second.label).any() and (first.label != other.label).any()


def test_features_of_an_image_are_its_own(tmp_path: Path) -> None:
    rows = random_features(300, 16, seed=1)
    assert len(np.unique(rows, axis=0)) == 300 and (rows >= 0).all()
    store = random_store(tmp_path, 300, 16)
    assert len(store) == 300 and store.read(np.array([299, 7]))[1].all()


@pytest.mark.full
def test_all_ways_train_the_same_model(trained: table_2.Found) -> None:
    table_2.check_same(trained)
    assert len(trained.costs) == 5
    ours = trained.costs["AMS"]
    wrong = replace(ours, losses=[loss + 0.01 for loss in ours.losses])
    with pytest.raises(RuntimeError, match="AMS"):
        table_2.check_same(replace(trained, costs=trained.costs | {"worker float16": wrong}))


@pytest.mark.full
def test_what_is_sent_of_images(trained: table_2.Found) -> None:
    """Store-in-server sends features where AMS sends vectors and their gradients; the rest is the same."""
    costs, width = trained.costs, table_2.QUICK.width
    assert costs["worker float16"].images == costs["worker float32"].images == 0
    half, whole = costs["server float16"].images, costs["server float32"].images
    fetched = (whole - half) / (2 * width)
    asking = half - fetched * 2 * width
    assert costs["AMS"].images == pytest.approx(asking + fetched * 2 * 4 * table_2.OUT)
    bits = (table_2.QUICK.ads.images - 1).bit_length()
    assert fetched * bits / 8 <= asking <= fetched * bits / 8 + 64
    assert len({cost.ids for cost in costs.values()}) == 1
    assert len({cost.replicas for cost in costs.values()}) == 1


@pytest.mark.full
def test_what_is_stored(trained: table_2.Found) -> None:
    size = table_2.QUICK
    refers, unique = table_2.stream(size)
    assert unique * size.batches <= size.ads.images
    for dtype, each in (("float16", 2 * size.width), ("float32", 4 * size.width)):
        assert trained.stored_reference[dtype] == pytest.approx(each, rel=0.02)
        worker, server, ams = table_2.lines(size, trained, dtype)
        assert worker.worker - server.worker == pytest.approx(refers * each, rel=0.02)
        assert ams.server == pytest.approx(unique * (2 * size.width + 16), rel=0.05)
    assert table_2.table([worker, server, ams], "float32")["lines"][3][0] == "AMS"  # type: ignore[index]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads of a busy machine wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_step_is_measured(tmp_path: Path) -> None:
    size = step_time.QUICK
    random_store(tmp_path, size.log.images, size.width)
    found = step_time.measure(size, Collectives(), tmp_path)
    assert min(found.seconds.values()) > 0 and len(found.seconds) == 2 * len(step_time.BASICS)
    assert 0 < found.unique < found.references
    assert min(found.parts.values()) > 0
    rows = step_time.rows_of(size, 1, found)
    assert {row["goal"] for row in rows[: len(step_time.BASICS)]} == {step_time.GOAL}


@pytest.mark.usefixtures("one_thread")
def test_scaling_by_the_model(tmp_path: Path) -> None:
    size = scaling.QUICK
    random_store(tmp_path, size.log.images, size.width)
    alone = scaling.measure(size, Collectives(), tmp_path)
    assert alone.cpu > 0 and not sum(alone.sent.values())
    two = scaling.Found(2, 1.0, 1.0, {"vectors": 1e6, "scores": 1e3})
    assert scaling.sent_by(two, 2) == pytest.approx(1.001e6)
    assert scaling.sent_by(two, 1000) == pytest.approx(1.998e6 + 999e3)
    silent = replace(two, sent={})
    assert scaling.training(alone, silent, 5) / scaling.training(alone, silent, 40) == pytest.approx(8)
    assert len(scaling.measured_rows(size, [alone, two])) == 3
    assert all(0 <= float(str(row["ours"])) <= 100 for row in scaling.model_rows(size, [alone, two]))


@pytest.mark.usefixtures("one_thread")
def test_a_sweep_has_its_limits() -> None:
    swept, products, memory, million = sweep.rows(quick=True)
    assert swept["peer"] == min(float(str(limit["ours"])) for limit in (products, memory))
    assert million["ours"] == pytest.approx(1e6 / float(str(swept["ours"])))


def test_the_page_shows_tables() -> None:
    machine = {"cores": 2, "processor": "p", "torch": "t", "gpu": None}
    table = {"title": "Bytes", "lines": [["strategy", "all"], ["AMS", "1M"]]}
    text = section({"name": "images", "commit": "c", "hardware": machine, "rows": [], "tables": [table]})
    assert "Bytes:\n\n| strategy | all |\n|---|---|\n| AMS | 1M |" in text
