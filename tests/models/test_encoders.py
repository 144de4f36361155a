"""Fixed encoders: VGG16 against a forward written by itself, the small one's exactness, encoders by name."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from livectr.models.encoders import load_encoder
from livectr.models.random_conv import RandomConv
from livectr.models.vgg16 import VGG16
from livectr.simulator.records import png

# As printed by torchvision's vgg16().state_dict(), up to FC6.
SHAPES = {
    "features.0": (64, 3, 3, 3), "features.2": (64, 64, 3, 3),
    "features.5": (128, 64, 3, 3), "features.7": (128, 128, 3, 3),
    "features.10": (256, 128, 3, 3), "features.12": (256, 256, 3, 3), "features.14": (256, 256, 3, 3),
    "features.17": (512, 256, 3, 3), "features.19": (512, 512, 3, 3), "features.21": (512, 512, 3, 3),
    "features.24": (512, 512, 3, 3), "features.26": (512, 512, 3, 3), "features.28": (512, 512, 3, 3),
    "classifier.0": (4096, 25088),
}  # fmt: skip
SIDES = {"features.2": 2, "features.7": 2, "features.14": 2, "features.21": 2, "features.28": 2}
"""Layers behind which the picture's side is halved."""


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    """float16 values, of a size that lets signals through."""
    rng = np.random.default_rng(3)

    def uniform(scale: float, shape: tuple[int, ...]) -> Tensor:
        values = np.frombuffer(rng.bytes(int(np.prod(shape))), np.int8).reshape(shape)
        return (torch.from_numpy(values.copy()) * (scale / 128)).half()

    out = {}
    for name, shape in SHAPES.items():
        out[f"{name}.weight"] = uniform(float(6 / np.prod(shape[1:])) ** 0.5, shape)
        out[f"{name}.bias"] = uniform(0.1, shape[:1])
    return out


@pytest.fixture(scope="module")
def vgg16(weights: dict[str, Tensor]) -> VGG16:
    net = VGG16()
    net.load(weights)
    return net


def by_hand(pictures: Tensor, weights: dict[str, Tensor]) -> np.ndarray:
    """Conv1 to FC6 as the VGG paper tells it, pooling down to 7×7 for FC6 as torchvision does."""
    x = pictures.double() / 255
    for channel, (mean, std) in enumerate(((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))):
        x[:, channel] = (x[:, channel] - mean) / std
    x = x.float()
    for name in list(SHAPES)[:-1]:
        kernel, bias = (weights[f"{name}.{part}"].float() for part in ("weight", "bias"))
        columns = functional.unfold(x, 3, padding=1)  # [B, C·9, H·W]
        x = (kernel.flatten(1) @ columns + bias[:, None]).unflatten(2, x.shape[2:]).clamp(min=0)  # type: ignore[no-untyped-call]
        if name in SIDES:
            x = x.unflatten(2, (-1, 2)).unflatten(4, (-1, 2)).amax((3, 5))
    side = x.shape[2]
    bounds = [(i * side // 7, -(-(i + 1) * side // 7)) for i in range(7)]
    cells = torch.stack(
        [torch.stack([x[:, :, a:b, c:d].mean((2, 3)) for c, d in bounds], 2) for a, b in bounds], 2
    )
    kernel, bias = (weights[f"classifier.0.{part}"].float() for part in ("weight", "bias"))
    return np.maximum(cells.flatten(1).numpy() @ kernel.numpy().T + bias.numpy(), 0)


def some_pictures(count: int, side: int) -> Tensor:
    source = torch.Generator().manual_seed(side)
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=source)


def test_vgg16_has_the_published_layers() -> None:
    named = {name: tuple(p.shape) for name, p in VGG16().named_parameters()}
    assert named == {f"{n}.weight": s for n, s in SHAPES.items()} | {
        f"{n}.bias": s[:1] for n, s in SHAPES.items()
    }
    assert sum(np.prod(shape) for shape in named.values()) == 138_357_544 - 4097 * (4096 + 1000)


def test_vgg16_is_an_independent_forward(vgg16: VGG16, weights: dict[str, Tensor]) -> None:
    pictures = some_pictures(2, 64)
    with torch.inference_mode():
        got = vgg16(pictures).numpy()
    wanted = by_hand(pictures, weights)
    assert got.shape == (2, 4096) and (got >= 0).all() and 0.2 < (got > 0).mean() < 0.8
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3 * wanted.max())
    assert np.abs(got[0] - got[1]).max() > 0.1 * wanted.max()  # it looks at the picture


