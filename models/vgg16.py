"""VGG16 from Conv1 to FC6 (Simonyan & Zisserman 2014, configuration D).

It is the fixed part of DICM's embedding model, and gives 4096 numbers per picture (DICM §5.1, "the first 14
layers"). Modules are named as in torchvision, so its published weights fit by name. FC6 is read after its
ReLU, as "fc6 features" are in the literature that the paper builds on; without it, the trainable layer that
follows would be linear on linear. Deviation from training: dropout, which follows FC6 there, is the identity
here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

CONVOLUTIONS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""Channels of each 3×3 convolution; 0: a 2×2 maximum pooling."""
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's red, green and blue in [0, 1], as used for the published weights.
"""

# timm publishes torchvision's weights as safetensors; FC6 is a 7×7 convolution there, with the same numbers.
_TIMM = {"pre_logits.fc1.weight": "classifier.0.weight", "pre_logits.fc1.bias": "classifier.0.bias"}
_BEHIND = ("classifier.", "pre_logits.", "head.")
"""Prefixes of the layers after FC6, which are not used."""


class VGG16(nn.Module):
    """VGG16 up to FC6; its parameters have no values until `load`.

    Attributes:
        width: 4096, features of a picture.
        size: 224, side of a picture in pixels.
        short_side: 256, pixels of the short side before the centre is cropped.
        digest: digest of the weights, 12 hexadecimal digits.
    """

    width = 4096
    size = 224
    short_side = 256
    digest = ""
    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        with torch.device("meta"):
            for out in CONVOLUTIONS:
                if out:
                    layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(inplace=True)]
                    channels = out
                else:
                    layers.append(nn.MaxPool2d(2))
            self.features = nn.Sequential(*layers)
            self.avgpool = nn.AdaptiveAvgPool2d(7)  # 7×7 already when pictures are 224 pixels wide
            self.classifier = nn.Sequential(nn.Linear(512 * 7 * 7, self.width), nn.ReLU(inplace=True))
        for name, values in (("mean", MEAN), ("std", STD)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)
        self.requires_grad_(False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Computes features f32[B, 4096], none negative.

        Args:
            pictures: uint8[B, 3, H, W], with H and W at least 32.
        """
        x = (pictures.float() / 255 - self.mean) / self.std
        x = self.avgpool(self.features(x))
        out: Tensor = self.classifier(x.flatten(1))
        return out

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Loads the weights by torchvision's or timm's names; layers after FC6 are left out.

        Raises:
            ValueError: names the first tensor that is missing, unknown or of another shape.
        """
        given = {_TIMM.get(name, name): tensor for name, tensor in tensors.items()}
        wanted = dict(self.named_parameters())
        if (name := next((name for name in wanted if name not in given), None)) is not None:
            raise ValueError(f"there is no tensor {name}: these are not VGG16's weights")
        unknown = (name for name in given if name not in wanted and not name.startswith(_BEHIND))
        if (name := next(unknown, None)) is not None:
            raise ValueError(f"tensor {name} belongs to no layer of VGG16: these are another net's weights")
        values: dict[str, Tensor] = {}
        for name, parameter in wanted.items():
            tensor = given[name]
            if name == "classifier.0.weight" and tensor.ndim == 4:
                tensor = tensor.flatten(1)
            if tensor.shape != parameter.shape:
                raise ValueError(
                    f"{name} has shape {list(tensor.shape)}, not {list(parameter.shape)}: these are not "
                    "VGG16's weights"
                )
            values[name] = tensor.float().contiguous()
            if not all(end.isfinite() for end in values[name].aminmax()):
                raise ValueError(f"{name} holds numbers that are not finite: the weights are damaged")
        self.load_state_dict(values, assign=True)
        self.requires_grad_(False)
        digest = hashlib.blake2b(digest_size=6)
        for tensor in values.values():
            digest.update(tensor.cpu().flatten().numpy().data)
        self.digest = digest.hexdigest()
