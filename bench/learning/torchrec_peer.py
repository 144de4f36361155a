"""TorchRec's DeepFM with fused row-wise AdaGrad: `LOG.npz SCORES.npz SEED`, in bench/peers' environment.

`SimpleDeepFMNN` with the sizes of its docstring (K = 8, 20 hidden units, 5 outputs of its deep part), and
TorchRec's own start of tables. It has no first-order weights. Rates and batch are those of TorchRec's "golden
training" example: row-wise AdaGrad 0.1 for tables, AdaGrad 0.1 for the rest, batches of 32. The model wants
numbers: a log without any gives it a constant.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.deepfm import SimpleDeepFMNN
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from bench.learning.neural import Given, Learn, main

NAME = "TorchRec, row-wise AdaGrad"
DIM, HIDDEN, DEEP = 8, 20, 5
RATE, BATCH = 0.1, 32


def torchrec(log: Given) -> Learn:
    """Learner of batches of a log."""
    names = [f"f{f}" for f in range(len(log.sizes))]
    tables = [
        EmbeddingBagConfig(name=f"t{f}", embedding_dim=DIM, num_embeddings=size, feature_names=[f"f{f}"])
        for f, size in enumerate(log.sizes)
    ]
    collection = FusedEmbeddingBagCollection(tables, RowWiseAdagrad, {"lr": RATE}, device=torch.device("cpu"))
    numbers = log.dense.shape[1]
    model = SimpleDeepFMNN(max(numbers, 1), collection, HIDDEN, DEEP)
    rest = [p for name, p in model.named_parameters() if not name.startswith("sparse_arch")]
    optimiser = torch.optim.Adagrad(rest, lr=RATE)

    def learn(codes: Tensor, dense: Tensor, label: Tensor) -> Tensor:
        lengths = torch.ones(codes.numel(), dtype=torch.int32)
        ids = KeyedJaggedTensor(keys=names, values=codes.T.reshape(-1), lengths=lengths)
        p: Tensor = model(dense if numbers else torch.ones(len(label), 1), ids).squeeze(1)
        loss = nn.functional.binary_cross_entropy(p, label)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # tables learn inside it
        optimiser.step()
        return p

    return learn


if __name__ == "__main__":
    main(NAME, torchrec, BATCH)
