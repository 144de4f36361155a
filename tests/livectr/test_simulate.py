"""The simulated market: the same seed gives the same logs, and the ledger describes them."""

import io
import json
import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaConsumer, TopicPartition
from PIL import Image

from livectr.cli import main
from livectr.ingest.addresses import kafka_servers
from livectr.local.kafka import Broker
from livectr.simulator.delays import ClickDelays
from livectr.simulator.ledger import LedgerTail, read_ledger
from livectr.simulator.records import png
from livectr.simulator.simulate import SimulateOptions, simulate
from livectr.simulator.traffic import TrafficOptions
from livectr.simulator.truth import AGE_BOUNDS, GENDERS, Truth, World, relevance
from livectr.system.errors import ConfigError
from livectr.trainer.quality.metrics import auc
from tests.trainer.redis_proxy import Proxy

WORLD = World(users=300, ads=40, ad_interval_s=2, ad_life=5, drift_s=60)
TRAFFIC = TrafficOptions(rate=1500, seconds=8, duplicates=0.02, late=0.05, broken=0.002)


def options(folder: Path, **more: object) -> SimulateOptions:
    values = dict(world=WORLD, traffic=TRAFFIC, real_time=False, ledger=str(folder / "ledger.arrows"))
    values["to"] = f"file:{folder / 'logs'}"
    return SimulateOptions(**{**values, **more})  # type: ignore[arg-type]


def lines(folder: Path, topic: str) -> dict[int, list[bytes]]:
    """Partition → its lines, in order."""
    found: dict[int, list[bytes]] = {}
    for path in sorted((folder / "logs" / topic).iterdir()):
        found.setdefault(int(path.name[:5]), []).extend(path.read_bytes().splitlines())
    return found


def sound(rows: list[bytes], *columns: str) -> list[dict[str, int]]:
    """Events that have the columns as integers."""
    events = []
    for row in rows:
        try:
            event = json.loads(row)
        except ValueError:
            continue
        if all(isinstance(event.get(column), int) for column in columns):
            events.append(event)
    return events


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    folder = tmp_path_factory.mktemp("market")
    return folder, simulate(options(folder))


@pytest.fixture(scope="module")
def broker_url() -> Iterator[str]:
    """A broker of our own: the simulator's topics have fixed names."""
    with Broker() as broker:
        yield broker.url


