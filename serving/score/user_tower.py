"""User tower of a version, without torch.

A request has a single user, for whom torch's calls cost more than the products.
"""

from __future__ import annotations

import numpy as np
import torch

from livectr.models.two_tower import SOFT_NORM, TwoTowerModel
from livectr.serving.score.inputs import Lists, gathered_content
from livectr.store.layout import F32


class UserTower:
    """`TwoTowerModel.user_vector` of a model that holds the user's features alone.

    Args:
        model: with the version's weights.
    """

    def __init__(self, model: TwoTowerModel) -> None:
        tower = model.user
        first = tower.first
        blocks = [first.weight.flatten(0, 1)]
        blocks += [block for block in (first.dense, tower.images) if block is not None]
        self._first: F32 = torch.cat(blocks).numpy()
        mlp = tower.mlp
        self._bias: F32 = mlp.first_bias.numpy()
        self._layers = [(w.numpy(), b.numpy()) for w, b in zip(mlp.weights, mlp.biases, strict=True)]
        self._gamma = np.float32(model.gamma.item())
        self._pooled_images = None if tower.images is None else tower.pooled_images

    def vectors(self, values: F32, dense: F32, content: Lists) -> F32:
        """User vectors f32[B, out].

        Args:
            values: f32[B, F_user, K].
            dense: f32[B, Dd_user].
            content: content vectors of the user's images, by field.
        """
        parts = [values.reshape(len(values), -1), dense]
        if self._pooled_images is not None:
            means = self._pooled_images(gathered_content(content))
            assert means is not None  # for a tower with images
            parts.append(means.numpy())
        x: F32 = np.concatenate(parts, axis=1) @ self._first + self._bias
        for weight, bias in self._layers:
            x = np.maximum(x, 0) @ weight + bias
        square = np.einsum("bi,bi->b", x, x)[:, None]
        out: F32 = x * (self._gamma / np.sqrt(square + np.float32(SOFT_NORM**2)))
        return out
