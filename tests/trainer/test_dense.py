"""The networks' Adam is torch's, bit by bit, at the rates of the roles; other parameters learn by AdaGrad."""

import numpy as np
import pytest
import torch

from livectr.kernels.network.small_batch import curvature
from livectr.models import FM, DeepFM
from livectr.models.base import CTRModel, ModelConfig
from livectr.models.inputs import Part
from livectr.trainer.des.dense import MOMENTS, SIZES_KEY, DenseAdam
from livectr.trainer.des.result import curvatures

SAMPLES = 64
OTHERS = ("bias", "wide.scale", "wide.dense")
"""Parameters that Adam does not learn."""
CONFIGS: dict[str, ModelConfig] = {"rank": DeepFM(hidden=(8, 4)), "shadow": FM()}
CURVATURE = dict.fromkeys(CONFIGS, 0.0)


def models(dense: tuple[str, ...]) -> dict[str, CTRModel]:
    part = Part(("user", "ad"), ("user", "ad"), dense, True, 3)
    return {role: config.network(part) for role, config in CONFIGS.items()}


@pytest.mark.parametrize("dense", [("hour", "price"), ()])
def test_steps_are_those_of_torchs_adam(dense: tuple[str, ...]) -> None:
    """FM without dense features has no parameter but its bias."""
    ours, theirs = models(dense), models(dense)
    learned = DenseAdam(ours, CONFIGS)
    groups = [
        {
            "params": [p for n, p in model.named_parameters() if n not in OTHERS],
            "lr": CONFIGS[role].dense_lr,
        }
        for role, model in theirs.items()
    ]
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
        learned.step(SAMPLES, CURVATURE, torch.ones(len(dense)))
        adam.step()
        assert learned.steps == step + 1
    for role, model in ours.items():
        for (name, own), other in zip(model.named_parameters(), theirs[role].parameters(), strict=True):
            assert own.grad is None
            if name not in OTHERS:
                assert own.detach().numpy().tobytes() == other.detach().numpy().tobytes()
    state = learned.state(shared=True)
    network = theirs["rank"].get_parameter("mlp.weights.0")
    for moment in MOMENTS:
        assert torch.equal(state[f"adam.{moment}.rank.mlp.weights.0"], adam.state[network][moment])


def test_a_bias_learns_by_adagrad_from_the_summed_gradient() -> None:
    ours, theirs = models(()), models(())
    learned = DenseAdam(ours, CONFIGS)
    biases = [model.bias for model in theirs.values()]
    adagrad = torch.optim.Adagrad(biases, lr=DenseAdam.BIAS_RATE, initial_accumulator_value=1.0, eps=0.0)
    rng = torch.Generator().manual_seed(0)
    for _ in range(5):
        for model, bias in zip(ours.values(), biases, strict=True):
            bias.grad = torch.randn((), generator=rng)
            model.bias.grad = bias.grad.clone()
        learned.step(SAMPLES, CURVATURE)
        adagrad.step()
    for model, bias in zip(ours.values(), biases, strict=True):
        torch.testing.assert_close(model.bias, bias)


def test_scales_learn_by_adagrad_from_summed_gradients() -> None:
    """They do not fall below 0, where a field would count the wrong way."""
    ours, theirs = models(()), models(())
    learned = DenseAdam(ours, CONFIGS)
    scales = [model.get_parameter("wide.scale") for model in theirs.values()]
    rate = DenseAdam.SCALE_RATE
    adagrad = torch.optim.Adagrad(scales, lr=rate, initial_accumulator_value=1.0, eps=0.0)
    rng = torch.Generator().manual_seed(0)
    for _ in range(5):
        for model, scale in zip(ours.values(), scales, strict=True):
            scale.grad = torch.randn(scale.shape, generator=rng)
            model.get_parameter("wide.scale").grad = scale.grad.clone()
        learned.step(SAMPLES, CURVATURE)
        adagrad.step()
    for model, scale in zip(ours.values(), scales, strict=True):
        torch.testing.assert_close(model.get_parameter("wide.scale"), scale)
        assert float((scale.detach() - 1).abs().min()) > 0
    shadow = ours["shadow"].get_parameter("wide.scale")
    for _ in range(200):
        shadow.grad = torch.tensor([1.0, 0.5])
        learned.step(SAMPLES, CURVATURE)
    assert shadow.tolist() == [0.0, 0.0]


def test_scales_settle_with_lessons() -> None:
    """A scale that many examples have taught moves by the maximum likelihood's step."""
    ours = models(())
    learned = DenseAdam(ours, CONFIGS)
    for role, squares in (("rank", 39_999.0), ("shadow", 3.0)):
        ours[role].get_parameter("wide.scale").grad = torch.ones(2)
        learned.scales(role)[0].squares.fill_(squares - 1)
    learned.step(SAMPLES, CURVATURE, settles=True)
    assert (1 - ours["rank"].get_parameter("wide.scale").detach()).tolist() == pytest.approx(
        [1 / 39_999] * 2, rel=0.01
    )
    assert (1 - ours["shadow"].get_parameter("wide.scale").detach()).tolist() == pytest.approx(
        [DenseAdam.SCALE_RATE / 2] * 2
    )