def test_the_same_seed_writes_the_same_bytes(market: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    folder, counts = market
    again = simulate(options(tmp_path))
    for path in folder.rglob("*.*"):
        assert path.read_bytes() == (tmp_path / path.relative_to(folder)).read_bytes(), path.name
    timing = ("seconds", "records_per_second")
    assert {k: v for k, v in again.items() if k not in timing} == {
        k: v for k, v in counts.items() if k not in timing
    }


def test_every_record_is_accounted_for(market: tuple[Path, dict[str, int]]) -> None:
    folder, counts = market
    impressions = [row for rows in lines(folder, "impressions").values() for row in rows]
    clicks = [row for rows in lines(folder, "clicks").values() for row in rows]
    assert len(impressions) + len(clicks) == counts["records"]
    good = sound(impressions, "user_id", "ts"), sound(clicks, "user_id", "ts")
    assert counts["records"] - len(good[0]) - len(good[1]) == counts["broken"] > 0
    for events, name in zip(good, ("impressions", "clicks"), strict=True):
        assert len({event["request_id"] for event in events}) == counts[name]
    twice = sum(len(events) - len({e["request_id"] for e in events}) for events in good)
    assert twice == counts["duplicates"] > 0


def test_events_of_a_user_share_a_partition_in_both_topics(market: tuple[Path, dict[str, int]]) -> None:
    folder, _ = market
    where: dict[int, set[int]] = {}
    for topic in ("impressions", "clicks"):
        for partition, rows in lines(folder, topic).items():
            for event in sound(rows, "user_id", "ts"):
                where.setdefault(event["user_id"], set()).add(partition)
    assert all(len(partitions) == 1 for partitions in where.values())
    assert len(set.union(*where.values())) == 4


def test_the_ledgers_labels_are_those_of_a_brute_force_join(market: tuple[Path, dict[str, int]]) -> None:
    """A click counts when neither its time nor that of a record before it is past the deadline."""
    folder, counts = market
    window = TRAFFIC.label_window_ms
    shown = {
        event["request_id"]: event["ts"]
        for rows in lines(folder, "impressions").values()
        for event in sound(rows, "user_id", "ts")
    }
    clicked = set()
    for rows in lines(folder, "clicks").values():
        mark = 0
        for event in sound(rows, "user_id", "ts"):
            mark = max(mark, event["ts"])
            if mark <= shown[event["request_id"]] + window:
                clicked.add(event["request_id"])
    table = read_ledger(folder / "ledger.arrows")
    assert table["request_id"].to_pylist() == sorted(shown)
    assert table["ts"].to_pylist() == [shown[i] for i in sorted(shown)]
    assert {i for i, y in zip(sorted(shown), table["label"].to_pylist(), strict=True) if y} == clicked
    late = counts["clicks"] - len(clicked)
    assert late >= counts["late_clicks"] > 0


def test_days_of_thin_traffic_are_made_in_long_ticks(tmp_path: Path) -> None:
    day = TrafficOptions(rate=0.05, seconds=86_400, label_window_ms=600_000, tick_ms=60_000)
    world = World(users=300, ads=40, ad_interval_s=21_600, ad_life=4)
    counts = simulate(options(tmp_path, world=world, traffic=day))
    table = read_ledger(tmp_path / "ledger.arrows")
    assert len(table) == counts["impressions"] > 3000
    ts = table["ts"].to_numpy() - day.start_ms
    assert 0 <= ts.min() < 600_000 and 85_800_000 < ts.max() < 86_400_000
    assert len(np.unique(ts % day.tick_ms)) > 3000, "events are all over a tick"


def test_clicks_of_an_ad_come_after_its_own_delay_which_drifts(tmp_path: Path) -> None:
    """Mean delays of ads in halves of the log, far below the window's cap, against the formula."""
    delays = ClickDelays(mean=0.02, spread=0.7, period_s=160)
    world = World(users=300, ads=8, ad_interval_s=3600, ad_life=4)
    traffic = TrafficOptions(rate=1500, seconds=80, label_window_ms=60_000, click_delays=delays, late=0.0)
    simulate(options(tmp_path, world=world, traffic=traffic, images=False, ledger=None))
    shown, clicked = (
        {e["request_id"]: e for rows in lines(tmp_path, topic).values() for e in sound(rows, "ts", "ad_id")}
        for topic in ("impressions", "clicks")
    )
    ad = np.array([clicked[request]["ad_id"] for request in clicked])
    ts = np.array([shown[request]["ts"] for request in clicked])
    delay_ms = np.array([clicked[request]["ts"] for request in clicked]) - ts
    half = (ts - ts.min()) * 2 // (np.ptp(ts) + 1)
    relative = delay_ms / (60_000 * delays.means(ad, ts))
    for number in np.unique(ad).tolist():
        for part in (0, 1):
            of = (ad == number) & (half == part)
            assert np.count_nonzero(of) > 200
            assert relative[of].mean() == pytest.approx(1, abs=4 / np.sqrt(np.count_nonzero(of)))
    first, second = (
        np.array([delay_ms[(ad == n) & (half == p)].mean() for n in np.unique(ad)]) for p in (0, 1)
    )
    assert first.max() / first.min() > 2 and np.abs(np.log(second / first)).max() > 0.5


def test_a_users_own_eye_is_not_the_segments() -> None:
    def spread(own: float) -> float:
        truth = Truth(World(image_effect=(0.0, 0.35, own)))
        segment = np.searchsorted(AGE_BOUNDS, truth.age, side="right") * len(GENDERS) + truth.gender
        eyes = [truth._eye[segment == s] for s in np.unique(segment)]
        return float(np.sqrt(np.mean(np.concatenate([eye - eye.mean(0) for eye in eyes]) ** 2)))

    assert spread(0.1) == pytest.approx(0.1, rel=0.05)
    assert spread(0.5) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("spreads", ["0.4,0.6", "a,b,c", "0,0,-1", "nan,0,0"])
def test_tastes_in_pictures_are_three_numbers(spreads: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "simulate", "--to", "file:x", "--image-effect", spreads]) == 2
    assert "must be three numbers from 0 to 10" in capsys.readouterr().err


