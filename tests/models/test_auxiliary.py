"""DIEN's auxiliary loss is eq. 6 of its paper, with all gradients, and belongs to training alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from livectr.models import DIEN, Gathered, Ragged
from livectr.models.losses import LATE
from tests.models import references
from tests.models.examples import CONTENT_EXAMPLES, EXAMPLES, FIELDS
from tests.models.inputs import Inputs, build, lists

ONE = DIEN(target=("C2",), behaviors=("C6",), dim=4, hidden=(8, 5), state=4, auxiliary=0.7)
TWO = DIEN(target=("C2", "C1"), behaviors=("C6", "C3"), dim=4, hidden=(8,), state=4)
PROJECTED = replace(ONE, state=3)
CONFIGS = {"one list": ONE, "two lists": TWO, "state of another width": PROJECTED}
LABELS = torch.tensor([0.0, 1.0, 0.0, LATE, 0.0, 1.0, 0.0], dtype=torch.float64)


def shown_again(config: DIEN, inputs: Inputs) -> Inputs:
    """The same, with the last click of every list of two and more shown again."""
    values = inputs.values.clone()
    for behaviors, target in zip(config.behaviors, config.target, strict=True):
        for b, clicked in enumerate(lists(inputs.sequences[behaviors])):
            if len(clicked) > 1:
                values[b, FIELDS.index(target)] = clicked[-1]
    return replace(inputs, values=values)


def trained(config: DIEN, inputs: Inputs, label: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and auxiliary loss of `build(config)`."""
    model = build(config)
    logits, loss = model.finish_with_loss(
        model.partial(inputs.values, inputs.dense), inputs.gathered(config), label
    )
    assert loss is not None
    return logits, loss


@pytest.mark.parametrize("again", [False, True], ids=["other items", "items clicked before"])
@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_papers_formula_with_all_gradients(name: str, again: bool) -> None:
    config = CONFIGS[name]
    given = Inputs.of(config)
    given = shown_again(config, given) if again else given
    ours, theirs, model = given.leaves(), given.leaves(), build(config)
    p = {n: t.clone().requires_grad_() for n, t in (model.local_state() | model.shared_state()).items()}
    _, one = model.finish_with_loss(model.partial(ours.values, ours.dense), ours.gathered(config), LABELS)
    sequences = {n: lists(ragged) for n, ragged in theirs.lists().items()}
    other = torch.stack(
        [
            references.dien_auxiliary(
                config, p, row, {n: of[b] for n, of in sequences.items()}, float(LABELS[b]), LATE
            )
            for b, row in enumerate(theirs.values)
        ]
    ).sum()
    assert one is not None and other > 1
    torch.testing.assert_close(one, other)
    one.backward()  # type: ignore[no-untyped-call]
    other.backward()  # type: ignore[no-untyped-call]
    for parameter, tensor in model.named_parameters():
        wanted = p[parameter].grad if parameter in p else None
        if wanted is None:
            assert tensor.grad is None or not tensor.grad.any(), parameter
        else:
            torch.testing.assert_close(tensor.grad, wanted, msg=parameter)
    for tensor_name, own in ours.tensors().items():
        wanted = theirs.tensors()[tensor_name].grad
        if wanted is not None and wanted.any():
            torch.testing.assert_close(own.grad, wanted, msg=tensor_name)
    assert ours.values.grad is not None and ours.sequences["C6"].values.grad is not None
    assert ours.values.grad.any() and ours.sequences["C6"].values.grad.any()


@pytest.mark.parametrize("name", CONFIGS)
def test_examples_add_up(name: str) -> None:
    """Ranks may finish any examples: their sums are the loss."""
    config = CONFIGS[name]
    inputs = Inputs.of(config)
    _, whole = trained(config, inputs, LABELS)
    gathered = inputs.gathered(config)
    assert gathered is not None
    model, total = build(config), torch.zeros((), dtype=torch.float64)
    partial = model.partial(inputs.values, inputs.dense)
    for b in reversed(range(len(LABELS))):
        own = {}
        for field, ragged in gathered.sequences.items():
            values = lists(ragged)[b]
            own[field] = Ragged(values, torch.tensor([0, len(values)]))
        alone = Gathered(gathered.pooled[b : b + 1], own)
        _, loss = model.finish_with_loss(partial[b : b + 1], alone, LABELS[b : b + 1])
        assert loss is not None
        total = total + loss
    torch.testing.assert_close(total, whole)


@pytest.mark.parametrize("lengths", [(), (0,), (1,), (1, 0, 1)])
def test_histories_without_a_next_click_have_no_loss(lengths: tuple[int, ...]) -> None:
    vectors = torch.randn(sum(lengths), 4, dtype=torch.float64, requires_grad=True)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    pooled = torch.randn(len(lengths), 1, 4, dtype=torch.float64, requires_grad=True)
    model, label = build(ONE), torch.zeros(len(lengths), dtype=torch.float64)
    gathered = Gathered(pooled, {"C6": Ragged(vectors, offsets)})
    first = torch.zeros(len(lengths), model.partial_size, dtype=torch.float64)
    logits, loss = model.finish_with_loss(first, gathered, label)
    assert loss is not None and loss == 0
    (loss + 0 * logits.sum()).backward()  # type: ignore[no-untyped-call]
    assert pooled.grad is None or not pooled.grad.any()
    assert vectors.grad is None or not vectors.grad.any()


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_weights_are_those_of_serving(name: str) -> None:
    config = CONFIGS[name]
    inputs = Inputs.of(config)
    model, without = build(config), build(replace(config, auxiliary=0.0))
    logits, _ = trained(config, inputs, LABELS)
    assert torch.equal(logits, inputs.logits(config, model))
    assert torch.equal(logits, inputs.logits(config, without))
    states = [m.local_state() | m.shared_state() for m in (model, without)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_alpha_of_zero_is_no_loss() -> None:
    config = replace(ONE, auxiliary=0.0)
    inputs, model = Inputs.of(config), build(config)
    partial = model.partial(inputs.values, inputs.dense)
    assert model.finish_with_loss(partial, inputs.gathered(config), LABELS)[1] is None


def test_the_loss_is_times_alpha() -> None:
    inputs = Inputs.of(ONE)
    once, twice = (trained(replace(ONE, auxiliary=a), inputs, LABELS)[1] for a in (0.5, 1.0))
    torch.testing.assert_close(2 * once, twice)


@pytest.mark.parametrize("name", [n for n in EXAMPLES | CONTENT_EXAMPLES if n != "DIEN"])
def test_other_models_have_no_auxiliary_loss(name: str) -> None:
    config = (EXAMPLES | CONTENT_EXAMPLES)[name][0]
    inputs, model = Inputs.of(config), build(config)
    partial = model.partial(inputs.values, inputs.dense)
    logits, loss = model.finish_with_loss(partial, inputs.gathered(config), LABELS)
    assert loss is None and torch.equal(logits, inputs.logits(config, model))
