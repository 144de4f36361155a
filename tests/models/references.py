"""The papers' formulas, written plainly: sample by sample, field by field, layer by layer, with no thought of
ranks. `p` holds the parameters by their exported names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from livectr.models import (
    DCN,
    DICM,
    DIEN,
    DIN,
    DNN,
    FLEN,
    FM,
    LR,
    PLE,
    PNN,
    AutoInt,
    DeepFM,
    MMoE,
    ModelConfig,
    SharedBottom,
    TwoTower,
    WideDeep,
    XDeepFM,
)
from livectr.models.two_tower import SOFT_NORM
from tests.models.examples import DENSE, FIELDS
from tests.models.inputs import Inputs, build, lists

P = dict[str, Tensor]


def zero() -> Tensor:
    return torch.zeros((), dtype=torch.float64)


def first_order(p: P, row: Tensor, x: Tensor) -> Tensor:
    """Σ s w + Σ x u of a sample: row f64[F, D_model] with w first, x f64[Dd]."""
    wide = sum((row[i, 0] * p[f"wide.scale/{f}"] for i, f in enumerate(FIELDS)), zero())
    return wide + sum((x[i] * p[f"wide.dense/{d}"] for i, d in enumerate(DENSE)), zero())


def taken(x: Tensor) -> Tensor:
    """Numbers as a network takes them."""
    return torch.stack([n if abs(n) <= 1 else n.sign() * (1 + n.abs().log()) for n in x])


def first_layer(p: P, name: str, vectors: Tensor, x: Tensor, names: Sequence[str]) -> Tensor:
    """[v …, s(x) …] W of the named features, by one product of a whole row and a whole matrix."""
    fields = [f for f in FIELDS if f in names]
    numbers = [d for d in DENSE if d in names]
    inputs = torch.cat(
        [vectors[FIELDS.index(f)] for f in fields] + [taken(x)[DENSE.index(d), None] for d in numbers]
    )
    blocks = [p[f"{name}.weight/{f}"] for f in fields] + [p[f"{name}.dense/{d}"][None] for d in numbers]
    return inputs @ torch.cat(blocks)


def layers(p: P, name: str, x: Tensor) -> Tensor:
    """Layers after the first layer's product."""
    x = x + p[f"{name}.first_bias"]
    i = 0
    while f"{name}.weights.{i}" in p:
        slope = p[f"{name}.slopes.{i}"] if f"{name}.slopes.0" in p else 0.0
        x = torch.where(x > 0, x, slope * x) @ p[f"{name}.weights.{i}"] + p[f"{name}.biases.{i}"]
        i += 1
    return x


def deep(p: P, vectors: Tensor, x: Tensor) -> Tensor:
    """An MLP's number on everything."""
    return layers(p, "mlp", first_layer(p, "first", vectors, x, FIELDS + DENSE)).squeeze()