def test_what_all_users_like_to_see_is_as_strong_with_any_seed() -> None:
    for seed in (1, 2, 3):
        worlds = [World(users=20_000, image_effect=(common, 0.0, 0.1), seed=seed) for common in (0.0, 0.4)]
        means = [np.linalg.norm(Truth(world)._eye.mean(0)) for world in worlds]
        assert means[0] < 0.01 and means[1] == pytest.approx(0.8, abs=0.01)


def test_the_planted_probabilities_explain_the_labels(market: tuple[Path, dict[str, int]]) -> None:
    folder, _ = market
    table = read_ledger(folder / "ledger.arrows")
    p, label = table["probability"].to_numpy(), table["label"].to_numpy().astype(np.float32)
    spread = np.sqrt((p * (1 - p)).sum())
    assert abs(label.sum() - p.sum()) < 4 * spread
    assert 0.7 < auc(np.log(p / (1 - p)), label) < 0.9


def test_ads_are_born_and_die_and_are_announced_before_they_are_shown(
    market: tuple[Path, dict[str, int]],
) -> None:
    folder, _ = market
    announced = {e["ad_id"] for rows in lines(folder, "ads").values() for e in sound(rows, "ad_id")}
    shown = [e for rows in lines(folder, "impressions").values() for e in sound(rows, "user_id", "ts")]
    assert {e["ad_id"] for e in shown} <= announced
    start = TRAFFIC.start_ms
    for event in shown:
        assert event["ad_id"] in WORLD.live_ads((event["ts"] - start) // 100 * 0.1), event
    assert {e["ad_id"] for e in shown if e["ts"] < start + 2000} != {
        e["ad_id"] for e in shown if e["ts"] > start + 6000
    }


def test_arrow_events_hold_what_json_events_hold(market: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    folder, _ = market
    simulate(options(tmp_path, events="arrow"))
    for topic, columns in (
        ("impressions", ("user_id", "ts", "position")),
        ("clicks", ("user_id", "ts", "dwell_ms")),
    ):
        wanted = Counter(
            (e["request_id"], *(e[c] for c in columns))
            for rows in lines(folder, topic).values()
            for e in sound(rows, *columns)
        )
        found: Counter[tuple[int, ...]] = Counter()
        for path in (tmp_path / "logs" / topic).glob("*.arrow"):
            table = pa.ipc.open_file(path).read_all()
            found.update(zip(*(table[c].to_pylist() for c in ("request_id", *columns)), strict=True))
        assert found == wanted


def test_kafka_holds_what_files_hold(
    market: tuple[Path, dict[str, int]], broker_url: str, tmp_path: Path
) -> None:
    folder, _ = market
    consumer = KafkaConsumer(bootstrap_servers=kafka_servers(broker_url), enable_auto_commit=False)
    written = {t: lines(folder, t) for t in ("impressions", "clicks", "users", "ads")}
    places = [TopicPartition(topic, partition) for topic in written for partition in written[topic]]
    there = consumer.partitions_for_topic("users")  # another test may have written to them
    begins = consumer.end_offsets(places) if there else dict.fromkeys(places, 0)
    simulate(options(tmp_path, to=broker_url))
    for topic in written:
        for partition, rows in written[topic].items():
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, begins[place])
            found: list[bytes] = []
            end = consumer.end_offsets([place])[place]
            while consumer.position(place) < end:
                for records in consumer.poll(1000).values():
                    found += [record.value for record in records]
            assert found == rows, (topic, partition)
    consumer.close()


def test_a_broker_that_comes_later_is_waited_for(broker_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Event time starts when the broker answers."""
    with Proxy(broker_url) as proxy:
        proxy.away = True
        address = proxy.url.replace("redis://", "kafka://").partition("?")[0]
        command = ["logs", "simulate", "--to", address, "--seconds", "0.2", "--rate", "10"]
        assert main(command) == 4
        capsys.readouterr()
        away_s, began_s = 2.0, time.monotonic()
        comes = threading.Timer(away_s, lambda: setattr(proxy, "away", False))
        comes.start()
        assert main([*command, "--start-wait-s", "5m"]) == 0
        comes.join()
    whole_s = time.monotonic() - began_s
    assert json.loads(capsys.readouterr().out)["seconds"] < whole_s - away_s


def test_another_number_of_partitions_is_refused(broker_url: str, tmp_path: Path) -> None:
    simulate(options(tmp_path, to=broker_url, traffic=TrafficOptions(rate=10, seconds=0.2)))
    with pytest.raises(ConfigError, match="say --partitions 4"):
        simulate(options(tmp_path, to=broker_url, partitions=8))


def test_images_show_their_look_and_some_do_not_decode(tmp_path: Path) -> None:
    counts = simulate(options(tmp_path, traffic=TrafficOptions(rate=10, seconds=0.2)))
    good = bad = 0
    for rows in lines(tmp_path, "ad_images").values():
        for row in map(json.loads, rows):
            try:
                with Image.open(io.BytesIO(b64decode(row["image"]))) as image:
                    image.load()
                    assert image.size == (32, 32)
                good += 1
            except OSError:
                bad += 1
    assert good > 0
    assert (counts["images"], counts["broken_images"]) == (good + bad, bad)
    assert bad == sum(1 for i in range(1_000_001, 1_000_001 + good + bad) if i % 100 == 0)
    bright, dark = (
        np.asarray(Image.open(io.BytesIO(png(np.array([0, light, 0, 0]))))).mean() for light in (1.0, -1.0)
    )
    assert bright > dark + 50


def test_a_click_names_the_image_of_its_ad(market: tuple[Path, dict[str, int]]) -> None:
    folder, _ = market
    image = {
        ad["ad_id"]: ad["image_id"] for rows in lines(folder, "ads").values() for ad in map(json.loads, rows)
    }
    clicks = [e for rows in lines(folder, "clicks").values() for e in sound(rows, "user_id", "ts")]
    assert clicks and all(image[click["ad_id"]] == click["image_id"] for click in clicks)


def test_visitors_of_the_search_page_type_words(market: tuple[Path, dict[str, int]]) -> None:
    folder, _ = market
    shown = [e for rows in lines(folder, "impressions").values() for e in sound(rows, "user_id", "ts")]
    texts: list[tuple[object, object]] = [(event["page"], event["query"]) for event in shown]
    typed = {query for _, query in texts}
    assert {page for page, query in texts if query is not None} == {"search"}
    assert {page for page, query in texts if query is None} == {"home", "video", "news"}
    assert "sale" in typed and " SALE " in typed and "sae" in typed and "sale free" in typed


def test_a_query_is_as_relevant_as_its_share_of_words_in_the_title() -> None:
    title = np.array([[1, 2, 3]] * 4)
    query = np.array([[-1, -1], [3, -1], [3, 7], [7, -1]])
    assert relevance(query, title).tolist() == [0, 1, 0.5, 0]


def test_tastes_drift_but_do_not_run_away() -> None:
    truth = Truth(WORLD)
    before = truth._taste.copy()
    truth.drift(1)
    small = np.abs(truth._taste - before).mean()
    truth.drift(10_000)
    assert 0 < small < np.abs(truth._taste - before).mean()
    assert np.abs(truth._taste - truth._home).std() < 0.3


def test_a_ledger_can_be_followed_while_it_grows(market: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    """However far the file is written, also in the middle of a batch, each row is seen once."""
    folder, _ = market
    whole = (folder / "ledger.arrows").read_bytes()
    tail = LedgerTail(tmp_path / "growing")
    assert tail.new_batches() == []
    seen: list[int] = []
    for end in [*range(100, len(whole), 7001), len(whole)]:
        (tmp_path / "growing").write_bytes(whole[:end])
        for batch in tail.new_batches():
            seen += batch["request_id"].to_pylist()
    assert seen == read_ledger(folder / "ledger.arrows")["request_id"].to_pylist()


def test_a_ledger_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello")
    with pytest.raises(ConfigError, match=r"the ledger .* cannot be read"):
        read_ledger(tmp_path / "x")
