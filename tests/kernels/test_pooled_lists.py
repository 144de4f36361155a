"""A compiled call pools a model's lists as the model does, whether rows share them or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from livectr.kernels.keys.keys import KeyNumbers
from livectr.kernels.request.look_up import DONE, EXPIRED, MISSING_CONTENT, MISSING_ROWS, TOO_MANY_PAIRS
from livectr.kernels.request.pooled import FieldPlace, ItemMatrix, ListRead, PooledReads
from livectr.kernels.request.score import ScoreCall, Snapshot
from livectr.kernels.request.swap_lock import SwapLock
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import SGD, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from livectr.models import DIN, ModelConfig
from livectr.models.forward import CompiledForward, compiled_forward
from livectr.models.inputs import Ragged
from tests.kernels.given_features import GivenFeatures
from tests.models.examples import CONTENT_EXAMPLES, DENSE, EXAMPLES, FIELDS, dicm
from tests.models.inputs import Inputs, build

CONFIGS: dict[str, ModelConfig] = {
    **{name: EXAMPLES[name][0] for name in ("DIN", "DIN, two lists")},
    **{name: CONTENT_EXAMPLES[name][0] for name in CONTENT_EXAMPLES if name.startswith("DICM")},
    "DICM, sum": dicm(aggregator="sum"),
    "DICM, mean": dicm(aggregator="mean", images="behaviors"),
    "DICM, ID alone": dicm(images="behaviors"),
    "DICM, ad alone": dicm(images="ad"),
}
MOST_PAIRS = 1 << 20


@dataclass
class Keys:
    """Ragged keys of some fields."""

    offsets: np.ndarray
    keys: np.ndarray


class Request:
    """Rows of a model's inputs, as a compiled call has them: some fields are shared by all rows."""

    def __init__(self, config: ModelConfig, shared: tuple[int, ...], rows: int, seed: int = 1) -> None:
        self.config, inputs = config, Inputs.of(config, rows, seed=seed)
        self.model = build(config).float()
        found = compiled_forward(self.model, len(FIELDS), len(DENSE))
        assert found is not None and found.pooling is not None
        self.forward: CompiledForward = found
        self.shared, self.own = shared, tuple(f for f in range(len(FIELDS)) if f not in shared)
        values = inputs.values.float()
        values[:, list(shared)] = values[:1, list(shared)]
        self.values = values.numpy()
        sequences, content = dict(inputs.sequences), dict(inputs.content)
        for name in content.keys() & sequences.keys():  # a field has one list of keys
            offsets = sequences[name].offsets
            content[name] = Ragged(torch.randn(int(offsets[-1]), content[name].values.shape[1]), offsets)
        for kind in (sequences, content):
            kind.update({name: self._list(name, lists, rows) for name, lists in kind.items()})
        self.dense = inputs.dense.float().numpy()
        self.inputs = Inputs(values, inputs.dense.float(), sequences, content)
        self.rows = rows

    def _list(self, field: str, given: Ragged, rows: int) -> Ragged:
        """Lists of a field: where it is shared, those of the longest of its lists."""
        values = given.values.float()
        if FIELDS.index(field) not in self.shared:
            return Ragged(values, given.offsets)
        longest = int(given.offsets.diff().argmax())
        one = values[int(given.offsets[longest]) : int(given.offsets[longest + 1])]
        return Ragged(one.repeat(rows, 1), torch.arange(rows + 1) * len(one))

    def expected(self) -> np.ndarray:
        with torch.inference_mode():
            logits: np.ndarray = self.inputs.logits(self.config, self.model).numpy()
        return logits

    def ragged(self, field: int) -> Ragged | None:
        """Lists of a field; None: it has a key for each row."""
        name = FIELDS[field]
        return self.inputs.sequences.get(name, self.inputs.content.get(name))

    def part(self, fields: tuple[int, ...], rows: int) -> Keys:
        """Keys of some fields of some rows: those of field f are 1000 f, 1000 f + 1 …"""
        ends, keys = [0], list[int]()
        for field in fields:
            lists = self.ragged(field)
            lengths = [1] * rows if lists is None else lists.offsets.diff().tolist()[:rows]
            ends += (ends[-1] + np.cumsum(lengths)).tolist()
            keys += [1000 * field + i for i in range(sum(lengths))]
        return Keys(np.array(ends, np.int32), np.array(keys, np.int64))

    def once(self, field: int) -> np.ndarray | None:
        """Vectors of a field's keys, of the lists that are read."""

        def of(lists: Ragged | None) -> np.ndarray | None:
            if lists is None:
                return None
            count = int(lists.offsets[1]) if field in self.shared else len(lists.values)
            return np.ascontiguousarray(lists.values[:count].numpy())

        return of(self.inputs.sequences.get(FIELDS[field]))

    def snapshot(self, *, first: int = 2, content: bool = True) -> Snapshot:
        """Snapshot whose tables have the sequences, with other models' values in their rows."""
        width, pooling = self.config.width, self.forward.pooling
        assert pooling is not None
        layout = RowLayout((Segment("other", first, SGD()), Segment("v", width, SGD())))
        table = DynamicTable(layout, name="all", seed=1)
        for field in range(len(FIELDS)):
            vectors = self.once(field)
            if vectors is not None and len(vectors):
                rows = np.pad(vectors, ((0, 0), (first, 0)), constant_values=7)
                table.assign(1000 * field + np.arange(len(vectors)), rows)
        reads = []
        sequences = list[int]()
        for each in pooling.lists:
            field = FIELDS.index(each.field)
            matrix = None
            if each.content:
                vectors = (
                    self.inputs.content[each.field].values.numpy() if content else np.empty((0, each.width))
                )
                numbers, ids = KeyNumbers(), 1000 * field + np.arange(len(vectors))
                numbers.assign(ids)
                matrix = ItemMatrix(numbers, ids, np.ascontiguousarray(vectors, np.float32))
            else:
                sequences.append(field)
            reads.append(ListRead(self.place(field), matrix))
        fields = [*self.shared, *self.own, *sequences]
        blocks = [1] * len(self.shared) + [0] * len(self.own) + [2 + i for i in range(len(sequences))]
        front = FieldTables({"all": table}, [(FIELDS[f], "all") for f in fields], blocks)
        self.front = front
        return Snapshot(
            SwapLock(60.0, version=7),
            7,
            front,
            len(self.shared),
            self.forward.network,
            self.forward.reads(self.own, self.shared, first),
            None,
            PooledReads(pooling, reads, [self.place(FIELDS.index(name)) for name in pooling.queries]),
        )

    def place(self, field: int) -> FieldPlace:
        shared = field in self.shared
        return FieldPlace(shared, (self.shared if shared else self.own).index(field))

    def call(
        self, *, most_pairs: int = MOST_PAIRS, deadline: float | None = None, first: int = 2
    ) -> ScoreCall:
        """Call with all vectors of fields."""
        features = GivenFeatures(self.part(self.shared, 1), self.part(self.own, self.rows), self.dense)
        call = ScoreCall(features, deadline, most_pairs=most_pairs)
        wide = np.pad(self.values, ((0, 0), (0, 0), (first, 0)))
        call.give_vectors(
            np.ascontiguousarray(wide[:, list(self.own)]), np.ascontiguousarray(wide[:1, list(self.shared)])
        )
        return call

    def sequences(self) -> list[np.ndarray | None]:
        """Vectors of the lists that are sequences."""
        assert self.forward.pooling is not None
        return [
            None if each.content else self.once(FIELDS.index(each.field))
            for each in self.forward.pooling.lists
        ]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shared", [(), (2, 5), (0, 1, 2, 5), tuple(range(6))])
