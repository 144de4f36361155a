"""Spool of dead letters: flushed letters survive an absent broker and killed processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from livectr.ingest.dead_letters.letters import DeadLetters, Reason
from livectr.ingest.dead_letters.spool import SEGMENT_BYTES, Spool
from livectr.ingest.sources.source import open_source
from livectr.local.kafka import Broker
from livectr.system.errors import ConfigError, UserError
from tests.ingest.letter_keys import keys_in
from tests.ingest.reading import assign, event, stream, to_end
from tests.metrics_page import metric_value
from tests.waiting import until

DEADLINE_S = 120


def lines_of(spool: Spool) -> list[bytes]:
    """Read and remove all lines."""
    found: list[bytes] = []
    while (segment := spool.next()) is not None:
        found += segment.read_bytes().splitlines()
        spool.done(segment)
    return found


def test_lines_come_in_order_and_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path, most_bytes=3 * SEGMENT_BYTES)
    assert spool.next() is None
    written = [b"%d " % n + b"x" * 100_000 for n in range(100)]
    for number, line in enumerate(written):
        spool.append(line + b"\n")
        assert spool.bytes == sum(map(len, written[: number + 1])) + number + 1
        assert spool.full == (spool.bytes >= 3 * SEGMENT_BYTES)
    assert (spool.letters, spool.bytes) == (100, sum(map(len, written)) + 100)
    assert len(list(tmp_path.iterdir())) == 3
    assert lines_of(spool) == written
    assert (spool.letters, spool.bytes, list(tmp_path.iterdir())) == (0, 0, [])


def test_a_new_process_takes_over_what_others_left(tmp_path: Path) -> None:
    """Two processes deliver the lines of four earlier ones, each line once."""
    for writer in range(4):
        spool = Spool(tmp_path, writer=writer, writers=4, most_bytes=1 << 20)
        spool.append(b"%d\n" % writer)
        spool.close()
        spool.close()
    spools = [Spool(tmp_path, writer=writer, writers=2, most_bytes=1 << 20) for writer in range(2)]
    assert [spool.letters for spool in spools] == [2, 2]
    spools[1].append(b"new\n")
    assert [lines_of(spool) for spool in spools] == [[b"0", b"2"], [b"1", b"3", b"new"]]


def test_flushed_lines_survive_a_kill(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from livectr.ingest.dead_letters.spool import Spool
spool = Spool(Path({str(tmp_path)!r}), most_bytes=1 << 20)
for number in range(1000):
    spool.append(b"%d\\n" % number)
spool.flush()
spool.append(b"perhaps")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    spool = Spool(tmp_path, most_bytes=1 << 20)
    assert lines_of(spool)[:1000] == [b"%d" % number for number in range(1000)]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="dead letters cannot wait in"):
        Spool(tmp_path / "file" / "spool", most_bytes=1)


def test_a_disk_that_takes_no_letters_is_told_in_a_sentence(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path)
    (tmp_path / "00000-letters.jsonl").unlink()
    (tmp_path / "00000-letters.jsonl").symlink_to("/dev/full")
    letters = DeadLetters(tmp_path)
    letters.write(("t", 0, 1, 0), Reason.BAD_JSON, "x", b"{")
    with pytest.raises(UserError, match="No space left on device; make room on that disk"):
        letters.flush()


@pytest.mark.full
def test_a_broker_may_be_away_for_as_long_as_it_likes(tmp_path: Path) -> None:
    """Reading stops when the spool is full and continues when the broker is back. Letters that a run leaves
    behind are sent by the next run."""
    log = tmp_path / "logs" / "impressions"
    log.mkdir(parents=True)
    bad = range(0, 6000, 2)
    lines = [b"{" + b"x" * 500 if n in bad else event(n) for n in range(6000)]
    (log / "00000-0.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    waiting = "livectr_dead_letters_waiting"
    with Broker(data_dir=tmp_path / "kafka") as broker:
        letters = DeadLetters(broker.url, spool=tmp_path / "spool", spool_bytes=50_000)
        ended = DeadLetters(broker.url, spool=tmp_path / "ended")
        broker.kill()
        for offset in range(3):
            ended.write(("clicks", 1, offset, 0), Reason.BAD_JSON, "x", b"{")
        ended.close()
        left = sorted((tmp_path / "ended").iterdir())
        kept = [json.loads(line)["offset"] for path in left for line in path.read_bytes().splitlines()]
        assert kept == [0, 1, 2]
        with left[-1].open("ab") as torn:
            torn.write(b'{"topic": "cli')
        url = f"file:{tmp_path / 'logs'}"
        source = open_source(url, [stream("impressions")], until_end=True, dead_letters=letters)
        try:
            places = assign(source)
            source.start()
            until(lambda: letters.full)
            first = sum(map(len, source.poll(0.5)))
            letters.flush()
            assert not source.at_end(*places[0])
            assert metric_value(waiting) > 0
            assert metric_value("livectr_dead_letter_spool_bytes") >= 50_000
            broker.start()
            assert first + sum(map(len, to_end(source, places))) == 3000
            until(lambda: metric_value(waiting), equals=0)
            ended = DeadLetters(broker.url, spool=tmp_path / "ended")
            until(lambda: not list((tmp_path / "ended").iterdir()))
            ended.close()
        finally:
            source.close()
            letters.close()
        assert not list((tmp_path / "spool").iterdir())
        wanted = {f"impressions/0/{n}/0" for n in bad} | {f"clicks/1/{offset}/0" for offset in range(3)}
        assert set(keys_in(broker.url)) == wanted
