"""Pictures of the stream become features: the newest of each id, once, on the rank that holds it."""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kafka import KafkaProducer
from torch import Tensor

from livectr.ingest.addresses import kafka_servers
from livectr.ingest.content.store import ContentStore
from livectr.ingest.content.topic import ContentTopic
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.language.content import Content
from livectr.ingest.language.tables import Table
from livectr.local.kafka import create_topics
from livectr.system.errors import ConfigError
from livectr.trainer.comm.control import Control
from livectr.trainer.content import encoding
from livectr.trainer.content.contents import Contents, held_by
from livectr.trainer.content.encoding import Encoding
from tests.trainer.pictures import CONTENT, Colour, Colours, colour_of, colours, line, picture, write
from tests.waiting import left_s, until

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "GATHER_S", 0.01)
    monkeypatch.setattr(encoding, "POLL_S", 0.02)


class Run:
    """One process that encodes the topic in a folder."""

    def __init__(
        self,
        folder: Path,
        store: ContentStore,
        *,
        url: str | None = None,
        content: Content = CONTENT,
        until_end: bool = False,
    ):
        self.letters = DeadLetters(folder / "letters")
        topic = ContentTopic(
            content,
            url or f"file:{folder}",
            held_by(store),
            until_end=until_end,
            letters=self.letters,
            own_letters=self.letters,
        )
        self.store, self.network = store, Colours()
        self.encoding = Encoding("images", topic, store, colours(self.network))
        until(lambda: self.encoding.caught_up or self.encoding.error is not None)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.encoding.close()
        self.letters.close()

    def holds(self, colours: dict[int, Colour]) -> None:
        """The store has these, and nothing else."""
        rows, known = self.store.read(np.array(list(colours), np.int64))
        assert known.all()
        assert rows.tolist() == [list(colour) for colour in colours.values()]
        assert sorted(self.store.ids.tolist()) == sorted(colours)


def new_store(folder: Path) -> ContentStore:
    return ContentStore.ensure(folder / "features", width=3, encoder="colours", shards=4)


def test_what_is_there_is_encoded_first_and_what_comes_later_follows(tmp_path: Path) -> None:
    some = {n: colour_of(n) for n in range(1, 500)}
    write(tmp_path, [line(n, picture(c)) for n, c in some.items()])
    with Run(tmp_path, new_store(tmp_path)) as run:
        run.holds(some)
        assert run.encoding.encoded == 499
        write(tmp_path, [line(900, picture((1, 2, 3)))], partition=0)
        until(lambda: len(run.store), equals=500)
        run.holds({**some, 900: (1, 2, 3)})
        until(lambda: run.encoding.waiting, equals=0)


def test_a_bounded_topic_leaves_no_thread_that_asks_again(tmp_path: Path) -> None:
    """A source that has ended answers at once: a thread that continued asking it would take the training
    thread's interpreter lock, and each of its operators would wait for it."""
    write(tmp_path, [line(n, picture(colour_of(n))) for n in range(1, 100)])
    with Run(tmp_path, new_store(tmp_path), until_end=True) as run:
        until(lambda: not run.encoding.running)
        run.holds({n: colour_of(n) for n in range(1, 100)})
        assert run.encoding.waiting == 0


def test_a_restart_encodes_nothing_twice(tmp_path: Path) -> None:
    some = {n: colour_of(n) for n in range(50)}
    write(tmp_path, [line(n, picture(c)) for n, c in some.items()])
    with Run(tmp_path, new_store(tmp_path)):
        pass
    write(tmp_path, [line(77, picture((7, 7, 7)))])
    with Run(tmp_path, new_store(tmp_path)) as run:
        run.holds({**some, 77: (7, 7, 7)})
        assert run.network.seen == [(7, 7, 7)]