@pytest.mark.parametrize("rows", [1, 9, 70])
def test_logits_are_the_models(name: str, shared: tuple[int, ...], rows: int) -> None:
    request = Request(CONFIGS[name], shared, rows)
    snapshot, call = request.snapshot(), request.call()
    call.give_lists(request.sequences())

    assert snapshot.answer(call.words) == DONE

    np.testing.assert_allclose(call.logits, request.expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared", [(), (5,), (1, 2, 5)])
def test_rows_of_a_sequence_are_looked_up(shared: tuple[int, ...]) -> None:
    """With vectors of fields from the tables, too: a sequence's keys are read once more, each by itself."""
    config = EXAMPLES["DIN, two lists"][0]
    assert isinstance(config, DIN)
    request = Request(config, shared, 20)
    snapshot, call = request.snapshot(), request.call()
    call.words.own_vectors = call.words.shared_vectors = None
    assert snapshot.answer(call.words) == MISSING_ROWS  # fields without a list have no rows
    table = request.front.tables["all"]
    for field, place in ((f, request.place(f)) for f in range(len(FIELDS))):
        if request.once(field) is None:
            count = 1 if place.shared else request.rows
            rows = np.pad(request.values[:count, field], ((0, 0), (2, 0)))
            table.assign(1000 * field + np.arange(count), rows)

    assert snapshot.answer(call.words) == DONE

    np.testing.assert_allclose(call.logits, request.expected(), rtol=1e-4, atol=1e-5)


def test_content_without_a_vector_is_given() -> None:
    request = Request(CONFIGS["DICM"], (5,), 9)
    snapshot, call = request.snapshot(content=False), request.call()
    assert snapshot.answer(call.words) == MISSING_CONTENT
    assert request.forward.pooling is not None
    given = {name: one.values.numpy() for name, one in request.inputs.content.items()}

    call.give_lists([given[each.field] for each in request.forward.pooling.lists])

    assert snapshot.answer(call.words) == DONE
    np.testing.assert_allclose(call.logits, request.expected(), rtol=1e-4, atol=1e-5)


def test_a_long_list_of_all_rows_is_refused() -> None:
    request = Request(CONFIGS["DICM, max"], (5,), 70)
    size = int(request.inputs.content["C6"].offsets[1])
    call = request.call(most_pairs=70 * size - 1)

    assert request.snapshot().answer(call.words) == TOO_MANY_PAIRS

    assert (call.words.list, call.words.listed) == (0, size)
    assert request.snapshot().answer(request.call(most_pairs=70 * size).words) == DONE


def test_the_deadline_ends_a_long_attention() -> None:
    request = Request(CONFIGS["DICM, ID alone"], (5,), 1 << 15)

    assert request.snapshot().answer(request.call(deadline=0.0).words) == EXPIRED


def test_equal_rows_have_equal_bits() -> None:
    request = Request(CONFIGS["DICM"], (1, 2, 5), 33)
    request.values[:] = request.values[:1]
    request.dense[:] = request.dense[:1]
    call = request.call()

    assert request.snapshot().answer(call.words) == DONE

    assert len(np.unique(call.logits.view(np.int32))) == 1
