"""FuxiCTR's DeepFM: `LOG.npz SCORES.npz SEED`, in the environment of fuxictr.txt.

The package has FuxiCTR's layers and training step, but DeepFM is in its repository alone. So it is put
together here of the package's layers, with the defaults of the repository's class: K = 10, 64-64-64, Adam
1e-3, no regularisers, gradients clipped at 10. Batches have 128 examples, as in the repository's DeepFM of
one epoch over a small log; its template for large logs has 10,000, with which the first 10,000 rows would
teach nothing. Release 2.3.10 imports Ray (200 MB) for its readers of data, which are not needed here: 2.3.9
does not, and its layers compute the same.
"""

from __future__ import annotations

import tempfile
from collections import OrderedDict

from fuxictr.features import FeatureMap
from fuxictr.pytorch.layers import FactorizationMachine, FeatureEmbedding, MLP_Block
from fuxictr.pytorch.models import BaseModel
from torch import Tensor

from bench.learning.neural import Given, Learn, main

NAME = "FuxiCTR, DeepFM"
DIM, HIDDEN = 10, [64, 64, 64]
RATE, BATCH, CLIP = 1e-3, 128, 10.0


class FuxiDeepFM(BaseModel):  # type: ignore[misc]  # fuxictr has no types
    """First and second order (`FactorizationMachine`) plus a network, of the same vectors."""

    def __init__(self, features: FeatureMap) -> None:
        super().__init__(features, "DeepFM", verbose=0, metrics=["AUC"], model_root=tempfile.gettempdir())
        self.vectors = FeatureEmbedding(features, DIM)
        self.pairs = FactorizationMachine(features)
        self.deep = MLP_Block(
            input_dim=features.sum_emb_out_dim(), output_dim=1, hidden_units=HIDDEN, hidden_activations="ReLU"
        )
        self.compile("adam", "binary_crossentropy", RATE)
        self.reset_parameters()
        self._max_gradient_norm = CLIP

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Columns [B] → "y_pred" f32[B, 1], which is also kept as `scored`."""
        x = self.get_inputs(inputs)
        vectors = self.vectors(x)
        logits = self.pairs(x, vectors) + self.deep(vectors.flatten(start_dim=1))
        self.scored: Tensor = self.output_activation(logits)
        return {"y_pred": self.scored}


def features(log: Given) -> FeatureMap:
    """FuxiCTR's description of a log's columns."""
    found = FeatureMap("log", tempfile.gettempdir())
    ids = {f"f{f}": {"type": "categorical", "vocab_size": size} for f, size in enumerate(log.sizes)}
    numbers = {f"i{d}": {"type": "numeric"} for d in range(log.dense.shape[1])}
    found.features = OrderedDict((name, {"source": "", **spec}) for name, spec in (ids | numbers).items())
    found.labels, found.default_emb_dim = ["label"], DIM
    found.num_fields = found.get_num_fields()
    found.set_column_index()
    return found


def fuxictr(log: Given) -> Learn:
    """Learner of batches of a log."""
    model = FuxiDeepFM(features(log))
    model.train()

    def learn(codes: Tensor, dense: Tensor, label: Tensor) -> Tensor:
        columns = {f"f{f}": column for f, column in enumerate(codes.unbind(1))}
        columns |= {f"i{d}": column for d, column in enumerate(dense.unbind(1))}
        model.train_step(columns | {"label": label})
        return model.scored.squeeze(1)

    return learn


if __name__ == "__main__":
    main(NAME, fuxictr, BATCH)