def learned_numbers(
    numbers: torch.Tensor, slopes: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Weights of dense features f32[n, 2] after a step on each example; their moments."""
    ours = models(("hour", "price"))
    learned = DenseAdam(ours, CONFIGS)
    weight = ours["rank"].get_parameter("wide.dense")
    for x, slope in zip(numbers, slopes, strict=True):
        for model in ours.values():
            model.get_parameter("wide.dense").grad = slope * x
        learned.step(1, CURVATURE, x.abs())
    return weight.detach().clone(), learned.state(shared=True)


def test_weights_of_dense_features_learn_alike_at_every_scale() -> None:
    """Normalised AdaGrad: a million times the feature is a millionth of the weight, and no other logit."""
    rng = torch.Generator().manual_seed(0)
    numbers, slopes = torch.randn(20, 2, generator=rng), torch.rand(20, generator=rng) - 0.5
    scales = torch.tensor([1e9, 1e-6])
    (plain, _), (scaled, state) = learned_numbers(numbers, slopes), learned_numbers(numbers * scales, slopes)
    assert plain.abs().min() > 0.001
    torch.testing.assert_close(scaled * scales, plain, rtol=1e-4, atol=0)
    sizes = torch.stack([state[f"adam.exp_avg.rank.wide.dense/{name}"] for name in ("hour", "price")])
    torch.testing.assert_close(sizes, (numbers * scales).abs().amax(0))


def test_a_dense_features_weight_shrinks_where_its_feature_grows() -> None:
    """A weight of small features would be far too large for a larger one."""
    first, _ = learned_numbers(torch.tensor([[1.0, 0.0]]), torch.tensor([-0.5]))
    assert first[0] > 0.15 and first[1] == 0  # a feature that was always 0 has taught nothing
    grown, _ = learned_numbers(torch.tensor([[1.0, 0.0], [10.0, 0.0]]), torch.tensor([-0.5, 0.0]))
    assert grown[0].item() == pytest.approx(first[0].item() / 10)


def test_adams_moments_of_dense_features_are_no_sizes() -> None:
    """A checkpoint from before sizes: weights stay, and sizes are learned again."""
    before, after = models(("hour", "price")), models(("hour", "price"))
    state = DenseAdam(before, CONFIGS).state(shared=True)
    state = {name: torch.ones_like(tensor) for name, tensor in state.items() if name != SIZES_KEY}
    learned = DenseAdam(after, CONFIGS)
    learned.load(state)
    found = learned.state(shared=True)
    assert found["rank.wide.dense/hour"] == 1 and found["adam.exp_avg.rank.first.dense/hour"].min() == 1
    assert all(found[f"adam.{moment}.rank.wide.dense/hour"] == 0 for moment in MOMENTS)
    learned.load(state | {SIZES_KEY: torch.tensor(1)})
    assert learned.state(shared=True)["adam.exp_avg.rank.wide.dense/hour"] == 1


def test_a_bias_moves_by_no_more_than_newtons_step() -> None:
    """AdaGrad's first step would be its whole rate, though a large batch knows better."""
    ours = models(())
    learned, before = DenseAdam(ours, CONFIGS), {role: m.bias.item() for role, m in ours.items()}
    for model in ours.values():
        model.bias.grad = torch.tensor(100.0)
    learned.step(65_536, {"rank": 10_000.0, "shadow": 20.0})
    assert before["rank"] - ours["rank"].bias.item() == pytest.approx(0.01, rel=1e-4)
    assert before["shadow"] - ours["shadow"].bias.item() == pytest.approx(DenseAdam.BIAS_RATE, rel=1e-3)


def test_a_small_batch_moves_a_network_less() -> None:
    """A quarter of the examples, a quarter of the step; biases and scales have rates of their own."""
    moved = []
    for samples in (DenseAdam.STEADY, DenseAdam.STEADY // 4):
        network = models(("hour",))["rank"]
        before = {name: p.detach().clone() for name, p in network.named_parameters()}
        rng = torch.Generator().manual_seed(0)
        for parameter in network.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=rng)
        DenseAdam({"rank": network}, CONFIGS).step(samples, CURVATURE, torch.ones(1))
        moved.append({name: p.detach() - before[name] for name, p in network.named_parameters()})
    many, few = moved
    for name, step in many.items():
        share = 1.0 if name in OTHERS else 0.25
        torch.testing.assert_close(few[name], share * step, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("shift", [0.0, -1.5])
def test_the_curvature_is_that_of_the_cross_entropy(shift: float) -> None:
    """Logits of any size, moved by the first batch's shift of the biases, and weighted examples."""
    logits = np.array([-100, -3, -0.5, 0, 0.25, 2, 100], np.float32)
    weight = np.array([1, 2, 0.5, 1, 3, 1, 1], np.float32)
    moved = {"rank": logits, "shadow": logits[::-1].copy()}
    p = torch.sigmoid(torch.from_numpy(logits).double() + shift).numpy()
    wanted = float((p * (1 - p)).sum())
    assert curvatures(moved, dict.fromkeys(moved, shift), None) == pytest.approx(
        {"rank": wanted, "shadow": wanted}, rel=1e-6
    )
    assert curvature(logits, shift, weight) == pytest.approx((weight * p * (1 - p)).sum(), rel=1e-6)