def lr(c: LR, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    return first_order(p, row, x)


def pairs(vectors: Sequence[Tensor]) -> Tensor:
    return sum((a @ b for a, b in itertools.combinations(vectors, 2)), zero())


def fm(c: FM, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    return first_order(p, row, x) + pairs(list(row[:, 1:]))


def dnn(c: DNN, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    return deep(p, row, x)


def wide_deep(c: WideDeep, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    return first_order(p, row, x) + deep(p, row[:, 1:], x)


def deepfm(c: DeepFM, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    return first_order(p, row, x) + pairs(list(row[:, 1:])) + deep(p, row[:, 1:], x)


def pnn(c: PNN, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    """Unit n's product signal is Σ over the entries of W_pⁿ times those of the matrix of products p."""
    units = []
    for n in range(c.hidden[0]):
        unit = zero()
        for (i, f), (j, g) in itertools.product(enumerate(FIELDS), repeat=2):
            if c.product == "inner":
                weight = p[f"product.theta/{f}"][n] * p[f"product.theta/{g}"][n]
                unit = unit + weight * (row[i] @ row[j])
            else:
                weight = p["product.weight"].reshape(c.dim, c.dim, c.hidden[0])[:, :, n]
                unit = unit + (weight * torch.outer(row[i], row[j])).sum()
        units.append(unit)
    linear = first_layer(p, "first", row, x, FIELDS + DENSE)
    return layers(p, "mlp", linear + torch.stack(units)).squeeze()


def dcn(c: DCN, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    """The cross layers one after the other, on whole vectors."""

    def whole(kind: str, at: int) -> Tensor:
        fields = [p[f"cross.{kind}/{f}"][:, at] for f in FIELDS]
        return torch.cat(fields + [p[f"cross.dense_{kind}/{d}"][:, at] for d in DENSE])

    x_0 = torch.cat([row.flatten(), taken(x)])
    x_l = x_0
    for layer in range(c.layers):
        x_l = x_0 * (x_l @ whole("weight", layer)) + whole("bias", layer) + x_l
    return x_l @ whole("weight", c.layers) + deep(p, row, x)


def flen(c: FLEN, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    """Pair by pair: FM within a group has every ordered pair of its fields, e ∘ e − Σ v ∘ v."""
    vectors = dict(zip(FIELDS, row[:, 1:], strict=True))
    total = torch.zeros(c.dim, dtype=torch.float64)
    for m, group in enumerate(c.groups):
        for f, g in itertools.permutations(group, 2):
            total = total + p["within"][m] * vectors[f] * vectors[g]
        for n in range(m + 1, len(c.groups)):
            for f, g in itertools.product(group, c.groups[n]):
                total = total + p["between"][m, n] * vectors[f] * vectors[g]
    return first_order(p, row, x) + total @ p["output"].squeeze() + deep(p, row[:, 1:], x)


def hidden(p: P, name: str, first: Tensor) -> Tensor:
    """Layers of an expert or a bottom, each with relu."""
    x = (first + p[f"{name}.first_bias"]).relu()
    i = 0
    while f"{name}.weights.{i}" in p:
        x = (x @ p[f"{name}.weights.{i}"] + p[f"{name}.biases.{i}"]).relu()
        i += 1
    return x


def tower(p: P, x: Tensor) -> Tensor:
    """Number of the first task's tower."""
    i = 0
    while f"tower.biases.{i}" in p:
        x = (x @ p[f"tower.weights.{i}"] + p[f"tower.biases.{i}"]).relu()
        i += 1
    return (x @ p[f"tower.weights.{i}"]).squeeze()


def shared_bottom(c: SharedBottom, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    return tower(p, hidden(p, "bottom", first_layer(p, "first", row, x, FIELDS + DENSE)))


def gated(gate: Tensor, experts: Sequence[Tensor]) -> Tensor:
    weights = gate.exp() / gate.exp().sum()
    return sum((w * e for w, e in zip(weights, experts, strict=True)), zero())


def mmoe(c: MMoE, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    first = first_layer(p, "first", row, x, FIELDS + DENSE).reshape(c.experts, -1)
    experts = [hidden(p, f"experts.{i}", first[i]) for i in range(c.experts)]
    return tower(p, gated(first_layer(p, "gate0", row, x, FIELDS + DENSE), experts))


def ple(c: PLE, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    """One task: all experts are its own or shared, and see the mixtures of the level before."""
    n = c.experts + c.shared_experts
    firsts = first_layer(p, "first", row, x, FIELDS + DENSE).reshape(n, -1)
    gates = first_layer(p, "gates", row, x, FIELDS + DENSE)
    own, shared = gates[:n], gates[n:]
    name = "experts"
    for level in range(c.levels):
        experts = [hidden(p, f"{name}.each.{i}", firsts[i]) for i in range(n)]
        task = gated(own, experts)
        if level == c.levels - 1:
            break
        common, at = gated(shared, experts), f"levels.{level}"
        below = [task] * c.experts + [common] * c.shared_experts
        firsts = torch.stack([below[i] @ p[f"{at}.first.{i}"] for i in range(n)])
        own, name = task @ p[f"{at}.gates.0"], f"{at}.experts"
        if level < c.levels - 2:
            shared = common @ p[f"{at}.gates.1"]
    return tower(p, task)


def two_tower(c: TwoTower, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    def tower(name: str, names: tuple[str, ...], images: tuple[str, ...]) -> Tensor:
        first = first_layer(p, f"{name}.first", row, x, names)
        if images:
            means = [aggregate("mean", p, "", lists[f"content.{f}"], None, row, 0) for f in images]
            first = first + torch.cat(means) @ p[f"{name}.images"]
        return layers(p, f"{name}.mlp", first)

    user, item = tower("user", c.user, c.user_images), tower("item", c.item, c.item_images)

    def norm(y: Tensor) -> Tensor:
        return (y.square().sum() + SOFT_NORM**2).sqrt()

    return p["gamma"] * (user @ item) / (norm(user) * norm(item))


def xdeepfm(c: XDeepFM, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    """Map by map and pair by pair."""
    x_0 = list(row[:, 1:])
    x_k, sums = x_0, []
    for k, maps in enumerate(c.cin):
        weight = p[f"cin.{k}"].reshape(len(x_k), len(x_0), maps)
        x_k = [
            sum((weight[i, j, h] * a * b for i, a in enumerate(x_k) for j, b in enumerate(x_0)), zero())
            for h in range(maps)
        ]
        sums += [one.sum() for one in x_k]
    return first_order(p, row, x) + torch.stack(sums) @ p["output"].squeeze() + deep(p, row[:, 1:], x)


def autoint(c: AutoInt, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    """Token by token and head by head."""
    tokens = [*row, *(taken(x)[d] * p["tokens"][d] for d in range(len(DENSE)))]
    for layer in range(c.layers):
        w = {name: p[f"layers.{layer}.{name}"] for name in ("query", "key", "value", "residual")}
        moved = []
        for e in tokens:
            heads = []
            for h in range(c.heads):
                at = slice(h * c.out, (h + 1) * c.out)
                scores = [(e @ w["query"][:, at]) @ (other @ w["key"][:, at]) for other in tokens]
                alpha = torch.stack(scores).softmax(0)
                heads.append(
                    sum((a * (o @ w["value"][:, at]) for a, o in zip(alpha, tokens, strict=True)), zero())
                )
            moved.append(torch.relu(torch.cat(heads) + e @ w["residual"]))
        tokens = moved
    return torch.cat(tokens) @ p["output"].squeeze() + (deep(p, row, x) if c.deep else zero())


def with_interests(c: DIN | DIEN | DICM, p: P, row: Tensor, x: Tensor, interests: list[Tensor]) -> Tensor:
    """The first layer's product, with interests for the behaviors."""
    others = [name for name in FIELDS + DENSE if name not in c.behaviors]
    return first_layer(p, "first", row, x, others) + torch.cat(interests) @ p["interests"]


def attended(p: P, unit: str, behaviors: Tensor, query: Tensor) -> Tensor:
    """Σ a(b, q) b, behavior by behavior and layer by layer."""
    interest = torch.zeros_like(query)
    for b in behaviors:
        x = torch.cat([b, query, b - query, b * query])
        layer = 0
        while f"{unit}.slopes.{layer}" in p:
            x = x @ p[f"{unit}.weights.{layer}"] + p[f"{unit}.biases.{layer}"]
            x = torch.where(x > 0, x, p[f"{unit}.slopes.{layer}"] * x)
            layer += 1
        interest = interest + (x @ p[f"{unit}.weights.{layer}"] + p[f"{unit}.biases.{layer}"]) * b
    return interest


def din_interests(c: DIN | DICM, p: P, row: Tensor, lists: dict[str, Tensor]) -> list[Tensor]:
    """Interests of every pair of fields."""
    return [
        attended(p, f"units.{i}", lists[behaviors], row[FIELDS.index(target)])
        for i, (behaviors, target) in enumerate(zip(c.behaviors, c.target, strict=True))
    ]


def din(c: DIN, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    first = with_interests(c, p, row, x, din_interests(c, p, row, lists))
    return layers(p, "mlp", first).squeeze()


def aggregate(
    name: str, p: P, prefix: str, images: Tensor, ad_image: Tensor | None, ad: Tensor, length: int
) -> Tensor:
    """Pools an example's behavior images f64[n, W], oldest first → f64[width] (DICM §5.2)."""
    nothing = torch.zeros(images.shape[1], dtype=torch.float64)
    if name == "concat":
        return torch.cat([*reversed(list(images)), *[nothing] * length][:length])
    if name in ("sum", "mean"):
        return sum(images, nothing) / (max(len(images), 1) if name == "mean" else 1)
    if name == "max":
        return images.amax(0) if len(images) else nothing
    channels = [] if ad_image is None else [attended(p, f"{prefix}image", images, ad_image)]
    if name == "multi_query_attentive":
        channels.append(attended(p, f"{prefix}id", images, ad @ p[f"{prefix}project"]))
    return torch.cat(channels) / max(len(images), 1)


def dicm(c: DICM, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    images, ad_image = [], None
    if c.images in ("ad", "joint"):
        ad_image = aggregate("mean", p, "", lists[f"content.{c.ad_image}"], None, row, c.concat_length)
        images.append(ad_image)
    if c.images in ("behaviors", "joint"):
        seen, ad = lists[f"content.{c.behavior_images}"], row[FIELDS.index(c.ad)][-c.dim :]
        images.append(aggregate(c.aggregator, p, "images.aggregator.", seen, ad_image, ad, c.concat_length))
    of_images = torch.cat(images) @ p["images.weight"] if images else zero()
    if c.basic == "lr":
        return first_order(p, row, x) + of_images.squeeze()
    if c.basic == "wide_deep":
        deep = first_layer(p, "first", row[:, 1:], x, FIELDS + DENSE) + of_images
        return first_order(p, row, x) + layers(p, "mlp", deep).squeeze()
    if c.basic == "din":
        first = with_interests(c, p, row, x, din_interests(c, p, row, lists))
    else:
        first = first_layer(p, "first", row, x, FIELDS + DENSE)
    return layers(p, "mlp", first + of_images).squeeze()


def gru(p: P, name: str, x: Tensor, state: Tensor, attention: Tensor | None = None) -> Tensor:
    """Step of paper eq. 2 to 5, and with attention of eq. 16 and 17."""
    w, u, b = (p[f"{name}.{part}"].chunk(3, dim=-1) for part in ("inputs", "states", "biases"))
    update = torch.sigmoid(x @ w[0] + state @ u[0] + b[0])
    reset = torch.sigmoid(x @ w[1] + state @ u[1] + b[1])
    candidate = torch.tanh(x @ w[2] + reset * (state @ u[2]) + b[2])
    if attention is not None:
        update = attention * update
    return (1 - update) * state + update * candidate


def dien(c: DIEN, p: P, row: Tensor, x: Tensor, lists: dict[str, Tensor]) -> Tensor:
    interests = []
    for i, (behaviors, target) in enumerate(zip(c.behaviors, c.target, strict=True)):
        state, states = torch.zeros(c.state, dtype=torch.float64), []
        for b in lists[behaviors]:
            state = gru(p, f"extractors.{i}", b, state)
            states.append(state)
        scores = [h @ p[f"attention.{i}"] @ row[FIELDS.index(target)] for h in states]
        interest = torch.zeros(c.state, dtype=torch.float64)
        for h, a in zip(states, torch.stack(scores).softmax(0) if scores else [], strict=True):
            interest = gru(p, f"evolution.{i}", h, interest, a)
        interests.append(interest)
    return layers(p, "mlp", with_interests(c, p, row, x, interests)).squeeze()


def dien_auxiliary(c: DIEN, p: P, row: Tensor, lists: dict[str, Tensor], label: float, late: float) -> Tensor:
    """Eq. 6 of an example, times α: next click by next click. ê is the shown item, where it was not clicked;
    a late positive was learned before."""
    total = zero()
    for i, (behaviors, target) in enumerate(zip(c.behaviors, c.target, strict=True)):
        shown, state = row[FIELDS.index(target)], torch.zeros(c.state, dtype=torch.float64)
        clicked = list(lists[behaviors]) if label != late else []
        for e, following in itertools.pairwise(clicked):
            state = gru(p, f"extractors.{i}", e, state)
            h = state if c.state == c.dim else state @ p[f"attention.{i}"]
            total = total - torch.log(torch.sigmoid(h @ following))
            if label == 0 and not torch.equal(shown, following):
                total = total - torch.log(1 - torch.sigmoid(h @ shown))
    return c.auxiliary * total


Reference = Callable[..., Tensor]

REFERENCES: dict[type[ModelConfig], Reference] = {
    LR: lr,
    FM: fm,
    DNN: dnn,
    WideDeep: wide_deep,
    DeepFM: deepfm,
    PNN: pnn,
    DCN: dcn,
    FLEN: flen,
    XDeepFM: xdeepfm,
    AutoInt: autoint,
    DIN: din,
    DICM: dicm,
    DIEN: dien,
    SharedBottom: shared_bottom,
    MMoE: mmoe,
    PLE: ple,
    TwoTower: two_tower,
}


def logits(config: ModelConfig, p: P, inputs: Inputs) -> Tensor:
    """The reference's f64[B]."""
    of = REFERENCES[type(config)]
    sequences = {name: lists(ragged) for name, ragged in inputs.lists().items()}
    return torch.stack(
        [
            of(config, p, row, x, {n: parts[b] for n, parts in sequences.items()}) + p["bias"]
            for b, (row, x) in enumerate(zip(inputs.values, inputs.dense, strict=True))
        ]
    )


def weighed(logits: Tensor) -> Tensor:
    """A number that depends on every logit in its own way."""
    return (logits * torch.arange(1, len(logits) + 1)).sum() + logits.square().sum()


def check(config: ModelConfig) -> None:
    """A model's logits and all gradients are those of its formula."""
    model = build(config)
    ours, theirs = Inputs.of(config).leaves(), Inputs.of(config).leaves()
    state = model.local_state() | model.shared_state()
    p = {name: tensor.clone().requires_grad_() for name, tensor in state.items()}
    one, other = ours.logits(config, model), logits(config, p, theirs)
    torch.testing.assert_close(one, other)
    assert one.detach().std() > 1e-2, "the samples must differ for this test to see anything"
    weighed(one).backward()  # type: ignore[no-untyped-call]
    weighed(other).backward()  # type: ignore[no-untyped-call]
    grads = {n: w.grad if w.grad is not None else torch.zeros_like(w) for n, w in model.named_parameters()}
    local, shared = model.by_name(grads)
    for name, grad in (local | shared).items():
        wanted = p[name].grad
        torch.testing.assert_close(grad, torch.zeros_like(grad) if wanted is None else wanted, msg=name)
    for name, tensor in ours.tensors().items():
        wanted = theirs.tensors()[name].grad
        got = tensor.grad
        alone = got if wanted is None else wanted
        assert (got is None) == (wanted is None) or (alone is not None and not alone.any()), name
        if got is not None and wanted is not None:
            torch.testing.assert_close(got, wanted, msg=name)