@pytest.mark.parametrize("reds", [[1, 2], [1, 2, 3, 2], [1, 2, 1], [5, 5, 5]])
def test_a_changed_picture_replaces_the_old(tmp_path: Path, reds: Sequence[int]) -> None:
    """A picture may also change back; a restart, which reads all pictures, changes nothing."""
    last = (reds[-1], 0, 0)
    write(tmp_path, [line(1, picture((reds[0], 0, 0)))])
    with Run(tmp_path, new_store(tmp_path)) as run:
        for red in reds[1:]:
            write(tmp_path, [line(1, picture((red, 0, 0))), line(100 + red, picture((red, 1, 1)))])
            until(lambda: 100 + red in run.store.ids)  # noqa: B023
        until(lambda: run.store.read(np.array([1]))[0][0, 0] == reds[-1])
    others = {100 + red: (red, 1, 1) for red in reds[1:]}
    for _ in range(2):
        with Run(tmp_path, new_store(tmp_path), until_end=True) as run:
            assert run.network.seen == []
            run.holds({1: last, **others})


def test_all_versions_at_once_leave_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with large and small memory for deferred pictures."""
    for name, most in (("much", encoding.DEFERRED_BYTES), ("little", 1)):
        monkeypatch.setattr(encoding, "DEFERRED_BYTES", most)
        folder = tmp_path / name
        for red in (1, 2, 3):
            write(folder, [line(n, picture((red, n, 0))) for n in range(20)], partition=0)
        with Run(folder, new_store(folder), until_end=True) as run:
            run.holds({n: (3, n, 0) for n in range(20)})


def test_bad_pictures_are_letters_with_their_place(tmp_path: Path) -> None:
    records = [line(n, picture(colour_of(n))) for n in range(6)]
    records[2], records[4] = line(2, b"no picture"), line(4, picture((1, 1, 1))[:40])
    write(tmp_path, records)
    for _ in range(2):  # the second time is a restart
        with Run(tmp_path, new_store(tmp_path), until_end=True) as run:
            run.holds({n: colour_of(n) for n in (0, 1, 3, 5)})
            assert run.encoding.bad == 2
            assert run.letters.counts == {"bad_image": 2}
    letters = [json.loads(text) for text in (tmp_path / "letters" / "00000-letters.jsonl").open()]
    assert [(x["topic"], x["partition"], x["offset"]) for x in letters] == [
        ("pictures", 0, 2),
        ("pictures", 0, 4),
    ]
    assert all(x["reason"] == "bad_image" for x in letters)
    assert "of image_id 2: none of JPEG" in letters[0]["detail"]


def test_ranks_share_the_pictures(tmp_path: Path) -> None:
    some = {n: colour_of(n) for n in range(200)}
    write(tmp_path, [line(n, picture(c)) for n, c in some.items()])
    new_store(tmp_path)
    seen: list[Colour] = []
    for rank in range(3):
        store = ContentStore.open(tmp_path / "features", range(rank, 4, 3))
        with Run(tmp_path, store, until_end=True) as run:
            assert 0 < run.encoding.encoded < 200
            seen += run.network.seen
    assert sorted(seen) == sorted(some.values())
    with Run(tmp_path, new_store(tmp_path), until_end=True) as run:
        run.holds(some)
        assert run.network.seen == []


def test_training_is_told_what_failed(tmp_path: Path) -> None:
    url = write(tmp_path, [line(1, picture((1, 1, 1)))])
    store = new_store(tmp_path)

    class Failing(Colours):
        def __call__(self, pictures: Tensor) -> Tensor:
            raise RuntimeError("out of colours")

    letters = DeadLetters(None)
    topic = ContentTopic(CONTENT, url, held_by(store), until_end=True, letters=letters, own_letters=letters)
    found = Encoding("images", topic, store, colours(Failing()))
    until(lambda: found.error is not None)
    with pytest.raises(RuntimeError, match="out of colours"):
        found.check()
    assert not found.caught_up
    found.close()


def test_a_slow_encoder_holds_reading_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: what waits to be encoded is the source's queue."""
    monkeypatch.setattr("livectr.ingest.content.topic.QUEUE_BYTES", 1)
    go = threading.Event()

    class Slow(Colours):
        def __call__(self, pictures: Tensor) -> Tensor:
            assert go.wait(DEADLINE_S)
            return super().__call__(pictures)

    for partition in range(8):
        url = write(tmp_path, [line(partition, picture(colour_of(partition)))], partition)
    store, letters = new_store(tmp_path), DeadLetters(None)
    topic = ContentTopic(CONTENT, url, held_by(store), until_end=True, letters=letters, own_letters=letters)
    found = Encoding("images", topic, store, colours(Slow()))
    until(lambda: found.waiting > 0)
    assert not found.caught_up and len(store) == 0
    go.set()
    until(lambda: found.caught_up)
    assert len(store) == 8
    found.close()


