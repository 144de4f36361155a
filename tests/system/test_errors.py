"""Sentences about a file that cannot be read: the system's words once, and no number."""

from collections.abc import Callable
from pathlib import Path

import pytest

from livectr.ingest import operators as op
from livectr.ingest.addresses import kafka_options
from livectr.ingest.language.streams import Stream
from livectr.library.tables import to_table
from livectr.logs.account import Account
from livectr.logs.files import log_rows
from livectr.secrets import read_password
from livectr.serving.access.tokens import read_token
from livectr.simulator.ledger import read_ledger
from livectr.system.errors import ConfigError

LOG = Stream("log", key="word", columns={"word": "string"})

READERS: dict[str, Callable[[Path], object]] = {
    "password.txt": read_password,
    "tokens.txt": read_token,
    "user.txt": lambda path: kafka_options(f"kafka://h:1?user_file={path}&password_file={path}"),
    "ledger.arrows": read_ledger,
    "rows.parquet": lambda path: to_table(str(path), "rows"),
    "log.parquet": lambda path: list(log_rows(Account(path))),
    "log.csv": lambda path: list(log_rows(Account(path))),
    "pairs.csv": lambda path: op.lookup(LOG.word, path),
    "vectors.txt": lambda path: op.word_embedding(LOG.word, path),
    "vectors.safetensors": lambda path: op.word_embedding(LOG.word, path),
}
"""File → its reader."""


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        READERS[name](tmp_path / name)
    said = str(refused.value)
    assert "rrno" not in said and said.count(str(tmp_path / name)) == (2 if name == "user.txt" else 1)
    assert "o such file" in said or "there is no file" in said


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"rows.parquet"}))  # which may be a folder of files
def test_a_folder_in_place_of_a_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(
        ConfigError, match=r"(?i)is a directory|no such device|has no file that ends in"
    ) as refused:
        READERS[name](tmp_path / name)
    assert "rrno" not in str(refused.value)
