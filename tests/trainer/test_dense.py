"""The networks' Adam is torch's, bit by bit, at the rates of the roles."""

import pytest
import torch

from livectr.models import FM, DeepFM
from livectr.models.base import CTRModel, ModelConfig, Part
from livectr.trainer.des.dense import MOMENTS, DenseAdam

SAMPLES = 64
CONFIGS: dict[str, ModelConfig] = {"rank": DeepFM(hidden=(8, 4)), "shadow": FM()}


def models(dense: tuple[str, ...]) -> dict[str, CTRModel]:
    part = Part(("user", "ad"), ("user", "ad"), dense, True, 3)
    return {role: config.network(part) for role, config in CONFIGS.items()}


@pytest.mark.parametrize("dense", [("hour", "price"), ()])
def test_steps_are_those_of_torchs_adam(dense: tuple[str, ...]) -> None:
    """FM without dense features has no parameter but its bias."""
    ours, theirs = models(dense), models(dense)
    learned = DenseAdam(ours, CONFIGS)
    groups = []
    for role, model in theirs.items():
        lr = CONFIGS[role].dense_lr
        groups.append({"params": [p for n, p in model.named_parameters() if n != "bias"], "lr": lr})
        groups.append({"params": [model.bias], "lr": lr * DenseAdam.BIAS_SPEED})
    adam = torch.optim.Adam([group for group in groups if group["params"]], fused=True)
    rates = [group["lr"] for group in adam.param_groups]
    rng = torch.Generator().manual_seed(0)
    for step in range(5):
        factor = 0.5**step
        for role in ours:
            learned.set_rate(role, factor)
        for group, base in zip(adam.param_groups, rates, strict=True):
            group["lr"] = base * factor
        for role, model in ours.items():
            for own, other in zip(model.parameters(), theirs[role].parameters(), strict=True):
                own.grad = torch.randn(own.shape, generator=rng)
                other.grad = own.grad / SAMPLES
        learned.step(SAMPLES)
        adam.step()
        assert learned.steps == step + 1
    for role, model in ours.items():
        for own, other in zip(model.parameters(), theirs[role].parameters(), strict=True):
            assert own.grad is None
            assert own.detach().numpy().tobytes() == other.detach().numpy().tobytes()
    state = learned.state(shared=True)
    for moment in MOMENTS:
        assert torch.equal(state[f"adam.{moment}.rank.bias"], adam.state[theirs["rank"].bias][moment])