def test_a_topic_in_kafka(tmp_path: Path, kafka_url: str, topic_name: Callable[[str], str]) -> None:
    name = topic_name("pictures")
    create_topics(kafka_url, {name: 2}, compacted=[name])
    producer = KafkaProducer(bootstrap_servers=kafka_servers(kafka_url))

    def send(numbers: Sequence[int], *, gone: Sequence[int] = ()) -> None:
        for n in numbers:
            value = None if n in gone else line(n, picture(colour_of(n)))
            producer.send(name, value, key=str(n).encode(), partition=n % 2)
        producer.flush(timeout=left_s())

    send(range(20))
    send([3], gone=[3])  # a delete: its features stay
    columns = {"image_id": "int64", "image": "image"}
    content = replace(CONTENT, topic=Table(name, key="image_id", columns=columns))
    with Run(tmp_path, new_store(tmp_path), url=kafka_url, content=content) as run:
        run.holds({n: colour_of(n) for n in range(20)})
        send(range(20, 25))
        until(lambda: len(run.store), equals=25)
        run.holds({n: colour_of(n) for n in range(25)})
    producer.close()


def test_a_pipelines_content_is_made_and_found_again(tmp_path: Path) -> None:
    url = write(tmp_path, [line(n, picture(colour_of(n))) for n in range(40)])
    letters = DeadLetters(None)
    for folders, checkpoint in (
        ({"images": tmp_path / "made"}, None),
        ({}, tmp_path / "checkpoint"),
        ({}, None),
    ):
        contents = Contents({"images": CONTENT}, folders, checkpoint=checkpoint, rank=0, world=1)
        contents.start(url, until_end=True, letters=letters, own_letters=letters)
        contents.wait(Control(), lambda: False)
        store = contents.stores["images"]
        assert (len(store), store.width, store.encoder) == (40, 3, "tests.trainer.pictures:Colours")
        contents.follow()
        contents.close()
        contents.close()
        assert store.root.exists() == bool(folders or checkpoint)
    assert (tmp_path / "checkpoint" / "content" / "images" / "store.json").is_file()
    given = Content(("image",), CONTENT.model)
    found = Contents({"images": given}, {"images": tmp_path / "made"}, checkpoint=None, rank=1, world=2)
    assert found.stores["images"].own_shards == tuple(range(1, 16, 2))
    assert Contents({"images": given}, {}, checkpoint=None, rank=0, world=1).stores == {}


def test_wrong_content_is_told(tmp_path: Path) -> None:
    def opened(content: Content, folder: Path, name: str = "images") -> Contents:
        return Contents({"images": content}, {name: folder}, checkpoint=None, rank=0, world=1)

    with pytest.raises(ConfigError, match="content names 'texts', but the content of the pipeline is images"):
        opened(CONTENT, tmp_path, "texts")
    with pytest.raises(ConfigError, match="content 'images': there is no encoder 'nothing'"):
        opened(replace(CONTENT, encoder="nothing"), tmp_path)
    new_store(tmp_path)  # of an encoder of another name
    with pytest.raises(ConfigError, match="3 numbers a row of encoder 'colours'"):
        opened(CONTENT, tmp_path / "features")
    with pytest.raises(ConfigError, match="so it is no content store"):
        opened(replace(CONTENT, topic=None, encoder=None), tmp_path)


def test_waiting_ends_when_somebody_says_stop_or_a_thread_fails(tmp_path: Path) -> None:
    url = write(tmp_path, [line(1, picture((1, 1, 1)))])
    letters = DeadLetters(None)
    contents = Contents(
        {"images": replace(CONTENT, encoder=f"{__name__}:Stuck")}, {}, checkpoint=None, rank=0, world=1
    )
    contents.start(url, until_end=True, letters=letters, own_letters=letters)
    contents.wait(Control(), lambda: True)
    Stuck.go.set()
    with pytest.raises(RuntimeError, match="it was stuck"):
        contents.wait(Control(), lambda: False)
    contents.close()


class Stuck(Colours):
    go = threading.Event()

    def __call__(self, pictures: Tensor) -> Tensor:
        assert self.go.wait(DEADLINE_S)
        raise RuntimeError("it was stuck")
