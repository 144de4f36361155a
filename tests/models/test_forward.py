"""The compiled forward pass gives the logits of `partial` and `finish`, and equal rows have equal bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from livectr.kernels.network.forward import ForwardNetwork, Kept, Shape, Sources
from livectr.models import DNN, DeepFM, ModelConfig
from livectr.models.base import CTRModel
from livectr.models.forward import CompiledForward, ItemFeatures, compiled_forward
from livectr.models.inputs import Gathered, Ragged
from tests.models.examples import CONTENT_EXAMPLES, DENSE, EXAMPLES, FIELDS, dicm
from tests.models.inputs import Inputs, build

MULTI_TASK = ("SharedBottom", "MMoE", "MMoE, linear", "PLE", "CGC")
PLAIN = (*MULTI_TASK, "PNN inner", "PNN outer", "DCN", "FLEN", "xDeepFM", "AutoInt", "AutoInt+", "TwoTower")
"""Models that only torch's operations compute."""
CONFIGS: dict[str, ModelConfig] = {
    **{name: example[0] for name, example in (EXAMPLES | CONTENT_EXAMPLES).items()},
    "DeepFM, wide": DeepFM(dim=16, hidden=(100, 33)),
    "DNN, one layer": DNN(dim=7, hidden=(50,)),
    "DNN, prelu": DNN(dim=4, hidden=(40, 17, 5), activation="prelu"),
    "DICM without images": dicm(images="none", basic="lr"),
}


def single(gathered: Gathered | None) -> Gathered | None:
    """Gathered tensors as float32."""
    if gathered is None:
        return None

    def lists(named: dict[str, Ragged]) -> dict[str, Ragged]:
        return {name: Ragged(part.values.float(), part.offsets) for name, part in named.items()}

    dense = None if gathered.dense is None else gathered.dense.float()
    return Gathered(
        gathered.pooled.float(), lists(dict(gathered.sequences)), dense, lists(dict(gathered.content))
    )


def compiled(model: CTRModel) -> CompiledForward:
    forward = compiled_forward(model, len(FIELDS), len(DENSE))
    assert forward is not None, f"{type(model).__name__} has no forward_layers: add its example to PLAIN"
    return forward


def f32(tensor: Tensor) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(tensor.numpy(), np.float32)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in PLAIN and "TwoTower" not in name])
@pytest.mark.parametrize("shared", [(), (0, 3), (1, 2, 4, 5), tuple(range(len(FIELDS)))])
@pytest.mark.parametrize("rows", [1, 7, 60])
def test_logits_are_the_models(name: str, shared: tuple[int, ...], rows: int) -> None:
    config = CONFIGS[name]
    model, inputs = build(config), Inputs.of(config, rows)
    own = tuple(f for f in range(len(FIELDS)) if f not in shared)
    values = inputs.values.clone()
    values[:, shared] = inputs.values[:1, shared]
    gathered = Inputs(values, inputs.dense, inputs.sequences, inputs.content).gathered(config)
    with torch.inference_mode():
        expected = model.finish(model.partial(values, inputs.dense), gathered)
        wide = torch.nn.functional.pad(values, (3, 2))  # rows hold other models' values, too
        parts = (f32(wide[:, list(own)]), own), (f32(wide[:1, list(shared)]), shared)
        logits = compiled(model.float()).logits(*parts, f32(inputs.dense), single(gathered), start=3)
    np.testing.assert_allclose(logits, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PLAIN)
def test_other_models_have_no_compiled_pass(name: str) -> None:
    assert compiled_forward(build(CONFIGS[name]), len(FIELDS), len(DENSE)) is None


@pytest.mark.parametrize("name", ["FM", "DNN, prelu", "DeepFM, wide"])
@pytest.mark.parametrize("rows", range(2, 60, 7))
def test_equal_rows_have_equal_bits(name: str, rows: int) -> None:
    config = CONFIGS[name]
    model, inputs = build(config).float(), Inputs.of(config, 1)
    values, dense = (np.repeat(f32(x), rows, 0) for x in (inputs.values, inputs.dense))
    own, common = (1, 4), (0, 2, 3, 5)
    parts = (values[:, own], own), (values[:1, common], common)
    with torch.inference_mode():
        logits = compiled(model).logits(*parts, dense, None)
    assert len(np.unique(logits.view(np.int32))) == 1


