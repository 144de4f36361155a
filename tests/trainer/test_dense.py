"""The networks' Adam is torch's, bit by bit, at the rates of the roles; scales of fields learn by AdaGrad."""

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
        of_adam = [p for n, p in model.named_parameters() if n not in ("bias", "wide.scale")]
        groups.append({"params": of_adam, "lr": lr})
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
        for (name, own), other in zip(model.named_parameters(), theirs[role].parameters(), strict=True):
            if name == "wide.scale":
                continue
            assert own.grad is None
            assert own.detach().numpy().tobytes() == other.detach().numpy().tobytes()
    state = learned.state(shared=True)
    for moment in MOMENTS:
        assert torch.equal(state[f"adam.{moment}.rank.bias"], adam.state[theirs["rank"].bias][moment])


def test_scales_learn_by_adagrad_from_summed_gradients() -> None:
    ours, theirs = models(()), models(())
    learned = DenseAdam(ours, CONFIGS)
    scales = [model.wide.scale for model in theirs.values()]
    adagrad = torch.optim.Adagrad(scales, lr=0.1, initial_accumulator_value=1.0, eps=0.0)
    rng = torch.Generator().manual_seed(0)
    for _ in range(5):
        for model, scale in zip(ours.values(), scales, strict=True):
            scale.grad = torch.randn(scale.shape, generator=rng)
            model.wide.scale.grad = scale.grad.clone()
        learned.step(SAMPLES)
        adagrad.step()
    for model, scale in zip(ours.values(), scales, strict=True):
        torch.testing.assert_close(model.wide.scale, scale)
        assert float((scale.detach() - 1).abs().min()) > 0


def test_a_small_batch_moves_a_network_less() -> None:
    """A quarter of the examples, half the step; a bias and the scales of fields have their own rates."""
    moved = []
    for samples in (DenseAdam.STEADY, DenseAdam.STEADY // 4):
        network = models(("hour",))["rank"]
        before = {name: p.detach().clone() for name, p in network.named_parameters()}
        rng = torch.Generator().manual_seed(0)
        for parameter in network.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=rng)
        DenseAdam({"rank": network}, CONFIGS).step(samples)
        moved.append({name: p.detach() - before[name] for name, p in network.named_parameters()})
    many, few = moved
    for name, step in many.items():
        share = 1.0 if name in ("bias", "wide.scale") else 0.5
        torch.testing.assert_close(few[name], share * step, rtol=1e-3, atol=1e-6)
