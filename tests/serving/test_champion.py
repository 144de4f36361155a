"""A challenger is promoted while servers answer: each reply is the champion's of its version, none fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import redis
import torch

from livectr.client.clients import PreRankClient, RankClient, RecommendClient, RecommendItems
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language import dtypes
from livectr.ingest.pipeline import Pipeline
from livectr.inspection.show import show_checkpoint, show_pipeline, show_published
from livectr.kernels.table.layout import Values
from livectr.library.scoring import score
from livectr.serving.app import App
from livectr.store.layout import Keyspace, decode_rows
from livectr.store.manifest import VersionManifest
from livectr.trainer.build import build
from livectr.trainer.comm.collectives import connect
from livectr.trainer.des.step import DesStep
from livectr.trainer.options import TrainOptions
from livectr.trainer.parts import Parts
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.version import VersionSnapshot
from livectr.trainer.run import Training
from tests.metrics_page import metric_value
from tests.trainer.planted_log import CARDINALITY, contest_pipeline, write_log
from tests.waiting import until

EXAMPLES, STEPS = 9_000, 90
UNSEEN = 77
"""Value of a field in no example: its row has the initial values of its place in the trainer's row."""
CONTEXT = {"user": 5, "C1": 3, "C3": UNSEEN, "C4": 11}
ITEMS = list(range(CARDINALITY[1]))


def columns(pipeline: Pipeline) -> pa.RecordBatch:
    """Plan roots of the probe: CONTEXT with every item."""
    values = {f"planted.{name}": [value] * len(ITEMS) for name, value in CONTEXT.items()}
    values |= {"planted.item": ITEMS, "items.C2": ITEMS}
    roots = pipeline.plan.roots
    arrays = [pa.array(values[root.name], dtypes.arrow_type(root.dtype)) for root in roots]
    return pa.RecordBatch.from_arrays(arrays, names=[root.name for root in roots])


@torch.no_grad()
def logits(pipeline: Pipeline, step: DesStep, role: str) -> np.ndarray:
    """Logits of the probe by the trainer's tables and network."""
    features = Extractor(pipeline.plan)(columns(pipeline))
    (values,) = step.front.infer(features.offsets, features.keys, features.rows)
    part = torch.from_numpy(values)[..., step.spec.slices[role]]
    return np.asarray(step.models[role](part, torch.from_numpy(features.dense)).numpy())


@dataclass
class Run:
    """Trainer in this process, which notes the logits of the probe at every version that it begins.

    Attributes:
        expected: version → (champion, its logits f32[n], logits of the pre-rank model f32[n]).
    """

    pipeline: Pipeline
    parts: Parts
    training: Training
    expected: dict[int, tuple[str, np.ndarray, np.ndarray]] = field(default_factory=dict)

    def note(self, version: int, snapshot: VersionSnapshot) -> None:
        step, champion = self.parts.step, snapshot.champion
        rank, prerank = (logits(self.pipeline, step, role) for role in (champion, "prerank"))
        self.expected[version] = champion, rank, prerank


