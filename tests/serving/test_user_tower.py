"""The compiled user tower gives the vectors of `TwoTowerModel.user_vector`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from livectr.kernels.keys.keys import KeyNumbers
from livectr.kernels.network.pooling import Channel, Pool, Pooling, VectorList
from livectr.kernels.request.look_up import DONE, MISSING_CONTENT
from livectr.kernels.request.pooled import FieldPlace, ItemMatrix, ListRead, PooledReads
from livectr.kernels.request.select import SelectCall, Selector, Wanted
from livectr.kernels.request.swap_lock import SwapLock
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import SGD, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from livectr.models import TwoTower
from livectr.models.inputs import Gathered, Ragged
from livectr.models.two_tower import TwoTowerModel
from livectr.serving.score.tower_scorer import user_tower
from livectr.serving.version.batch import Batch
from tests.kernels.given_features import GivenFeatures

FIELDS = ("user", "city", "clicked", "ad")
DIM, OUT = 5, 6


@pytest.mark.parametrize("images", [(), ("clicked",)])
@pytest.mark.parametrize("dense", [(), ("age", "income")])
@pytest.mark.parametrize("hidden", [(8,), (12, 7), (64, 32)])
def test_vectors(images: tuple[str, ...], dense: tuple[str, ...], hidden: tuple[int, ...]) -> None:
    config = TwoTower(
        user=("user", "city", *dense),
        item=("ad",),
        dim=DIM,
        hidden=hidden,
        out=OUT,
        user_images=images,
        image_dim=4,
    )
    own = tuple(name for name in FIELDS if name in config.user)
    model = config.build(FIELDS, own, dense, True, 0)
    assert isinstance(model, TwoTowerModel)
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=source))
    model.eval().requires_grad_(False)
    values = torch.randn(1, len(own), DIM, generator=source)
    numbers = 20 * torch.randn(1, len(dense), generator=source)
    clicked = torch.randn(2, 4, generator=source)
    gathered = Gathered(
        torch.empty(0), {}, None, {name: Ragged(clicked, torch.tensor([0, 2])) for name in images}
    )
    expected = model.user_vector(model.partial(values, numbers), model.user.pooled_images(gathered))
    found = _vector(model, values.numpy(), numbers.numpy(), [clicked.numpy() for _ in images])
    np.testing.assert_allclose(found, expected[0].numpy(), rtol=1e-5, atol=1e-5)


def _vector(
    model: TwoTowerModel, values: np.ndarray, dense: np.ndarray, images: list[np.ndarray]
) -> np.ndarray:
    """User vector: its products with the unit vectors, which are the items.

    Args:
        values: f32[1, F, DIM], of the fields.
        dense: f32[1, Dd].
        images: f32[n, width] of each list of images, which are in no matrix: they are given.
    """
    keys, nothing = KeyNumbers(), KeyNumbers()
    keys.assign(np.arange(OUT))
    items = ItemMatrix(keys, np.arange(OUT), np.eye(OUT, dtype=np.float32))
    fields = values.shape[1]
    table = DynamicTable(RowLayout((Segment("t", DIM, SGD()),)), name="t", seed=1)
    table.assign(np.arange(fields), values[0])
    front = FieldTables({"t": table}, [("", "t")] * fields)
    lists = [VectorList(f"images {i}", each.shape[1], content=True) for i, each in enumerate(images)]
    absent = [ItemMatrix(nothing, np.arange(0), np.empty((0, each.width), np.float32)) for each in lists]
    reads = [ListRead(FieldPlace(False, fields + i), each) for i, each in enumerate(absent)]
    pooled = PooledReads(Pooling([Channel(Pool.MEAN, each) for each in lists]), reads, [])
    selector = Selector(
        *(SwapLock(60.0), 0, front, 0, 0, DIM, range(fields), user_tower(model), 0.0, items),
        pooled if images else None,
    )
    shared = Batch((), np.zeros(1, np.int32), np.empty(0, np.int64), 1)
    ends = np.cumsum([0, *[1] * fields, *map(len, images)]).astype(np.int32)
    own = Batch((), ends, np.arange(ends[-1]), 1)
    wanted = Wanted(OUT, np.arange(OUT), np.empty(0, np.uint32))
    call = SelectCall(selector, GivenFeatures(shared, own, dense), None, wanted)
    if images:
        assert selector.answer(call.words) == MISSING_CONTENT
        call.give_lists(images)
    assert selector.answer(call.words) == DONE
    vector = np.empty(OUT, np.float32)
    best, ids = call.best
    vector[ids] = best.scores
    return vector
