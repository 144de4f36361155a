"""Lists, dictionaries and word vectors: long lists, files, fingerprints, mistakes. Each operator against its
reference on ragged, null and sliced columns: LIST_EXPRESSIONS in test_operators.py."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from livectr.ingest import operators as op
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr, column
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features
from livectr.kernels.operators.dictionary import EqualKeysError, place
from livectr.system.errors import ConfigError
from tests.tiers import examples


def root(name: str, dtype: str) -> Expr:
    return column(ColumnRef("t", name), dtype)


I64, I32, F32, TEXT, BOOL = (
    root("i64", "int64"),
    root("i32", "int32"),
    root("f32", "float32"),
    root("text", "string"),
    root("bool", "bool"),
)
L64, LF, LTEXT = root("l64", "list<int64>"), root("lf", "list<float32>"), root("ltext", "list<string>")


def features(node: Expr, values: list[Any]) -> Features:
    """The only feature of a plan of one column: dense if it is a float, else sparse."""
    outputs = {"x": node}
    plan = FeaturePlan({}, outputs) if node.dtype.startswith("float") else FeaturePlan(outputs)
    (base,) = plan.roots
    array = pa.array(values, dtypes.arrow_type(base.dtype))
    return Extractor(plan)(pa.RecordBatch.from_arrays([array], names=[base.name]))


def keys(node: Expr, values: list[Any]) -> list[int]:
    return features(node, values).keys.tolist()


def vector(node: Expr, values: list[Any]) -> list[list[float]]:
    """A list<float32> of fixed width as a dense feature."""
    plan = FeaturePlan({"n": op.length(node)}, {"x": node})
    (base,) = plan.roots
    array = pa.array(values, dtypes.arrow_type(base.dtype))
    out = Extractor(plan)(pa.RecordBatch.from_arrays([array], names=[base.name]))
    assert set(out.keys.tolist()) == {out.dense.shape[1]}
    return out.dense.tolist()


class TestUnique:
    @pytest.mark.parametrize("kinds", [1, 7, 300, 5000, 10**9])
    def test_lists_far_beyond_the_filter(self, kinds: int) -> None:
        rng = np.random.default_rng(kinds)
        rows = [rng.integers(-kinds, kinds, size).tolist() for size in (0, 1, 63, 64, 65, 513, 9000)]
        got = features(op.unique(L64), rows)
        want = [list(dict.fromkeys(row)) for row in rows]
        assert got.keys.tolist() == [value for row in want for value in row]
        assert np.diff(got.offsets).tolist() == [len(row) for row in want]

    def test_long_lists_of_strings(self) -> None:
        rng = np.random.default_rng(0)
        row = [f"Wort-{'ß' * (number % 9)}{number}" for number in rng.integers(0, 2000, 6000)]
        got = features(op.unique(LTEXT), [row, [], row[:3]])
        want = features(LTEXT, [list(dict.fromkeys(row)), [], list(dict.fromkeys(row[:3]))])
        assert got.keys.tolist() == want.keys.tolist()

    def test_nan_and_signed_zero_are_one_number(self) -> None:
        nan = float("nan")
        assert keys(op.length(op.unique(LF)), [[nan, 1, nan, -0.0, 0.0], [nan], []]) == [3, 1, 0]


def test_largest_passes_over_nan() -> None:
    nan, inf = float("nan"), float("inf")
    rows = [[nan, -2, 1], [-3, nan], [nan], [], [inf, nan, 1]]
    assert features(op.largest(LF), rows).dense.ravel().tolist() == [1, -3, 0, 0, 0]  # inf: not finite
    assert features(op.smallest(LF), rows).dense.ravel().tolist() == [-2, -3, 0, 0, 1]


def test_age_counts_from_the_event_back() -> None:
    day = 86_400_000
    wanted: dict[Literal["s", "m", "h", "d"], float] = {"s": 129_600, "m": 2160, "h": 36, "d": 1.5}
    for unit, want in wanted.items():
        got = features(op.age(10 * day, I64, unit), [10 * day - day * 3 // 2, 10 * day, 11 * day])
        assert got.dense.ravel().tolist() == [want, 0, pytest.approx(-want / 1.5)]


class TestDictionary:
    @given(st.dictionaries(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 50), st.integers(0, 2**63 - 1)))
    @examples(200)
    def test_slots_hold_every_key_and_no_other(self, made: dict[int, int]) -> None:
        given = np.array(list(made), np.int64)
        places = place(given)
        words = np.array(list(made.values()), np.uint64)[places.order]
        slots = places.slots(words, 5)
        empty = slots[:, 0] == np.uint64(places.empty & (2**64 - 1))
        assert places.empty not in made and len(slots) > 2 * len(made) and empty[-1]
        assert (
            dict(zip(slots[~empty, 0].view(np.int64).tolist(), slots[~empty, 1].tolist(), strict=True))
            == made
        )
        assert set(slots[empty, 1].tolist()) == {5}

    def test_equal_keys_are_named_by_their_numbers(self) -> None:
        with pytest.raises(EqualKeysError) as caught:
            place(np.array([7, 3, 9, 3]))
        assert (caught.value.first, caught.value.second) == (1, 3)

    def test_many_keys(self) -> None:
        rng = np.random.default_rng(1)
        known = np.unique(rng.integers(-(2**63), 2**63 - 1, 50_000))
        table = dict(zip(known.tolist(), range(len(known)), strict=True))
        requested = np.concatenate(
            [rng.permutation(known)[:5000], rng.integers(-(2**63), 2**63 - 1, 5000)]
        ).tolist()
        requested += [-(2**63), 2**63 - 1, 0]
        assert keys(op.lookup(I64, table, -1), requested) == [table.get(key, -1) for key in requested]

    def test_dense_runs_of_keys(self) -> None:
        table = {number: -number for number in range(3000)}
        assert keys(op.lookup(I64, table, 1), list(range(-9, 3010))) == [
            table.get(n, 1) for n in range(-9, 3010)
        ]

    def test_the_content_is_the_identity(self) -> None:
        one = op.lookup(I64, {1: 2, 3: 4}, 0)
        assert op.lookup(I64, {3: 4, 1: 2}, 0) is one
        others = [op.lookup(I64, {1: 2, 3: 5}, 0), op.lookup(I64, {1: 2, 3: 4}, 9), op.lookup(I64, {1: 2}, 0)]
        prints = {FeaturePlan({"x": node}).fingerprint for node in (one, *others)}
        assert len(prints) == 4

    def test_the_node_holds_the_table(self) -> None:
        plan = FeaturePlan({"x": op.lookup(TEXT, {"ä": "ö" * 1000}, "?")})
        extractor = Extractor(plan)
        del plan
        gc.collect()
        batch = pa.record_batch({"t.text": ["ä", "b"]})
        want = features(TEXT, ["ö" * 1000, "?"])
        assert extractor(batch).keys.tolist() == want.keys.tolist()


ROWS: dict[str, list[Any]] = {
    "id": [5, -7, 2**40],
    "name": ["x", "", "ß"],
    "size": [1.5, -2.0, 1e9],
    "ok": [True, False, True],
}


class TestFiles:
    def write(self, path: Path, table: pa.Table) -> None:
        if path.suffix == ".parquet":
            pa.parquet.write_table(table, path)
        elif path.suffix == ".csv":
            pa.csv.write_csv(table, path)
        else:
            with pa.ipc.new_file(str(path), table.schema) as file:
                file.write_table(table)

    @pytest.mark.parametrize("suffix", [".parquet", ".csv", ".arrow"])
    def test_a_file_is_a_dict(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"table{suffix}"
        self.write(path, pa.table(ROWS))
        ids, names = ROWS["id"], ROWS["name"]
        for column_of, base, value, default in (
            (ids, I64, "name", "?"),
            (ids, L64, "size", 0.5),
            (ids, I32, "ok", True),
            (names, TEXT, "id", -1),
            (names, LTEXT, "size", None),
        ):
            key = "id" if column_of is ids else "name"
            made = dict(zip(column_of, ROWS[value], strict=True))
            node = op.lookup(base, path, default, key=key, value=value)
            assert node is op.lookup(base, made, default)
            assert node is op.lookup(base, str(path), default, key=key, value=value)

    def test_arrow_types_keep_their_width(self, tmp_path: Path) -> None:
        path = tmp_path / "table.parquet"
        columns = {
            "int8": ("int32", pa.array([1, -2], pa.int8())),
            "uint32": ("int64", pa.array([1, 2**32 - 1], pa.uint32())),
            "float": ("float32", pa.array([0.1, 2], pa.float32())),
            "double": ("float64", pa.array([0.1, 2])),
            "category": ("string", pa.array(["a", "b"]).dictionary_encode()),
            "vector": ("list<float32>", pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2))),
            "many": ("list<int64>", pa.array([[1], [2, 3]], pa.large_list(pa.int64()))),
        }
        self.write(path, pa.table({"key": pa.array(["a", "b"]), **{n: a for n, (_, a) in columns.items()}}))
        for name, (dtype, array) in columns.items():
            node = op.lookup(TEXT, path, value=name)
            assert node.dtype == dtype
            shown = op.total(node) if dtypes.is_list(dtype) else node
            want = [sum(v) if dtypes.is_list(dtype) else v for v in array.to_pylist()]
            if "float" in dtype:
                got = features(shown, ["a", "b", "c"]).dense.ravel().tolist()
                assert got == np.array([*want, 0], np.float32).tolist()
            elif dtype == "string":
                assert keys(shown, ["a", "b", "c"]) == keys(TEXT, ["a", "b", ""])
            else:
                assert keys(shown, ["a", "b", "c"]) == [*want, 0]

    def test_csv_keys_have_the_type_of_the_expression(self, tmp_path: Path) -> None:
        path = tmp_path / "table.csv"
        path.write_text("key,value\n007,1\nNA,2\n,3\n")
        assert keys(op.lookup(TEXT, path, -1), ["007", "7", "NA", ""]) == [1, -1, 2, 3]


WORDS = ["a", "b", "ä"]
MATRIX = np.array([[1, 2, 3], [10, 20, 30], [-0.5, 0, 1e-3]], np.float32)


class TestWordEmbedding:
    def test_mean_and_sum(self) -> None:
        rows = [["a", "b"], ["ä", "?", "a", "a"], ["?"], [], None]
        half = ((MATRIX[2] + MATRIX[0]) + MATRIX[0]) / np.float32(3)
        want = np.array([MATRIX[:2].mean(0), half, *[[0] * 3] * 3], np.float32)
        assert vector(op.word_embedding(LTEXT, (WORDS, MATRIX)), rows) == want.tolist()
        total = op.word_embedding(LTEXT, (WORDS, MATRIX), pool="sum")
        assert vector(total, rows)[0] == [11, 22, 33]
        assert vector(op.word_embedding(TEXT, (WORDS, MATRIX)), ["ä", None, "b"]) == [
            MATRIX[2].tolist(),
            [0, 0, 0],
            [10, 20, 30],
        ]

    @pytest.mark.parametrize("dim", [1, 8, 31, 40, 100])
    def test_long_texts_are_looked_up_again(self, dim: int) -> None:
        rng = np.random.default_rng(dim)
        matrix = rng.normal(size=(60, dim)).astype(np.float32)
        rows = [rng.integers(-20, 80, size).tolist() for size in (31, 32, 33, 700)]
        got = vector(op.word_embedding(L64, (list(range(60)), matrix), "sum"), rows)
        for row, vector_of in zip(rows, got, strict=True):
            want = np.zeros(dim, np.float32)
            for word in row:
                want += matrix[word] if 0 <= word < 60 else 0
            assert vector_of == want.tolist()

    def test_every_format_gives_the_same_node(self, tmp_path: Path) -> None:
        want = op.word_embedding(LTEXT, (WORDS, MATRIX))
        lines = [" ".join([word, *map(repr, row)]) for word, row in zip(WORDS, MATRIX.tolist(), strict=True)]
        files: dict[str, Callable[[Path], object]] = {
            "glove.txt": lambda path: path.write_text("\n".join(lines) + "\n"),
            "word2vec.txt": lambda path: path.write_text("\n".join(["3 3", *lines])),
            "fasttext.vec": lambda path: path.write_text(
                "\n".join(["3 3", *[f"{line} " for line in lines], ""])
            ),
            "strings.npz": lambda path: np.savez(path, words=np.array(WORDS), vectors=MATRIX),
            "bytes.safetensors": lambda path: save_file(
                {"words": np.frombuffer("\n".join(WORDS).encode(), np.uint8), "vectors": MATRIX}, path
            ),
        }
        for name, write in files.items():
            write(tmp_path / name)
            assert op.word_embedding(LTEXT, tmp_path / name) is want, name

    def test_integer_words(self, tmp_path: Path) -> None:
        want = op.word_embedding(L64, ([4, 5, -6], MATRIX))
        np.savez(tmp_path / "keys.npz", keys=np.array([4, 5, -6]), vectors=MATRIX)
        save_file({"keys": np.array([4, 5, -6]), "vectors": MATRIX}, tmp_path / "keys.safetensors")
        (tmp_path / "keys.txt").write_text("4 1 2 3\n5 10 20 30\n-6 -0.5 0 1e-3\n")
        for path in tmp_path.iterdir():
            assert op.word_embedding(L64, path) is want, path.name
        assert vector(want, [[4], [-6, 5]]) == [[1, 2, 3], [4.75, 10, float(np.float32(30.001) / 2)]]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: op.head(I64, 1), "head needs a list, but t.i64 is int64"),
        (lambda: op.tail(L64, 0), "n must be a whole number of at least 1, not 0"),
        (lambda: op.unique(TEXT), "unique needs a list, but t.text is string"),
        (lambda: op.total(LTEXT), "total needs a list of numbers or bools, but t.ltext is list<string>"),
        (lambda: op.mean(I64), "mean needs a list of numbers or bools, but t.i64 is int64"),
        (lambda: op.largest(LTEXT), "largest needs a list of numbers, but t.ltext is list<string>"),
        (lambda: op.smallest(F32), "smallest needs a list of numbers, but t.f32 is float32"),
        (lambda: op.item(I64, 0), "item needs a list, but t.i64 is int64"),
        (lambda: op.item(L64, F32), r"index into t.l64 \(list<int64>\), but t.f32 is float32"),
        (lambda: op.item(L64, L64), "but t.l64 is list<int64>"),
        (lambda: op.count_of(L64, TEXT), "but t.l64 is list<int64> and t.text is string"),
        (lambda: op.count_of(LTEXT, 3), "but t.ltext is list<string> and 3 is int64"),
        (lambda: op.contains_item(L64, L64), "but t.l64 is list<int64> and t.l64 is list<int64>"),
        (lambda: op.contains_item(L64, "a"), "but t.l64 is list<int64> and 'a' is string"),
        (lambda: op.age(I64, I32), r"age needs epoch milliseconds \(int64\), but t.i32 is int32"),
        (
            lambda: op.age(I64, I64, "w"),  # type: ignore[arg-type]
            "unit 'w' is not one of s, m, h, d",
        ),
        (lambda: op.lookup(F32, {1: 2}), "lookup needs whole numbers or strings, but t.f32 is float32"),
        (
            lambda: op.lookup(I64, {"a": 2}),
            "the keys must be whole numbers, because t.i64 is int64, not string",
        ),
        (lambda: op.lookup(TEXT, {1: 2}), "the keys must be strings, because t.text is string, not int64"),
        (lambda: op.lookup(I64, {True: 2}), "the keys must be whole numbers, .* not bool"),
        (lambda: op.lookup(I64, {}), "the mapping is empty"),
        (lambda: op.lookup(I64, {1: None, 2: 3}), "the value of row 0 is null"),
        (lambda: op.lookup(I64, {1: 1, 2: "b"}), "values do not have one type"),
        (lambda: op.lookup(I64, {1: 1, "b": 2}), "keys do not have one type"),
        (lambda: op.lookup(I64, {1: ["a"]}), "values of type list<.*string> are not numbers, bools"),
        (lambda: op.lookup(I64, {1: [1, None]}), "a list of the values has a null"),
        (lambda: op.lookup(I64, {1: 2}, 0.5), "default: 0.5 is not a value of type int64"),
        (lambda: op.lookup(I64, {1: [2]}, 5), "default=5 is not a list, but the values are list<int64>"),
        (lambda: op.lookup(L64, {1: [2]}), "t.l64 is list<int64> and the values are list<int64>"),
        (lambda: op.lookup(I64, {1: [0] * 65_537}), "a value has 65537 bytes or items; at most 65536 can be"),
        (lambda: op.lookup(TEXT, {"a": "b"}, "c" * 2**24), "a value has 16777216 bytes or items"),
        (
            lambda: op.lookup(I64, 5),  # type: ignore[arg-type]
            "the mapping must be a dict or the path of a file, not 5",
        ),
        (lambda: op.lookup(I64, "no/such.csv"), "there is no file no/such.csv"),
        (lambda: op.lookup(I64, "table.txt"), "table.txt must end in .parquet, .arrow, .feather, .ipc, .csv"),
        (
            lambda: op.word_embedding(I32, (WORDS, MATRIX)),
            r"needs words \(strings or int64\), but t.i32 is int32",
        ),
        (
            lambda: op.word_embedding(L64, (WORDS, MATRIX)),
            "the keys must be whole numbers, because t.l64 is list",
        ),
        (
            lambda: op.word_embedding(TEXT, (WORDS, MATRIX), "max"),  # type: ignore[arg-type]
            'pool must be "mean" or "sum", not \'max\'',
        ),
        (
            lambda: op.word_embedding(TEXT, (["a"], MATRIX)),
            r"1 words and vectors of shape \(3, 3\) do not go",
        ),
        (lambda: op.word_embedding(TEXT, (WORDS, MATRIX[0])), r"must be float32\[n, dim\], not float32\[3\]"),
        (lambda: op.word_embedding(TEXT, (["a", "b", "a"], MATRIX)), "the key 'a' is there twice"),
        (lambda: op.word_embedding(TEXT, (WORDS, MATRIX / 0)), "a number that is not finite"),
        (lambda: op.word_embedding(TEXT, "x.bin"), "x.bin must end in .txt, .vec, .npz or .safetensors"),
        (lambda: op.word_embedding(TEXT, "no/such.npz"), "there is no file no/such.npz"),
        (
            lambda: op.word_embedding(TEXT, 3),  # type: ignore[arg-type]
            "vectors must be a path or",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_wrong_uses_get_a_sentence(build: Callable[[], Expr], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


def test_wrong_files_get_a_sentence(tmp_path: Path) -> None:
    csv, ragged, npz = tmp_path / "table.csv", tmp_path / "ragged.txt", tmp_path / "empty.npz"
    csv.write_text("key,value\n1,2\n1,3\n")
    with pytest.raises(ConfigError, match="the key 1 is there twice"):
        op.lookup(I64, csv)
    with pytest.raises(ConfigError, match="has no columns 'key' and 'other'; name them by key= and value="):
        op.lookup(I64, csv, value="other")
    csv.write_text("key,value\nx,2\n")
    with pytest.raises(ConfigError, match=r"table.csv cannot be read: .*int64"):
        op.lookup(I64, csv)
    csv.write_text("key,value\n1,\n2,5\n")
    with pytest.raises(ConfigError, match="the value of row 0 is null"):
        op.lookup(I64, csv)
    ragged.write_text("a 1 2\nb 1 2 3\n")
    with pytest.raises(ConfigError, match=r"ragged.txt cannot be read: .*[Ee]xpected 3 columns, got 4"):
        op.word_embedding(TEXT, ragged)
    np.savez(npz, rows=MATRIX)
    with pytest.raises(ConfigError, match="needs `vectors` and `keys` or `words`; it has rows"):
        op.word_embedding(TEXT, npz)