@contextmanager
def trainer(
    pipeline: Pipeline, source: str, url: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> Iterator[Run]:
    options = TrainOptions(
        source,
        until_end=True,
        batch_size=64,
        batch_ramp=0,
        publish=url,
        min_examples=0,
        publish_interval_s=0.1,
        checkpoint=str(checkpoint),
        **more,
    )
    begin = Publisher.begin
    with connect() as collectives, ExitStack() as resources:
        parts, stages = build(pipeline, options, collectives, resources)
        # slow enough for some versions of each champion

        def slowly() -> bool:
            time.sleep(0.01)
            return False

        run = Run(pipeline, parts, Training(parts, stages, slowly))

        def noting(self: Publisher, snapshot: VersionSnapshot, **numbers: int) -> None:
            run.note(self.lineage.number + 1, snapshot)
            begin(self, snapshot, **numbers)

        monkeypatch.setattr(Publisher, "begin", noting)
        yield run
        monkeypatch.setattr(Publisher, "begin", begin)


class Requests:
    """Client that asks all the time, and keeps its replies and failures."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.replies: list[Any] = []
        self.failures: list[BaseException] = []
        self._ask, self._stop = ask, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.replies.append(self._ask())
            except BaseException as error:
                self.failures.append(error)
            time.sleep(0.002)

    def __enter__(self) -> Requests:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def check(reply: Any, expected: dict[int, tuple[str, np.ndarray, np.ndarray]]) -> str:
    """Compare a rank reply with the reference of its version; returns the champion."""
    champion, want, _ = expected[reply.version]
    pctr = 1 / (1 + np.exp(-want.astype(np.float64)))
    np.testing.assert_allclose(reply.pctr, pctr[list(reply.index)], atol=1e-6)
    assert not reply.degraded
    model = {"rank": "LR/", "fm": "fm:FM/"}[champion]
    assert reply.model.startswith(model)
    return champion


@pytest.mark.full
@pytest.mark.parametrize("values", ["fp32", "bf16"])
def test_a_promoted_challenger_is_served_without_an_outage(
    tmp_path: Path,
    redis_url: str,
    client: redis.Redis,
    serve: Callable[..., App],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    values: Values,
) -> None:
    pipeline = contest_pipeline(prerank=True, row_values=values)
    source, checkpoint = write_log(tmp_path / "logs", EXAMPLES), tmp_path / "checkpoint"
    with trainer(pipeline, source, redis_url, checkpoint, monkeypatch, max_steps=20) as run:
        run.training.run()
        expected = dict(run.expected)
    rank, prerank = serve("rank", pipeline), serve("prerank", pipeline)
    with RankClient(rank.server.address) as ranks, PreRankClient(prerank.server.address) as towers:
        before = ranks.rank(CONTEXT, {"item": ITEMS})
        assert check(before, expected) == "rank"
        assert ranks.describe().champion == "rank" and ranks.describe().model == before.model
        assert metric_value("livectr_served_champion", model="rank", side="stable") == 1
        with (
            trainer(pipeline, source, redis_url, checkpoint, monkeypatch, max_steps=STEPS) as run,
            Requests(lambda: ranks.rank(CONTEXT, {"item": ITEMS})) as of_rank,
            Requests(
                lambda: towers.prerank({"user": 5, "C1": 3, "C3": UNSEEN}, ITEMS, len(ITEMS))
            ) as of_towers,
        ):
            report = run.training.run()
            last = max(run.expected)
            until(lambda: rank.follower.current.number == prerank.follower.current.number == last)  # type: ignore[union-attr]
            enough = len(of_rank.replies) + 5, len(of_towers.replies) + 5
            until(lambda: (len(of_rank.replies), len(of_towers.replies)) >= enough)
            expected |= run.expected
            trained = run.parts.step
            assert not of_rank.failures and not of_towers.failures
            champions = [check(reply, expected) for reply in of_rank.replies]
            for chosen in of_towers.replies:
                want = expected[chosen.version][2]
                np.testing.assert_allclose(chosen.score, want[list(chosen.index)], atol=1e-5)
            assert report.contest["champion"] == "fm" and report.contest["changes"] == 1
            switched = champions.index("fm")
            assert switched > 0 and set(champions[switched:]) == {"fm"}
            assert ranks.describe().champion == "fm" and ranks.describe().model.startswith("fm:FM/")
            assert [
                metric_value("livectr_served_champion", model=name, side="stable") for name in ("rank", "fm")
            ] == [0, 1]
            published_rows_are_those_of(trained, client)
        with RecommendClient(serve("recommend", pipeline).server.address) as funnel:
            best = funnel.recommend(CONTEXT, 5, len(ITEMS), items=RecommendItems(ITEMS))
            assert best.model.startswith("fm:FM/") and funnel.describe().champion == "fm"
            again = ranks.rank(CONTEXT, {"item": list(best.ids.values)})
            assert list(again.pctr) == list(best.pctr) and list(again.index) == list(range(5))
    # the library scores with the champion of the checkpoint
    rows = [{**CONTEXT, "item": item} for item in ITEMS]
    pctr = score(pipeline, checkpoint, rows, tables={"items": [{"item": i, "C2": i} for i in ITEMS]})
    np.testing.assert_allclose(
        pctr, 1 / (1 + np.exp(-logits(pipeline, trained, "fm").astype(float))), atol=1e-6
    )
    capsys.readouterr()
    show_published(redis_url, "livectr")
    show_checkpoint(checkpoint)
    show_pipeline(pipeline, rows=64)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("│ champion │ fm │") == 2 and "│ challenger fm │ FM │" in shown, shown
    assert "a challenger is promoted by 1.00% less log loss over 2,000 examples" in shown


def published_rows_are_those_of(step: DesStep, client: redis.Redis) -> None:
    """All rows, of rows that were not touched since the change as well, hold the champion's and the towers'
    values alone."""
    manifest = VersionManifest.from_json(client.get("{livectr}:manifest"))  # type: ignore[arg-type]
    assert (manifest.champion, [name for name, _ in manifest.segments]) == (
        "fm",
        [s.name for s in step.spec.layout.segments if s.name.startswith(("prerank.", "fm."))],
    )
    width = {role: part.stop - part.start for role, part in step.spec.slices.items()}
    assert manifest.dim == width["fm"] + width["prerank"] != width["rank"] + width["prerank"]
    for name, table in step.tables.items():
        keys, rows = table.export(state=False)
        assert len(keys) == manifest.tables[name]
        slots = client.mget(Keyspace().rows(manifest.row_set, name, keys))
        served, status = decode_rows(slots, manifest.version, manifest.dim)  # type: ignore[arg-type]
        assert not status.any()
        want = np.concatenate([rows[:, step.spec.slices[role]] for role in ("prerank", "fm")], axis=1)
        assert served.tobytes() == want.tobytes()
