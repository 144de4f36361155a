"""Encoding of pictures into a content store, and its description, for `livectr features`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from livectr.ingest.content.encode import F32, U8, PictureWriter
from livectr.ingest.content.store import ContentStore, shard_of
from livectr.ingest.dead_letters.letters import DeadLetters, Reason
from livectr.ingest.dead_letters.usable import judge
from livectr.ingest.materialized.parts import Part
from livectr.logs.pictures import Picture, Pictures, changed_last, open_pictures
from livectr.system.errors import ConfigError

if TYPE_CHECKING:  # PyTorch takes seconds, which `images show` need not wait for
    from livectr.models.encoders import Encoder


@dataclass(frozen=True)
class EncodeOptions:
    """Options of `encode`.

    Args:
        source: folder of pictures, `file:DIR` or `kafka://HOST:PORT[/TOPIC]`.
        out: folder of the content store.
        encoder: name of the encoder.
        topic: topic of a log.
        key: column of ids in the topic (`name` or `name:dtype`).
        image: column of pictures in the topic.
        batch: pictures that are encoded at a time.
        shards: of a new store.
        device: "cpu" or "gpu".
        dead_letters: target of dead letters; None: beside the log, or nowhere for a folder.
        part: shards s with s mod count = index; other processes encode the others.
    """

    source: str
    out: Path
    encoder: str
    topic: str | None = None
    key: str = "image_id"
    image: str = "image"
    batch: int = 64
    shards: int = 16
    device: str = "cpu"
    dead_letters: str | None = None
    part: Part = Part()


def encode(options: EncodeOptions) -> int:
    """Encode every picture that the store does not hold.

    Shows a progress bar, then prints a line on standard error and a JSON line on standard output.

    Raises:
        ConfigError: source, encoder, store or device cannot be used.
        DataError: too few rows of the topic can be used.
    """
    start = time.monotonic()
    letters, part = _letters(options), options.part
    reading = letters if part.index == 0 else DeadLetters(None)  # every part reads the whole source
    pictures = open_pictures(
        options.source, topic=options.topic, key=options.key, image=options.image, dead_letters=reading
    )
    try:
        encoder = _encoder(options)
        store = ContentStore.ensure(
            options.out, width=encoder.width, encoder=encoder.name, shards=options.shards
        )
        if part.count > 1:
            store = ContentStore.open(options.out, range(part.index, store.shards, part.count))
            shards, own = store.shards, store.own_shards
            pictures.only(lambda ids: np.isin(shard_of(ids, shards), own))
        tally = _encode_all(pictures, store, encoder, letters, options)
        judge(reading.rows, letters.place, final=True)
    finally:
        pictures.close()
        letters.close()
    seconds = time.monotonic() - start
    bad = letters.counts.total()
    summary = {
        "folder": str(options.out), "encoder": store.encoder, "width": store.width,
        "encoded": tally.encoded, "skipped": tally.skipped, "bad": bad, "ids": len(store),
        "bytes": store.bytes_on_disk, "seconds": round(seconds, 3),
    }  # fmt: skip
    said = f"{options.out}: {tally.encoded:,} encoded, {tally.skipped:,} were there already, {bad:,} bad"
    if bad:
        said += f" ({_where(options, letters)})"
    said += f"; {len(store):,} ids, {seconds:.1f} s"
    Console(stderr=True).print(said, soft_wrap=True, highlight=False, markup=False)
    print(json.dumps(summary))
    sys.stdout.flush()
    return 0


def show(folder: Path, *, as_json: bool) -> int:
    """Print encoder, width, ids and size of a content store."""
    store = ContentStore.open(folder)
    values = {
        "folder": str(folder),
        "encoder": store.encoder,
        "width": store.width,
        "ids": len(store),
        "shards": store.shards,
        "chunks": store.chunk_count,
        "bytes": store.bytes_on_disk,
    }
    if as_json:
        print(json.dumps(values))
    else:
        for name, value in values.items():
            print(f"{name:8} {value:,}" if isinstance(value, int) else f"{name:8} {value}")
    return 0


@dataclass
class _Tally:
    encoded: int = 0
    skipped: int = 0


def _encode_all(
    pictures: Pictures, store: ContentStore, encoder: Encoder, letters: DeadLetters, options: EncodeOptions
) -> _Tally:
    import torch

    def run(pixels: U8) -> F32:
        try:
            values: F32 = encoder(torch.from_numpy(pixels)).numpy()
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return values

    tally = _Tally()
    writer = PictureWriter(store, run, size=encoder.size, short_side=encoder.short_side, batch=options.batch)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(encoder.name, total=None)
        try:
            for batch in changed_last(pictures.batches(2 * options.batch), store):
                outcome = writer.write(batch.ids, batch.values)
                _report(batch.pictures, outcome.bad, letters, batch.values)
                tally.encoded += outcome.encoded
                tally.skipped += outcome.skipped
                done = bar.tasks[task].completed + len(batch.values)
                bar.update(task, completed=done, total=done + pictures.behind)
        finally:
            writer.close()  # after Ctrl-C, too: encoded pictures are kept
    return tally


def _report(
    pictures: list[Picture], bad: Collection[tuple[int, str]], letters: DeadLetters, values: list[bytes]
) -> None:
    for place, reason in bad:
        at = pictures[place]
        detail = f"{at.name}: {reason}"
        letters.write((at.topic, at.partition, at.offset, at.index), Reason.BAD_IMAGE, detail, values[place])


def _encoder(options: EncodeOptions) -> Encoder:
    import torch

    from livectr.models.encoders import load_encoder

    if options.device == "gpu" and not torch.cuda.is_available():
        raise ConfigError("PyTorch sees no GPU; leave --device gpu out")
    try:
        return load_encoder(options.encoder, device="cuda" if options.device == "gpu" else "cpu")
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _letters(options: EncodeOptions) -> DeadLetters:
    index, count = options.part.index, options.part.count
    if options.dead_letters is None and options.source.startswith(("file:", "kafka:")):
        return DeadLetters.for_source(options.source, writer=index, writers=count)
    return DeadLetters(options.dead_letters, writer=index, writers=count)


def _where(options: EncodeOptions, letters: DeadLetters) -> str:
    if letters.target is None:
        return "say --dead-letters DIR to learn which and why"
    return f"which and why: {letters.target}"
