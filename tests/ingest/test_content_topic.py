"""Topic of pictures: wanted pictures as bytes, with their positions."""

import json
from pathlib import Path

import numpy as np
import pytest

from livectr.ingest.content.store import digest_of
from livectr.ingest.content.topic import ContentTopic, Picture
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.language.content import Content
from livectr.models.embedding import EmbeddingModel
from livectr.system.errors import ConfigError
from tests.trainer.pictures import CONTENT, colour_of, line, picture, write


def everything(ids: np.ndarray) -> np.ndarray:
    return np.ones(len(ids), bool)


def read(topic: ContentTopic) -> list[Picture]:
    found = []
    while not topic.at_end:
        found += topic.poll(0.1)
    return found


def test_wanted_pictures_with_their_places(tmp_path: Path) -> None:
    some = {number: picture(colour_of(number)) for number in range(6)}
    bad = [b"{", b'{"image_id": 4}\n', b'{"image_id": "x", "image": ""}\n']
    records = [line(0, some[0]), line(1, some[1]), bad[0] + b"\n", line(2, None), bad[1], bad[2]]
    write(tmp_path, records)
    url = write(tmp_path, [line(n, some[n]) for n in (3, 4, 5, 3)], partition=2)
    letters, own = DeadLetters(None), DeadLetters(tmp_path / "letters")
    topic = ContentTopic(CONTENT, url, lambda ids: ids != 4, until_end=True, letters=letters, own_letters=own)
    found = read(topic)
    assert topic.behind == 0
    first = [p for p in found if p.partition == 0]
    assert first == [Picture(n, some[n], digest_of(some[n]), 0, n, 0) for n in (0, 1)]
    second = [(p.id, p.offset) for p in found if p.partition == 2]
    assert second == [(3, 0), (5, 2), (3, 3)]
    assert letters.counts == {"bad_json": 1, "missing_column": 1, "wrong_type": 1}
    topic.refuse(found[-1], "it is ugly")
    topic.close()
    topic.close()
    own.close()
    letter = json.loads((tmp_path / "letters" / "00000-letters.jsonl").read_text())
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("pictures", 2, 3)
    assert (letter["reason"], letter["detail"]) == ("bad_image", "column image of image_id 3: it is ugly")
    again = DeadLetters(tmp_path / "letters")
    topic = ContentTopic(CONTENT, url, everything, until_end=True, letters=letters, own_letters=again)
    topic.refuse(found[-1], "it is still ugly")
    topic.close()
    again.close()
    assert len((tmp_path / "letters" / "00000-letters.jsonl").read_text().splitlines()) == 1


def test_a_topic_is_followed(tmp_path: Path) -> None:
    url = write(tmp_path, [line(1, picture(colour_of(1)))])
    letters = DeadLetters(None)
    topic = ContentTopic(CONTENT, url, everything, until_end=False, letters=letters, own_letters=letters)
    assert [p.id for p in read(topic)] == [1]
    write(tmp_path, [line(2, picture(colour_of(2)))])
    found: list[Picture] = []
    while not found:
        found = topic.poll(0.1)
    assert [p.id for p in found] == [2]
    topic.close()


def test_large_pictures_are_no_dead_letters(tmp_path: Path) -> None:
    url = write(tmp_path, [line(1, bytes(3 << 20))])
    letters = DeadLetters(None)
    topic = ContentTopic(CONTENT, url, everything, until_end=True, letters=letters, own_letters=letters)
    assert [len(p.value) for p in read(topic)] == [3 << 20]
    topic.close()
    assert len(letters) == 0


def test_what_has_no_pictures_is_refused(tmp_path: Path) -> None:
    url = write(tmp_path, [])
    letters = DeadLetters(None)
    plain = Content(("image",), EmbeddingModel(width=3))
    with pytest.raises(ConfigError, match="no topic of pictures"):
        ContentTopic(plain, url, everything, until_end=True, letters=letters, own_letters=letters)
    with pytest.raises(ConfigError, match=r"no folder 'pictures'"):
        ContentTopic(
            CONTENT,
            f"file:{tmp_path / 'pictures'}",
            everything,
            until_end=True,
            letters=letters,
            own_letters=letters,
        )