def test_a_row_has_the_same_bits_beside_any_others() -> None:
    config = CONFIGS["DeepFM, wide"]
    forward, inputs = compiled(build(config).float()), Inputs.of(config, 130)
    values, dense, every = f32(inputs.values), f32(inputs.dense), tuple(range(len(FIELDS)))
    nothing = np.empty((1, 0, config.width), np.float32), ()
    with torch.inference_mode():
        whole = forward.logits((values, every), nothing, dense, None)
        parts = [forward.logits((values[i : i + 9], every), nothing, dense[i : i + 9], None)
                 for i in range(0, 130, 9)]  # fmt: skip
    assert np.array_equal(whole, np.concatenate(parts))


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in PLAIN and "TwoTower" not in name])
@pytest.mark.parametrize(
    "items",
    [
        ItemFeatures((1, 4), (1,)),
        ItemFeatures((0, 1, 3, 4)),
        ItemFeatures((), (0,)),
        ItemFeatures((0, 1, 3, 4, 5), tuple(range(len(DENSE)))),  # rows have no other feature of their own
    ],
)
def test_kept_partial_results_of_items_give_the_same_bits(name: str, items: ItemFeatures) -> None:
    config, rows = CONFIGS[name], 70
    model, inputs = build(config).float(), Inputs.of(config, rows)
    values, numbers, gathered = f32(inputs.values), f32(inputs.dense), single(inputs.gathered(config))
    forward = compiled_forward(model, len(FIELDS), len(DENSE), items)
    assert forward is not None
    shared = (2,)
    own = tuple(f for f in range(len(FIELDS)) if f not in shared)
    rest = [f for f in own if f not in items.fields]
    others = [d for d in range(len(DENSE)) if d not in items.dense]
    common = values[:1, list(shared)], shared
    with torch.inference_mode():
        plain = compiled(model).logits((values[:, own], own), common, numbers, gathered)
        at_once = forward.logits((values[:, own], own), common, numbers, gathered)
        # Each item's partial result apart, in another order, as a cache would have them
        single_rows = [
            (values[i : i + 1, list(items.fields)], numbers[i : i + 1, items.dense])
            for i in range(rows - 1, -1, -1)
        ]
        kept = np.concatenate([forward.partials((v, items.fields), x) for v, x in single_rows])
        places = Kept.of(kept)
        turned = Kept(np.ascontiguousarray(places.addresses[::-1]), places.arrays)
        later = forward.logits((values[:, rest], rest), common, numbers[:, others], gathered, kept=turned)
    np.testing.assert_allclose(at_once, plain, rtol=1e-4, atol=1e-5)
    assert np.array_equal(at_once, later)


def test_arrays_that_do_not_fit_are_refused() -> None:
    shape = Shape(2, 3, (1,), (), (4, 1), wide=True, pairs=True, prelu=False)
    with pytest.raises(ValueError, match="parameters were given"):
        ForwardNetwork(shape, [np.zeros(5, np.float32)])
    network = ForwardNetwork(shape, [np.zeros(1 + 2 + 1 + 7 * 4 + 4 + 4 + 1, np.float32)])
    sources = Sources(shape)
    with pytest.raises(ValueError, match="are no 2 fields"):
        sources.add_fields(np.zeros((5, 2, 3), np.float32), (0, 1), 1, {0, 1})
    with pytest.raises(ValueError, match="1 were expected"):
        sources.add(np.zeros((5, 2), np.float32))
    sources.add(np.zeros((5, 1), np.float32))
    with pytest.raises(ValueError, match="rows"):
        network(6, sources, Sources(shape))
    with pytest.raises(ValueError, match="4 partial results for 5 rows"):
        network(5, sources, Sources(shape), Kept.of(np.zeros((4, network.partial_size), np.float32)))
    with pytest.raises(ValueError, match="rows"):
        network.partials(6, sources)
