"""A log that does not fit the pipeline ends a run with exit code 3 and says what to change."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from livectr.cli import main
from livectr.local.kafka import create_topics
from livectr.simulator.sinks import open_sink
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.quality import monitor
from tests.commands import run
from tests.livectr.wrong_logs import (
    JOINED,
    LABELLED,
    Learner,
    letters,
    request,
    row,
    write_arrow,
    write_json,
    write_partitions,
)
from tests.waiting import left_s


@pytest.fixture
def train(tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Learner:
    return Learner(tmp_path, capsys, caplog)


MISSPELT = LABELLED.replace("campaign", "campain")
ROWS = 12_000


def test_a_misspelt_column_of_an_arrow_log(tmp_path: Path, train: Learner) -> None:
    write_arrow(tmp_path / "logs", "shown", [row(number) for number in range(ROWS)])
    code, report, said = train(MISSPELT, "--checkpoint", str(tmp_path / "c"))
    place = tmp_path / "logs" / "livectr.dead_letters"
    assert (code, report) == (3, {})
    assert said.splitlines()[-1] == (
        f"livectr: shown: {ROWS:,} of {ROWS:,} rows unusable: column `campain` is not in the log; "
        f"did you mean `campaign`? Dead letters: {place}"
    )
    assert sum(letter["rows"] for letter in letters(tmp_path)) == ROWS
    assert newest_manifest(tmp_path / "c") is None


@pytest.mark.full
def test_two_ranks_end_with_one_sentence_and_are_not_started_again(tmp_path: Path) -> None:
    write_arrow(tmp_path / "logs", "shown", [row(number) for number in range(ROWS)], partitions=4)
    (tmp_path / "p.py").write_text(MISSPELT)
    command = [sys.executable, "-m", "livectr", "train", "--pipeline", str(tmp_path / "p.py"), "--until-end"]
    command += ["--source", f"file:{tmp_path / 'logs'}", "--checkpoint", str(tmp_path / "c")]
    command += ["--ranks", "2", "--set", "restarts=3"]
    done = run(command, capture_output=True, text=True, timeout=left_s(), check=False)
    assert done.returncode == 3 and done.stdout == "" and "Traceback" not in done.stderr
    reported = [line for line in done.stderr.splitlines() if "rows unusable" in line]
    assert len(reported) == 1 and "did you mean `campaign`?" in reported[0], done.stderr
    assert "start 1 of" not in done.stderr


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"price": "1.5"},
            "column `price` is text in the log, the pipeline says float64; declare string, or write float64 "
            "to the log.",
        ),
        ({"click": None}, "column `click` is null."),
        ({"user": None}, 'column `user` is null; say fill={"user": …} in the pipeline file for such rows.'),
        (
            {"ts": 1_700_000_000},
            "time `ts` is in seconds, the pipeline says milliseconds; multiply it by 1000, or declare "
            'time=EventTime("ts", unit="s") (unit="ms" if it is milliseconds indeed).',
        ),
        ({"click": -1}, "label `click` is -1; write 1 for a click and 0 for none (or true and false)."),
    ],
)
def test_few_rows_are_judged_at_the_end(
    tmp_path: Path, train: Learner, change: dict[str, object], sentence: str
) -> None:
    write_json(tmp_path / "logs", "shown", [row(number, **change) for number in range(300)])
    code, _, said = train(LABELLED)
    assert code == 3
    assert f"shown: 300 of 300 rows unusable: {sentence} Dead letters: " in said.splitlines()[-1]


def test_a_share_is_judged_while_running_and_can_be_set(
    tmp_path: Path, train: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third row is good; the run does not wait for the end of a log that a person would wait for."""
    rows = [row(number, **({} if number % 3 == 0 else {"price": "x"})) for number in range(40_000)]
    write_json(tmp_path / "logs", "shown", rows)
    code, _, said = train(LABELLED)
    assert code == 3
    found = re.search(r"([\d,]+) of ([\d,]+) rows unusable: column `price` is text in the log", said)
    assert found is not None
    unusable, read = (int(number.replace(",", "")) for number in found.groups())
    assert 10_000 <= read <= 40_000 and unusable == pytest.approx(read * 2 / 3, abs=2)
    monkeypatch.setattr(monitor, "LOG_EVERY_S", 0.0)
    code, report, said = train(LABELLED, "--set", "min_usable=0.3", "batch_ramp=256")  # few steps
    assert (
        code == 4 and report["examples_trained"] == report["rows"]["shown"]["rows"] - report["dead_letters"]
    )
    assert report["rows"]["shown"] == {
        "rows": 40_000,
        "unusable": 26_666,
        "commonest": "column `price` is text in the log, the pipeline says float64; declare string, or write "
        "float64 to the log",
    }
    lines = [line for line in said.splitlines() if "livectr.trainer.quality.monitor" in line]
    assert re.search(r"[\d,]+ of [\d,]+ rows unusable: column `price` is text in the log", lines[-1])


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_whole_input_with_too_many_bad_rows_ends_with_4(tmp_path: Path, ranks: int) -> None:
    """Rows that fit are learned and committed, and a run that may leave more out ends well."""
    rows = [row(number, **({"price": "x"} if number % 50 == 7 else {})) for number in range(2_000)]
    for partition in range(2):
        folder = tmp_path / "logs" / "shown"
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(one) + "\n" for one in rows[partition::2])
        (folder / f"{partition:05d}-log.jsonl").write_text(text)
    (tmp_path / "p.py").write_text(LABELLED)
    words = [sys.executable, "-m", "livectr", "train", "--pipeline", "p.py", "--source", "file:logs"]
    words += ["--until-end", "--checkpoint", "c", "--ranks", str(ranks), "--set", "threads=1"]

    def trained(*more: str) -> tuple[int, str]:
        done = run(
            [*words, *more], cwd=tmp_path, capture_output=True, text=True, timeout=left_s(), check=False
        )
        return done.returncode, done.stdout + done.stderr

    code, said = trained()
    assert code == 4 and said.count("40 of 2,000 rows set aside: column `price` is text") == 1
    assert "what fits was learned and is committed. Mend the rows, or say --max-bad" in said
    assert "livectr.dead_letters" in said
    manifest = newest_manifest(tmp_path / "c")
    assert manifest is not None and manifest.examples == 1_960
    code, said = trained("--max-bad", "0.02", "--checkpoint", "another")
    assert code == 0 and "rows set aside:" not in said and "1,960 used, 40 set aside" in said


