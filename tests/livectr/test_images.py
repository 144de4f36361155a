"""`livectr features`: a folder of pictures or a topic of them becomes a content store."""

import base64
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from kafka import KafkaProducer
from PIL import Image

from livectr.cli import main
from livectr.ingest.content.store import ContentStore
from livectr.ingest.decode.images import decode
from livectr.ingest.language.keys import hash_strings
from livectr.local.kafka import create_topics
from livectr.logs.pictures import ids_of
from livectr.models.encoders import load_encoder
from livectr.simulator.simulate import SimulateOptions, simulate
from livectr.simulator.traffic import TrafficOptions
from livectr.simulator.truth import World


def picture(seed: int, kind: str = "PNG", size: tuple[int, int] = (40, 30)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def features_of(value: bytes) -> np.ndarray:
    """As the store should have them."""
    encoder = load_encoder("small")
    pixels = decode(value, size=encoder.size, short_side=encoder.short_side)
    return encoder(torch.from_numpy(pixels)[None]).numpy().astype(np.float16)[0]


def run(*arguments: object) -> int:
    return main([str(one) for one in arguments])


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """JSON line that the command printed."""
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


@pytest.fixture
def pictures(tmp_path: Path) -> dict[str, bytes]:
    """Files in tmp_path/pictures, by name."""
    files = {
        "17.png": picture(1), "-4.jpg": picture(2, "JPEG"), "more/900.webp": picture(3, "WEBP"),
        "red shoe.gif": picture(4, "GIF"), "007.BMP": picture(5, "BMP", (9, 200)),
        "50.png": picture(6)[:300], "51.jpg": b"", "notes.txt": b"hello", ".18.png": picture(7),
    }  # fmt: skip
    for name, value in files.items():
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)
    return files


@pytest.mark.parametrize("source", ["folder", "topic"])
def test_parts_encode_what_one_process_encodes(
    tmp_path: Path, pictures: dict[str, bytes], capsys: pytest.CaptureFixture[str], source: str
) -> None:
    """Each part has its shards; a part that is run again finds its pictures there."""
    command = ["features", "encode", tmp_path / "pictures", "--encoder", "small", "--batch", 2]
    if source == "topic":
        records = [{"image_id": i, "image": base64.b64encode(picture(i)).decode()} for i in range(1, 8)]
        (tmp_path / "logs" / "ads").mkdir(parents=True)
        lines = "".join(json.dumps(record) + "\n" for record in [*records, {"image_id": 9, "image": "?"}])
        (tmp_path / "logs" / "ads" / "00000.jsonl").write_text(lines)
        command[2:3] = [f"file:{tmp_path / 'logs'}", "--topic", "ads"]
    assert run(*command, "--out", tmp_path / "one", "--dead-letters", tmp_path / "a") == 0
    one = said(capsys)
    counts = []
    for part in ("1/3", "0/3", "2/3", "1/3"):
        assert (
            run(*command, "--out", tmp_path / "many", "--dead-letters", tmp_path / "b", "--part", part) == 0
        )
        counts.append(said(capsys))
    assert sum(count["encoded"] for count in counts) == one["encoded"] > 1
    assert counts[3]["encoded"] == 0 and counts[3]["skipped"] == counts[0]["encoded"]
    assert sum(count["bad"] for count in counts[:3]) == one["bad"] > 0
    stores = [ContentStore.open(tmp_path / name) for name in ("one", "many")]
    ids = np.sort(stores[0].ids)
    assert (np.sort(stores[1].ids) == ids).all() and len(ids) == one["ids"]
    rows = [store.read(ids)[0] for store in stores]
    assert (rows[0] == rows[1]).all()