def test_vgg16_at_its_own_size_passes_the_shapes_of_the_paper(vgg16: VGG16) -> None:
    seen = []
    handles = [
        layer.register_forward_hook(lambda _, __, out: seen.append(tuple(out.shape[1:])))
        for layer in [*vgg16.features, vgg16.avgpool, vgg16.classifier[0]]
        if not isinstance(layer, torch.nn.ReLU)
    ]
    with torch.inference_mode():
        vgg16(some_pictures(1, 224))
    for handle in handles:
        handle.remove()
    sides = iter((224, 112, 56, 28, 14, 7))
    wanted, side = [], next(sides)
    for name, shape in list(SHAPES.items())[:-1]:
        wanted.append((shape[0], side, side))
        if name in SIDES:
            side = next(sides)
            wanted.append((shape[0], side, side))
    assert seen == [*wanted, (512, 7, 7), (4096,)]


def test_vgg16_loads_from_safetensors(tmp_path: Path, vgg16: VGG16, weights: dict[str, Tensor]) -> None:
    """Also as timm publishes them; layers behind FC6 are left out."""
    path = tmp_path / "model.safetensors"
    as_timm = {name.replace("classifier.0", "pre_logits.fc1"): value for name, value in weights.items()}
    as_timm["pre_logits.fc1.weight"] = as_timm["pre_logits.fc1.weight"].view(4096, 512, 7, 7)
    save_file({**as_timm, "pre_logits.fc2.bias": torch.zeros(1), "head.fc.bias": torch.zeros(1)}, path)
    encoder = load_encoder(f"vgg16:{path}")
    assert (encoder.width, encoder.size, encoder.short_side) == (4096, 224, 256)
    assert encoder.name == f"vgg16-{vgg16.digest}" and len(vgg16.digest) == 12
    for name, value in encoder.network.named_parameters():  # type: ignore[attr-defined]
        assert torch.equal(value, weights[name].float())


def shapes_only(**changes: tuple[int, ...] | None) -> dict[str, Tensor]:
    """Zeros of the right shapes without their memory; `changes`: name, with _ for a dot, to another shape."""
    named = {name: tuple(p.shape) for name, p in VGG16().named_parameters()}
    for name, shape in changes.items():
        name = name.replace("_", ".")
        if shape is None:
            del named[name]
        else:
            named[name] = shape
    return {name: torch.zeros(()).expand(shape) for name, shape in named.items()}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"features_17_weight": None}, r"no tensor features\.17\.weight"),
        ({"features_34_weight": (512, 512, 3, 3)}, r"features\.34\.weight belongs to no layer"),
        ({"features_1_running_mean": (64,)}, r"features\.1\.running\.mean belongs to no layer"),
        ({"features_5_weight": (128, 64, 5, 5)}, r"features\.5\.weight has shape \[128, 64, 5, 5\], not"),
        ({"features_0_bias": (1,)}, r"features\.0\.bias has shape \[1\]"),
    ],
)
def test_weights_of_another_net_are_refused(changes: dict[str, tuple[int, ...] | None], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        VGG16().load(shapes_only(**changes))


@pytest.mark.parametrize("damage", [torch.nan, torch.inf, -torch.inf])
def test_damaged_weights_are_refused(damage: float) -> None:
    tensors = shapes_only()
    tensors["features.0.bias"] = torch.zeros(64)
    tensors["features.0.bias"][5] = damage
    with pytest.raises(ValueError, match=r"features\.0\.bias holds numbers that are not finite"):
        VGG16().load(tensors)


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"vgg16 needs its weights: vgg16:/path"):
        load_encoder("vgg16")
    with pytest.raises(ValueError, match=r"there is no file .*absent; name VGG16's weights"):
        load_encoder(f"vgg16:{tmp_path}/absent")
    (tmp_path / "pickle.pth").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(ValueError, match=r"pickle\.pth is no safetensors file .*pickles are not read"):
        load_encoder(f"vgg16:{tmp_path}/pickle.pth")
    save_file({"fc.weight": torch.zeros(2)}, tmp_path / "resnet.safetensors")
    with pytest.raises(ValueError, match=r"resnet\.safetensors: there is no tensor features\.0\.weight"):
        load_encoder(f"vgg16:{tmp_path}/resnet.safetensors")


def drawn(count: int, seed: int) -> tuple[Tensor, np.ndarray]:
    """The simulator's pictures, and the looks that they show."""
    look = np.random.default_rng(seed).normal(0, 0.45, (count, 4))
    pixels = [np.asarray(Image.open(io.BytesIO(png(one)))).transpose(2, 0, 1) for one in look]
    return torch.from_numpy(np.stack(pixels)), look


