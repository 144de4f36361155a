"""Word vectors given with the pipeline (Op5 of FeatureBox, Fig. 4)."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import Expr, Operand, as_expr, need
from livectr.ingest.language.resources import Resource
from livectr.ingest.operators.pairs import as_array, key_places
from livectr.kernels.runtime.columns import MAX_ROW_VALUES
from livectr.system.errors import ConfigError, reason_of

VECTOR_STEP = 8
"""Rows are padded to a multiple of it, as in kernels/operators/dictionary.cuh."""


def word_embedding(
    words: Operand, vectors: str | Path | tuple[Any, Any], pool: Literal["mean", "sum"] = "mean"
) -> Expr:
    """Mean or sum of the word vectors of words: list<float32> with the width of a vector.

    Unknown words are ignored, also by the mean; a repeated word counts as often as it occurs. Without known
    words all numbers are 0. Vectors are added in the order of the words, in float32. The vectors are part of
    the pipeline's fingerprint.

    .txt, .vec           word2vec's text format: a line for each word, followed by its numbers; the first line
                         may give n and dim
    .npz, .safetensors   an array `vectors` [n, dim], and either `keys` int64[n] or `words`:
                         strings[n] (.npz) or uint8, the UTF-8 words joined by newlines (both)

    Args:
        words: string, int64, or a list of them.
        vectors: (words, float32[n, dim]), or the path of a file in a format above.
        pool: "mean" or "sum".

    Example: `word_embedding(split(lower(log.query), " "), "glove.txt")`.
    """
    node = as_expr(words, "word_embedding")
    need("word_embedding", node, ("string", "int64"), "words (strings or int64)")
    where = f"word_embedding({node})"
    if pool not in ("mean", "sum"):
        raise ConfigError(f'{where}: pool must be "mean" or "sum", not {pool!r}')
    keys, matrix = _read(vectors, where)
    if dtypes.element(node.dtype) == "int64" and isinstance(vectors, str | Path) and keys.type == pa.string():
        keys = _as_int64(keys, where)
    resource = _resource(node, keys, matrix, where)
    call = "word_embedding({resource}, {0}, {a[0]}, {sink})"
    params = (len(keys), pool, ("width", matrix.shape[1]))
    device = Device(call, rowwise=True, arguments=(("bool", pool == "mean"),), resource=resource)
    return Expr("word_embedding", (node,), dtype="list<float32>", device=device, params=params)


def _resource(node: Expr, keys: pa.Array, matrix: npt.NDArray[np.float32], where: str) -> Resource:
    count, dim = matrix.shape
    if len(keys) != count or not count or not 0 < dim <= MAX_ROW_VALUES or count >= 2**31:
        raise ConfigError(
            f"{where}: {len(keys)} words and vectors of shape {matrix.shape} do not go together"
        )
    places = key_places(keys, where, node)
    stride = -(-dim // VECTOR_STEP) * VECTOR_STEP
    padded = np.zeros((count, stride), np.float32)
    padded[:, :dim] = matrix[places.order]
    if not np.isfinite(padded).all():
        raise ConfigError(f"{where}: a vector has a number that is not finite")
    slots = places.slots(np.arange(count, dtype=np.uint64), 2**32 - 1)
    return Resource("WordVectors", [slots, padded], [places.shift, places.empty, dim, stride])


def _read(vectors: object, where: str) -> tuple[pa.Array, npt.NDArray[np.float32]]:
    if isinstance(vectors, tuple) and len(vectors) == 2:
        keys = as_array(vectors[0], f"{where}: words")
        return keys, _matrix(vectors[1], where)
    if not isinstance(vectors, str | Path):
        raise ConfigError(f"{where}: vectors must be a path or (words, float32[n, dim]), not {vectors!r}")
    path = Path(vectors)
    try:
        if path.suffix in (".txt", ".vec"):
            return _read_text(path)
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return _named(dict(file), path, where)
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            return _named(load_file(path), path, where)
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no file {path}") from None
    except (pa.ArrowException, OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{where}: {path} cannot be read: {reason_of(error)}") from None
    raise ConfigError(f"{where}: {path} must end in .txt, .vec, .npz or .safetensors")


def _named(arrays: dict[str, Any], path: Path, where: str) -> tuple[pa.Array, npt.NDArray[np.float32]]:
    keys = arrays.get("keys", arrays.get("words"))
    if keys is None or "vectors" not in arrays:
        raise ConfigError(
            f"{where}: {path} needs `vectors` and `keys` or `words`; it has {', '.join(arrays)}"
        )
    if "keys" not in arrays and keys.dtype == np.uint8:
        keys = keys.tobytes().decode().split("\n")
    return as_array(keys, f"{where}: words"), _matrix(arrays["vectors"], where)


def _matrix(values: object, where: str) -> npt.NDArray[np.float32]:
    matrix = np.asarray(values)
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise ConfigError(f"{where}: vectors must be float32[n, dim], not {matrix.dtype}{list(matrix.shape)}")
    return matrix.astype(np.float32)


def _read_text(path: Path) -> tuple[pa.Array, npt.NDArray[np.float32]]:
    with path.open("rb") as file:
        first = file.readline()
        header = len(first.split()) == 2 and all(part.isdigit() for part in first.split())
        line = file.readline() if header else first
    columns = [str(index) for index in range(len(line.rstrip(b"\r\n").split(b" ")))]
    filling = (
        columns[-1:] if line.rstrip(b"\r\n").endswith(b" ") else []
    )  # some programs end lines with a space
    numbers = columns[1 : len(columns) - len(filling)]
    table = pa.csv.read_csv(
        path,
        read_options=pa.csv.ReadOptions(column_names=columns, skip_rows=int(header)),
        parse_options=pa.csv.ParseOptions(delimiter=" ", quote_char=False, ignore_empty_lines=True),
        convert_options=pa.csv.ConvertOptions(
            include_columns=["0", *numbers],
            column_types={"0": pa.string()} | dict.fromkeys(numbers, pa.float32()),
            null_values=[],
        ),
    )
    words = pa.concat_arrays(table.column(0).chunks) if table.num_rows else pa.array([], pa.string())
    matrix = np.empty((table.num_rows, len(numbers)), np.float32)
    for index in range(len(numbers)):
        matrix[:, index] = table.column(index + 1).to_numpy()
    return words, matrix


def _as_int64(words: pa.Array, where: str) -> pa.Array:
    try:
        return words.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{where}: the words of the file must be whole numbers: {error}") from None
