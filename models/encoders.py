"""Fixed encoders of pictures by name; a content store keeps the features that they compute."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from livectr.models.random_conv import RandomConv
from livectr.models.vgg16 import VGG16

KINDS = "small, vgg16:/path/to/weights.safetensors, or module:attribute"


@dataclass(frozen=True)
class Encoder:
    """Fixed network from pictures to features.

    Args:
        name: name in a content store; features of encoders with different names do not mix.
        width: float32 values of a picture's features.
        size: side in pixels of the square that the network reads.
        short_side: pixels to which a picture's short side is resized before its middle is cropped.
        network: uint8[B, 3, size, size] (red, green, blue) → f32[B, width].
        device: torch device of the network.
    """

    name: str
    width: int
    size: int
    short_side: int
    network: Callable[[Tensor], Tensor]
    device: str = "cpu"

    def __call__(self, pictures: Tensor) -> Tensor:
        """Computes features f32[B, width] of pictures uint8[B, 3, size, size], both in host memory.

        Raises:
            ValueError: pictures of another shape, or a user's network returns another shape.
        """
        if pictures.dtype != torch.uint8 or pictures.shape[1:] != (3, self.size, self.size):
            raise ValueError(
                f"encoder {self.name} takes uint8[B, 3, {self.size}, {self.size}], not {_shape(pictures)}"
            )
        if not len(pictures):
            return torch.zeros(0, self.width)
        with torch.inference_mode():
            out = self.network(pictures.to(self.device))
            if not isinstance(out, Tensor) or out.shape != (len(pictures), self.width):
                said = _shape(out) if isinstance(out, Tensor) else type(out).__name__
                raise ValueError(
                    f"encoder {self.name} gave {said} for {len(pictures)} pictures; its width says "
                    f"float32[{len(pictures)}, {self.width}]"
                )
            return out.float().cpu()


def load_encoder(spec: str, *, device: str = "cpu") -> Encoder:
    """Loads an encoder onto a torch device.

        small                    `RandomConv`: 128 numbers of 32×32 pixels, for demos and tests
        vgg16:FILE.safetensors   `VGG16` up to FC6: 4096 numbers of 224×224 pixels, with the weights of the
            file
        module:attribute         any importable callable as `Encoder.network` with the attributes `width`
                                 and `size` (and `short_side`, else it is `size`), or a class that makes it

    Args:
        spec: one of the three forms.
        device: torch device.

    Raises:
        ValueError: a sentence that says what to change.
    """
    kind, colon, rest = spec.partition(":")
    if spec == "small":
        return _encoder("small", RandomConv().to(device), device)
    if kind == "vgg16":
        if not rest:
            raise ValueError("encoder vgg16 needs its weights: vgg16:/path/to/weights.safetensors")
        net = VGG16()
        _load_weights(net, Path(rest))
        return _encoder(f"vgg16-{net.digest}", net.to(device), device)
    if not colon or not kind or not rest:
        raise ValueError(f"there is no encoder {spec!r}; name {KINDS}")
    return _encoder(spec, _import(kind, rest, spec), device)


def _encoder(name: str, network: object, device: str) -> Encoder:
    if not callable(network):
        raise ValueError(
            f"encoder {name} is a {type(network).__name__}, which cannot be called with pictures"
        )
    if isinstance(network, torch.nn.Module):
        network = network.to(device).eval()
    numbers: list[int] = []
    for attribute in ("width", "size", "short_side"):
        value = getattr(network, attribute, numbers[-1] if attribute == "short_side" else None)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"encoder {name} needs an attribute {attribute}, a number of at least 1")
        numbers.append(value)
    width, size, short_side = numbers
    if short_side < size:
        raise ValueError(
            f"encoder {name} cuts {size} pixels out of {short_side}; short_side must not be less"
        )
    return Encoder(name, width, size, short_side, network, device)


def _import(module: str, attribute: str, spec: str) -> object:
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"encoder {spec}: there is no module {error.name}; install it, or put its folder on PYTHONPATH"
        ) from error
    if not hasattr(loaded, attribute):
        raise ValueError(f"encoder {spec}: module {module} has no {attribute}")
    named: object = getattr(loaded, attribute)
    return named() if isinstance(named, type) else named


def _load_weights(net: VGG16, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}; name VGG16's weights as safetensors") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is no safetensors file ({error}); convert the weights, pickles are not read"
        ) from error
    try:
        net.load(tensors)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