def test_the_small_encoder_tells_the_look_of_simulated_ads() -> None:
    """A linear map of its features, as they are stored, predicts each part of the look of new pictures."""
    encoder = load_encoder("small")
    (known, looks), (new, truth) = drawn(1500, 1), drawn(500, 2)
    features, others = (encoder(pictures).half().double().numpy() for pictures in (known, new))
    mean = features.mean(0)
    ridge = 1e-3 * len(features) * np.diag(features.var(0) + 1e-6)
    centred = features - mean
    slopes = np.linalg.solve(centred.T @ centred + ridge, centred.T @ (looks - looks.mean(0)))
    error = truth - ((others - mean) @ slopes + looks.mean(0))
    r2 = 1 - (error**2).sum(0) / ((truth - truth.mean(0)) ** 2).sum(0)
    assert (r2 > [0.95, 0.95, 0.95, 0.85]).all(), r2


def test_the_small_encoder_gives_the_same_bits_however_it_is_asked() -> None:
    encoder = load_encoder("small")
    pictures = torch.cat([some_pictures(30, 32), torch.zeros(1, 3, 32, 32).byte(), drawn(30, 5)[0]])
    together = encoder(pictures)
    assert together.shape == (61, encoder.width) and together.dtype == torch.float32
    torch.set_num_threads(2)
    for size in (1, 7):
        assert torch.equal(torch.cat([encoder(part) for part in pictures.split(size)]), together)  # type: ignore[no-untyped-call]
    assert not together[30, 12:].any()  # a plain area gives no response
    exact = RandomConv().double()  # sums of integers: float32 rounds none of them
    exact.first, exact.second = exact.first.double(), exact.second.double()
    x = pictures.double()
    quarters = [
        x[:, c, i : i + 16, j : j + 16].mean((1, 2)) for c in range(3) for i in (0, 16) for j in (0, 16)
    ]
    assert torch.equal(torch.stack(quarters, 1).float() / 32 - 4, together[:, :12])
    one = (functional.conv2d(x, exact.first, stride=2).relu() / 16).floor()
    assert torch.equal((one.sum((2, 3)).float() / 169).sqrt(), together[:, 12:44])
    two = functional.conv2d(one, exact.second, stride=2).relu().sum((2, 3))
    assert torch.equal((two.float() / 36).sqrt() / 4, together[:, 44:])
    assert together.abs().max() < 64 and together.std(0).median() > 0.1


def test_an_encoder_without_pictures() -> None:
    assert load_encoder("small")(torch.zeros(0, 3, 32, 32, dtype=torch.uint8)).shape == (0, 128)
    for wrong in (torch.zeros(2, 3, 32, 31, dtype=torch.uint8), torch.zeros(2, 3, 32, 32)):
        with pytest.raises(ValueError, match=r"small takes uint8\[B, 3, 32, 32\], not"):
            load_encoder("small")(wrong)


MODULE = """
import torch
from torch import nn

def colours(pictures):
    return pictures.float().mean((2, 3))
colours.width, colours.size = 3, 16

class Net(nn.Module):
    width, size, short_side = 6, 8, 12
    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(3, 6), nn.Dropout()
    def forward(self, pictures):
        return self.drop(self.layer(pictures.float().mean((2, 3))))

def short(pictures):
    return pictures.float().mean((1, 2, 3))
short.width, short.size = 1, 4

def bare(pictures):
    return pictures

number = 7
"""


def test_encoders_of_a_users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_nets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    colours = load_encoder("my_nets:colours")
    assert (colours.name, colours.width, colours.size, colours.short_side) == ("my_nets:colours", 3, 16, 16)
    pictures = some_pictures(4, 16)
    torch.testing.assert_close(colours(pictures), pictures.float().mean((2, 3)))
    net = load_encoder("my_nets:Net")
    assert net.short_side == 12
    assert torch.equal(net(some_pictures(2, 8)), net(some_pictures(2, 8)))  # no dropout
    for spec, said in {
        "my_nets:short": r"gave float32\[2\] for 2 pictures; its width says float32\[2, 1\]",
        "my_nets:bare": "needs an attribute width, a number of at least 1",
        "my_nets:number": "is a int, which cannot be called",
        "my_nets:absent": "module my_nets has no absent",
        "no_such_module:net": "there is no module no_such_module; install it",
        "resnet": "there is no encoder 'resnet'; name small, vgg16",
        ":x": "there is no encoder ':x'",
    }.items():
        with pytest.raises(ValueError, match=said):
            load_encoder(spec)(some_pictures(2, 4))
