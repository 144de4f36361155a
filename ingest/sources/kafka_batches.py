"""Kafka record batches, decompressed up to a limit; unreadable records become dead letters.

A producer compresses records as one batch, which the broker stores unchanged: 1 MB on the wire may decompress
to gigabytes. kafka-python decompresses a batch completely, and any error about one record stops its
partition, again at each restart. `ReadableBatch` replaces its batch class. It decompresses up to a limit and
returns an `UnreadableMessage` for an unreadable batch or record, so that the next can be read.

Such batches are rare, because a broker checks a producer's batch. Known cases are a header key that is not
UTF-8, which no broker checks, and a batch that decompresses to too much. A wrong checksum stays an error:
bits were lost on a disk or in the network, which says nothing about the record.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
from kafka import codec
from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.record.util import decode_varint

from livectr.ingest.chunks import UnreadableMessage
from livectr.ingest.limits import LIMITS
from livectr.ingest.sources.kafka_blocks import RecordBlock
from livectr.kernels.stream.records import read_records

_CHUNK = 1024  # records that are read together


class TooLargeError(Exception):
    """Raised when a batch decompresses to more than the limit."""


class ReadableBatch(DefaultRecordBatch):  # type: ignore[misc]
    """Record batch of format v2 whose iteration raises nothing but UnsupportedCodecError."""

    _buffer: bytearray
    _pos: int
    _decompressed: bool
    blocks = False
    """True: all records come as one, whose value is a `RecordBlock`."""
    unpacked_bytes = LIMITS.unpacked_bytes
    """Greatest size of a decompressed batch, for the whole process."""

    def __iter__(self) -> Iterator[DefaultRecord]:
        try:
            self._maybe_uncompress()
        except UnsupportedCodecError:
            raise
        except TooLargeError:
            detail = f"more than {self.unpacked_bytes} bytes when they are unpacked"
            return iter([self._unreadable(detail)])
        except Exception as error:  # decoders of damaged bytes raise whatever they stumble over
            return iter([self._unreadable(f"{type(error).__name__}: {error}")])
        block = self._block() if self.blocks else None
        return chain.from_iterable(self._chunks()) if block is None else iter(block)

    def _block(self) -> list[DefaultRecord] | None:
        """All records as one, or none for an empty batch; None: they are unusual."""
        data = memoryview(self._buffer)[self._pos :]
        spans = read_records(data, self.base_offset, self.records_count, self.first_timestamp)
        if spans is None or not len(spans.offsets):
            return None if spans is None else []
        append_ms = None
        if self.timestamp_type == self.LOG_APPEND_TIME:
            append_ms = np.full(len(spans.offsets), self.max_timestamp)
        return [self._record(int(spans.offsets[-1]), RecordBlock(data, spans, append_ms))]

    def _maybe_uncompress(self) -> None:
        if not self._decompressed and self.compression_type != self.CODEC_NONE:
            self._assert_has_codec(self.compression_type)
            packed = memoryview(self._buffer)[self._pos :]
            unpack = _UNPACK[self.compression_type]
            self._buffer, self._pos = bytearray(unpack(packed, self.unpacked_bytes)), 0
        self._decompressed = True

    def _chunks(self) -> Iterator[list[DefaultRecord]]:
        read, left = self._read_msg, self.records_count
        last = self.base_offset - 1
        while left > 0:
            begin, count = self._pos, min(left, _CHUNK)
            try:
                records = [read() for _ in range(count)]
            except Exception:
                self._pos = begin
                records = list(islice(self._one_by_one(last), count))
            yield records
            last = records[-1].offset
            left = left - count if len(records) == count else 0

    def _one_by_one(self, last: int) -> Iterator[DefaultRecord]:
        """Records after offset `last`, up to the first record without a known end."""
        while True:
            stop, offset = self._pos, last + 1
            try:
                length, begin = decode_varint(self._buffer, self._pos)
                if length < 0 or begin + length > len(self._buffer):
                    raise CorruptRecordError(f"a record of {length} bytes")
                stop = begin + length
                _, at = decode_varint(self._buffer, begin)  # attributes
                _, at = decode_varint(self._buffer, at)  # time
                offset = max(offset, self.base_offset + decode_varint(self._buffer, at)[0])
                record = self._read_msg()
            except Exception as error:
                known = stop > self._pos
                self._pos = stop
                rest = "" if known else f", nor are those up to offset {self.last_offset}"
                why = f"the record is not readable{rest} ({type(error).__name__}: {error})"
                yield self._record(min(offset, self.last_offset), UnreadableMessage(why))
                if not known:
                    return
            else:
                yield record
            last = offset

    def _unreadable(self, why: str) -> DefaultRecord:
        detail = f"the batch of offsets {self.base_offset} to {self.last_offset} is not readable: {why}"
        return self._record(self.base_offset, UnreadableMessage(detail, max(self.records_count, 1)))

    def _record(self, offset: int, value: UnreadableMessage | RecordBlock) -> DefaultRecord:
        return DefaultRecord(0, offset, self.max_timestamp, self.timestamp_type, None, value, [])


def bound_batches(unpacked_bytes: int) -> None:
    """Make every consumer of this process read `ReadableBatch`es.

    They have at most `unpacked_bytes` decompressed bytes.
    """
    ReadableBatch.unpacked_bytes = unpacked_bytes
    memory_records.DefaultRecordBatch = ReadableBatch


def _gzip(packed: memoryview, limit: int) -> bytes:
    unpacked, rest = b"", bytes(packed)
    while rest:  # members may follow each other
        member = zlib.decompressobj(wbits=31)
        unpacked += member.decompress(rest, limit + 1 - len(unpacked))
        if len(unpacked) > limit:
            raise TooLargeError
        if not member.eof:
            raise EOFError("a gzip member without its end")
        rest = member.unused_data
    return unpacked


def _zstd(packed: memoryview, limit: int) -> bytes:
    with codec.zstd.ZstdDecompressor().stream_reader(bytes(packed), read_across_frames=True) as reader:
        return _read(reader, limit)


def _lz4(packed: memoryview, limit: int) -> bytes:
    if codec.lz4 is None:  # an older library decodes without a limit
        return bytes(codec.lz4_decode(bytes(packed)))
    with codec.lz4.open(io.BytesIO(packed), "rb") as reader:
        return _read(reader, limit)


def _snappy(packed: memoryview, limit: int) -> bytes:
    """Decompress blocks, after a check of the sizes that they begin with.

    The decoder trusts these sizes.
    """
    data = bytes(packed)
    blocks = [data]
    if codec._detect_xerial_stream(data):
        at, blocks = 16, []
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big", signed=True)
            if size < 0:
                raise ValueError("a snappy block of negative size")
            blocks.append(data[at + 4 : at + 4 + size])
            at += 4 + size
    if sum(map(_snappy_bytes, blocks)) > limit:
        raise TooLargeError
    return b"".join(map(codec.snappy.decompress, blocks))


def _snappy_bytes(block: bytes) -> int:
    size = 0
    for place, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    return size


def _read(reader: Any, limit: int) -> bytes:
    unpacked = bytearray()
    while part := reader.read(min(limit + 1 - len(unpacked), 1 << 20)):
        unpacked += part
        if len(unpacked) > limit:
            raise TooLargeError
    return bytes(unpacked)


_UNPACK = {
    DefaultRecordBatch.CODEC_GZIP: _gzip,
    DefaultRecordBatch.CODEC_SNAPPY: _snappy,
    DefaultRecordBatch.CODEC_LZ4: _lz4,
    DefaultRecordBatch.CODEC_ZSTD: _zstd,
}
