"""Targets of the fuzzers: units of C++ and readers in Python that take bytes from outside.

A target in Python is a function of the bytes of an input. Whatever it raises is a finding: it takes the
errors that its reader may raise, and asserts what holds for the result. A target in C++ is a harness in
`native/`: a report of a sanitizer is a finding, and so is a REQUIRE that does not hold. It is one of a
target in Python, too, whose kernels are `sanitized`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

FOLDER = Path(__file__).parent
CORPUS = FOLDER / "corpus"
"""Inputs that are kept: CORPUS/TARGET/NAME. Those of mended findings have names that begin with "found-"."""
NATIVE = FOLDER / "native"

Body = Callable[[bytes], None]


@dataclass(frozen=True)
class Target:
    """Target.

    Args:
        name: of the target, and of its folder of inputs.
        module: module of `tests.fuzz` with the function `name`; "": a harness in C++.
        measured: modules, with those below them, whose branches guide the fuzzer.
        most_bytes: longest input.
        sanitized: compiled kernels take the input, and have AddressSanitizer and UndefinedBehaviorSanitizer.
    """

    name: str
    module: str = ""
    measured: tuple[str, ...] = ()
    most_bytes: int = 1000
    sanitized: bool = False

    @property
    def native(self) -> bool:
        """True for a harness in C++."""
        return not self.module

    def body(self) -> Body:
        """Function of the target, in Python."""
        return cast(Body, getattr(importlib.import_module(f"tests.fuzz.{self.module}"), self.name))


_FILES = ("livectr.guess", "livectr.logs", "livectr.ingest.sources.part_file", "tests.fuzz.files")
_DECODE = ("livectr.ingest.decode", "livectr.ingest.dead_letters", "tests.fuzz.rows")
_REDIS = ("livectr.store", "livectr.trainer.publish.log", "tests.fuzz.redis_values")
_REQUEST = ("livectr.serving.request", "livectr.serving.score", "tests.fuzz.requests")

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        *(
            Target(path.stem)
            for path in sorted(NATIVE.glob("*.cpp"))
            if path.stem != "replay"
        ),
        Target("json_rows", "rows", _DECODE),
        Target("arrow_rows", "rows", _DECODE, 4000),
        Target("avro_rows", "rows", _DECODE),
        Target("protobuf_rows", "rows", _DECODE),
        Target("kafka_batches", "rows", ("livectr.ingest.sources.kafka_batches", *_DECODE), 1000),
        Target("log_files", "files", _FILES, 4000),
        Target("rank_request", "requests", _REQUEST, sanitized=True),
        Target("rank_answer", "answers", (*_REQUEST[:2], "tests.fuzz.answers"), sanitized=True),
        Target("rank_lists", "answers", (*_REQUEST[:2], "tests.fuzz.answers"), sanitized=True),
        Target("prerank_request", "requests", _REQUEST, sanitized=True),
        Target("prerank_answer", "answers", (*_REQUEST[:2], "tests.fuzz.answers"), sanitized=True),
        Target("recommend_request", "requests", _REQUEST, sanitized=True),
        Target("json_request", "requests", ("livectr.serving.front", "tests.fuzz.requests")),
        Target("checkpoint_manifest", "checkpoints", ("livectr.trainer.checkpoint",), 2000),
        Target("checkpoint_tables", "checkpoints", ("livectr.trainer.checkpoint",), 1000),
        Target("version_manifest", "redis_values", _REDIS, 1500),
        Target("published_rows", "redis_values", _REDIS),
        Target("published_blobs", "redis_values", _REDIS, 1000),
        Target("publish_log", "redis_values", _REDIS),
        Target("literals", "literals", ("livectr.ingest.language.literals", "tests.fuzz.literals")),
    )
}  # fmt: skip
"""Name → target, those of C++ first."""


def inputs(target: Target) -> list[Path]:
    """Inputs that are kept."""
    return sorted((CORPUS / target.name).iterdir())
