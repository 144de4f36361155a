"""The user tower without torch gives the vectors of `TwoTowerModel.user_vector`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from livectr.models import TwoTower
from livectr.models.inputs import Gathered, Ragged
from livectr.models.two_tower import TwoTowerModel
from livectr.serving.score.user_tower import UserTower
from livectr.serving.version.batch import RaggedVectors

FIELDS = ("user", "city", "clicked", "ad")


@pytest.mark.parametrize("images", [(), ("clicked",)])
@pytest.mark.parametrize("dense", [(), ("age", "income")])
@pytest.mark.parametrize("hidden", [(8,), (12, 7)])
@pytest.mark.parametrize("rows", [1, 3])
def test_vectors(images: tuple[str, ...], dense: tuple[str, ...], hidden: tuple[int, ...], rows: int) -> None:
    config = TwoTower(
        user=("user", "city", *dense),
        item=("ad",),
        dim=5,
        hidden=hidden,
        out=6,
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
    values = torch.randn(rows, len(own), 5, generator=source)
    numbers = torch.randn(rows, len(dense), generator=source)
    clicked, ends = torch.randn(2 * rows, 4, generator=source), 2 * torch.arange(rows + 1)
    gathered = Gathered(torch.empty(0), {}, None, {name: Ragged(clicked, ends) for name in images})
    expected = model.user_vector(model.partial(values, numbers), model.user.pooled_images(gathered))
    lists = {name: RaggedVectors(clicked.numpy(), ends.numpy()) for name in images}
    found = UserTower(model).vectors(values.numpy(), numbers.numpy(), lists)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)