def test_clicks_apart_from_their_impressions_end_a_whole_input_with_4(tmp_path: Path, train: Learner) -> None:
    """They label nothing, as if they had been set aside; keyed like their impressions, they do."""
    root, clicks = tmp_path / "logs", [request(number) for number in range(0, 400, 3)]
    write_partitions(root, "shown", [request(number) for number in range(400)], lambda one: one["user"] % 2)
    write_partitions(root, "clicks", clicks, lambda one: one["request"] // 6 % 2)
    write_json(root, "ads", [{"ad": number, "category": "c"} for number in range(20)])
    apart = sum(one["user"] % 2 != one["request"] // 6 % 2 for one in clicks)
    lost = f"{apart} of {len(clicks)} clicks ({apart / len(clicks):.0%}) are in another partition than their"
    (tmp_path / "p.py").write_text(JOINED)
    words = [sys.executable, "-m", "livectr", "train", "--pipeline", "p.py", "--source", "file:logs"]
    words.append("--until-end")
    for ranks in ("1", "2"):  # of two ranks, each has the events of a partition
        done = run(
            [*words, "--ranks", ranks, "--set", "threads=1"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=left_s(),
            check=False,
        )
        assert done.returncode == 4 and f"{lost} impression, so they label nothing" in done.stderr
        assert "clicks is not keyed by user: " in done.stderr and "have no row of shown" not in done.stdout
    code, report, _ = train(JOINED, "--max-bad", "0.9")
    assert code == 0 and report["rows"]["clicks"]["apart"] == apart / len(clicks)
    (root / "clicks").rename(tmp_path / "apart")
    write_partitions(root, "clicks", clicks, lambda one: one["user"] % 2)
    code, report, _ = train(JOINED)
    assert code == 0 and report["hints"] == [] and report["stream"]["matched_clicks"] == len(clicks)


def test_a_file_that_cannot_be_read_to_its_end_ends_with_4(tmp_path: Path, train: Learner) -> None:
    """It is one complaint, and nobody knows how many rows are lost."""
    write_json(tmp_path / "logs", "shown", [row(number) for number in range(2_000)])
    (tmp_path / "logs" / "shown" / "00000-z.parquet").write_bytes(b"PAR1 and no end")
    code, report, said = train(LABELLED)
    assert code == 4 and report["rows"]["shown"]["unreadable_files"] == 1
    assert "shown: 1 of its files cannot be read, or not to the end, so nobody knows how many rows" in said
    assert train(LABELLED, "--max-bad", "0.02")[0] == 0


def test_what_was_committed_stays_and_a_mended_log_resumes(tmp_path: Path, train: Learner) -> None:
    """The log becomes bad: the run ends with 3, its checkpoint is whole, and with good rows it resumes."""
    flags = ("--checkpoint", str(tmp_path / "c"), "--set", "batch_ramp=256")  # few steps
    good = [row(number) for number in range(2_000)]
    write_json(tmp_path / "logs", "shown", good)
    assert train(LABELLED, *flags)[0] == 0
    before = newest_manifest(tmp_path / "c")
    assert before is not None and before.examples == 2_000
    bad = [row(number, price="x") for number in range(2_000, 14_000)]
    write_json(tmp_path / "logs", "shown", [*good, *bad])
    code, _, said = train(LABELLED, *flags)
    assert code == 3 and "rows unusable: column `price` is text" in said
    after = newest_manifest(tmp_path / "c")
    assert after is not None and after.examples == 2_000
    mended = [row(number) for number in range(2_000, 14_000)]
    write_json(tmp_path / "logs", "shown", [*good, *mended])
    code, report, _ = train(LABELLED, *flags)
    assert code == 0 and report["examples_trained"] == 14_000


def test_a_look_up_table_with_other_columns(tmp_path: Path, train: Learner) -> None:
    write_json(tmp_path / "logs", "shown", map(request, range(100)))
    write_json(tmp_path / "logs", "clicks", map(request, range(0, 100, 3)))
    write_json(tmp_path / "logs", "ads", [{"ad": number, "categorie": "c"} for number in range(20)])
    code, _, said = train(JOINED)
    assert code == 3
    assert (
        "ads: 20 of 20 rows unusable: column `category` is not in the log; did you mean `categorie`?"
        in said.splitlines()[-1]
    )


def test_materializing_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_arrow(tmp_path / "logs", "shown", [row(number) for number in range(500)])
    (tmp_path / "p.py").write_text(MISSPELT)
    source, out = f"file:{tmp_path / 'logs'}", str(tmp_path / "out")
    arguments = ["--pipeline", str(tmp_path / "p.py"), "--source", source, "--out", out]
    assert main(["features", "materialize", *arguments]) == 3
    assert "500 of 500 rows unusable: column `campain` is not in the log" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_topics_of_a_broker(
    tmp_path: Path, train: Learner, kafka_url: str, topic_name: Callable[[str], str]
) -> None:
    """Absent, empty, and full of messages without the column."""
    shown = topic_name("shown")
    pipeline = MISSPELT.replace('Stream("shown"', f'Stream("{shown}"')
    code, _, said = train(pipeline, source=kafka_url)
    assert code == 4 and f"there is no topic {shown} at" in said
    create_topics(kafka_url, {shown: 1})
    code, report, said = train(pipeline, source=kafka_url)
    assert (code, report["examples_trained"]) == (0, 0)
    assert f"{shown}: the log holds no usable row, so nothing was learned" in said
    sink = open_sink(kafka_url, {shown: 1})
    batch = [row(number) for number in range(400)]
    sink.write_batch(shown, 0, pa.RecordBatch.from_pylist(batch))
    sink.write(
        shown, np.zeros(3, np.int32), [None] * 3, [json.dumps(row(number)).encode() for number in range(3)]
    )
    sink.flush()
    sink.close()
    code, _, said = train(pipeline, source=kafka_url)
    assert code == 3
    assert (
        f"{shown}: 403 of 403 rows unusable: column `campain` is not in the log; did you mean `campaign`? "
        f"Dead letters: topic livectr.dead_letters of {kafka_url}" in said
    )


def test_a_topic_of_pictures_with_other_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "logs", "pictures", [{"id": number, "picture": "x"} for number in range(3)])
    source = [f"file:{tmp_path / 'logs'}", "--topic", "pictures", "--id-column", "id"]
    assert main(["features", "encode", *source, "--encoder", "small", "--out", str(tmp_path / "out")]) == 3
    assert "pictures: 3 of 3 rows unusable: column `image` is not in the log" in capsys.readouterr().err