def test_a_folder_of_pictures(
    tmp_path: Path, pictures: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["features", "encode", tmp_path / "pictures", "--encoder", "small", "--out", tmp_path / "f"]
    command += ["--dead-letters", tmp_path / "letters", "--batch", 2]
    assert run(*command) == 0
    summary = said(capsys)
    assert (summary["encoded"], summary["skipped"], summary["bad"], summary["ids"]) == (5, 0, 2, 5)
    assert summary["encoder"] == "small" and summary["width"] == 128 and summary["bytes"] > 5 * 256
    store = ContentStore.open(tmp_path / "f")
    shoe, seven = hash_strings(["red shoe", "007"]).tolist()
    names = {17: "17.png", -4: "-4.jpg", 900: "more/900.webp", shoe: "red shoe.gif", seven: "007.BMP"}
    assert sorted(store.ids.tolist()) == sorted(names)
    for number, name in names.items():
        got, _ = store.read(np.array([number]))
        np.testing.assert_array_equal(got[0], features_of(pictures[name]))
    letters = [json.loads(line) for line in (tmp_path / "letters" / "00000-letters.jsonl").open()]
    assert {letter["detail"].partition(":")[0] for letter in letters} == {"50.png", "51.jpg"}
    assert {letter["reason"] for letter in letters} == {"bad_image"}
    assert base64.b64decode(next(x for x in letters if x["value"])["value"]) == pictures["50.png"]

    # Again: only new and changed pictures are encoded, and letters are not written twice.
    (tmp_path / "pictures" / "17.png").write_bytes(picture(8))
    (tmp_path / "pictures" / "19.png").write_bytes(picture(9))
    assert run(*command) == 0
    summary = said(capsys)
    assert (summary["encoded"], summary["skipped"], summary["bad"], summary["ids"]) == (2, 4, 2, 6)
    got, known = ContentStore.open(tmp_path / "f").read(np.array([17, 19]))
    assert known.all()
    np.testing.assert_array_equal(got, [features_of(picture(8)), features_of(picture(9))])
    assert len((tmp_path / "letters" / "00000-letters.jsonl").read_text().splitlines()) == 2

    assert run("features", "show", tmp_path / "f", "--json") == 0
    shown = said(capsys)
    assert (shown["ids"], shown["encoder"], shown["width"], shown["shards"]) == (6, "small", 128, 16)
    assert shown["bytes"] == summary["bytes"] and 1 <= shown["chunks"] <= 12
    assert run("features", "show", tmp_path / "f") == 0
    assert "encoder  small" in capsys.readouterr().out


def test_the_simulators_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(users=10, ads=150, ad_interval_s=2, ad_life=5)
    traffic = TrafficOptions(rate=10, seconds=0.2)
    simulate(SimulateOptions(f"file:{tmp_path / 'logs'}", world, traffic, real_time=False, images=True))
    sent = {}
    for path in (tmp_path / "logs" / "ad_images").iterdir():
        for line in path.open():
            row = json.loads(line)
            sent[row["image_id"]] = base64.b64decode(row["image"])
    broken = {number for number in sent if number % 100 == 0}
    source = [f"file:{tmp_path / 'logs'}", "--topic", "ad_images"]
    command = ["features", "encode", *source, "--encoder", "small"]
    for encoded in (len(sent) - len(broken), 0):
        assert run(*command, "--out", tmp_path / "f") == 0
        summary = said(capsys)
        assert summary["encoded"] == encoded and summary["bad"] == len(broken) > 0
    store = ContentStore.open(tmp_path / "f")
    assert set(store.ids.tolist()) == set(sent) - broken
    for number in list(sent.keys() - broken)[:5]:
        np.testing.assert_array_equal(store.read(np.array([number]))[0][0], features_of(sent[number]))
    letters = (tmp_path / "logs" / "livectr.dead_letters" / "00000-letters.jsonl").read_text().splitlines()
    assert len(letters) == len(broken)


def test_a_topic_with_other_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shots").mkdir()
    with (tmp_path / "shots" / "0.jsonl").open("w") as file:
        for name, value in (("a", picture(1)), ("b", None), ("a", picture(2))):
            text = base64.b64encode(value).decode() if value else None
            file.write(json.dumps({"item": name, "shot": text}) + "\n")
    command = ["features", "encode", f"file:{tmp_path}", "--topic", "shots", "--encoder", "small"]
    command += ["--id-column", "item:string", "--image-column", "shot", "--out", str(tmp_path / "f")]
    for encoded in (1, 0):  # read again, the older picture of "a" does not replace the newer
        assert run(*command, "--batch", 1) == 0
        summary = said(capsys)
        assert (summary["ids"], summary["encoded"]) == (1, encoded)
        got, _ = ContentStore.open(tmp_path / "f").read(hash_strings(["a"]))
        np.testing.assert_array_equal(got[0], features_of(picture(2)))
    with (tmp_path / "shots" / "0.jsonl").open("a") as file:
        file.write(json.dumps({"item": "a", "shot": base64.b64encode(picture(3)).decode()}) + "\n")
    assert run(*command) == 0 and said(capsys)["encoded"] == 1
    got, _ = ContentStore.open(tmp_path / "f").read(hash_strings(["a"]))
    np.testing.assert_array_equal(got[0], features_of(picture(3)))


def test_a_topic_of_a_broker(
    tmp_path: Path, kafka_url: str, topic_name: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic_name("pictures")
    create_topics(kafka_url, {name: 2})
    producer = KafkaProducer(bootstrap_servers=kafka_url.removeprefix("kafka://"))
    for number, value in ((1, picture(1)), (2, picture(2)), (3, b"no picture"), (1, picture(4))):
        row = {"image_id": number, "image": base64.b64encode(value).decode()}
        producer.send(name, key=str(number).encode(), value=json.dumps(row).encode(), partition=number % 2)
    producer.close()
    command = ["features", "encode", f"{kafka_url}/{name}", "--encoder", "small", "--out", tmp_path / "f"]
    command += ["--dead-letters", tmp_path / "letters"]
    assert run(*command) == 0
    summary = said(capsys)
    assert (summary["ids"], summary["bad"]) == (2, 1)
    got, known = ContentStore.open(tmp_path / "f").read(np.array([1, 2, 3]))
    assert known.tolist() == [True, True, False]
    np.testing.assert_array_equal(got[:2], [features_of(picture(4)), features_of(picture(2))])


def test_what_was_encoded_before_an_interruption_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pictures").mkdir()
    for number in range(12):
        (tmp_path / "pictures" / f"{number:02}x.png").write_bytes(picture(number))
    given = []
    load = load_encoder("small").network

    class Interrupted:
        width, size = 128, 32

        def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
            given.append(len(pictures))
            if len(given) == 4:
                raise KeyboardInterrupt
            return load(pictures)

    monkeypatch.setitem(sys.modules, "test_net", ModuleType("test_net"))
    monkeypatch.setattr(sys.modules["test_net"], "Net", Interrupted, raising=False)
    command = ["features", "encode", tmp_path / "pictures", "--encoder", "test_net:Net"]
    command += ["--out", tmp_path / "f", "--batch", 2]
    assert run(*command) == 130
    assert given == [2, 2, 2, 2] and len(ContentStore.open(tmp_path / "f")) == 6
    capsys.readouterr()
    assert run(*command) == 0
    summary = said(capsys)
    assert (summary["encoded"], summary["skipped"], summary["ids"]) == (6, 6, 12)


def test_mistakes_are_one_sentence(
    tmp_path: Path, pictures: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pictures"
    ContentStore.create(tmp_path / "other", width=4096, encoder="vgg16-0123456789ab")
    (tmp_path / "twins" / "a").mkdir(parents=True)
    for name in ("7.png", "a/7.jpg"):
        (tmp_path / "twins" / name).write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    mistakes: list[tuple[list[object], str]] = [
        ([tmp_path / "absent"], "there is no folder"),
        ([tmp_path / "empty"], "has no pictures (.jpg"),
        ([tmp_path / "twins"], "7.png and a/7.jpg"),
        ([f"file:{tmp_path}"], "say which one has the pictures: --topic"),
        ([f"file:{tmp_path}", "--topic", "logos"], "has no folder 'logos'"),
        (["kafka://localhost:1/a", "--topic", "b", "--dead-letters", tmp_path / "l"], "leave one out"),
        ([folder, "--encoder", "resnet"], "there is no encoder 'resnet'; name small"),
        ([folder, "--encoder", "vgg16"], "needs its weights"),
        ([folder, "--out", tmp_path / "other"], "of encoder 'vgg16-0123456789ab', not 128 of 'small'"),
        ([folder, "--batch", 0], "--batch: 0 must be"),
    ]
    for arguments, wanted in mistakes:
        usual: list[object] = [] if "--out" in arguments else ["--out", tmp_path / "f"]
        usual += [] if "--encoder" in arguments else ["--encoder", "small"]
        assert run("features", "encode", *arguments, *usual) == 2, arguments
        shown = capsys.readouterr().err
        assert wanted in shown and shown.count("\n") == 1, shown
    assert run("features", "show", folder) == 2
    assert "is no content store" in capsys.readouterr().err


def test_ids_of_names() -> None:
    names = ["0", "-1", "9223372036854775807", "9223372036854775808", "007", "+1", "-0", "1e3", ""]
    ids = ids_of(names).tolist()
    assert ids[:3] == [0, -1, 2**63 - 1]
    assert ids[3:] == hash_strings(names[3:]).tolist()
