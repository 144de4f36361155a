"""Images in the logs: checks, and pixels in the form that encoders read.

An image that does not decode here would not decode in training, so its record is rejected.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

U8 = npt.NDArray[np.uint8]

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP")
"""Accepted formats. Pillow knows others that run programs (EPS) or that no ad server delivers."""
MAX_PIXELS = 64_000_000
"""Larger images are rejected by their header: a few kilobytes can decompress to gigabytes."""
MAX_RATIO = 4
"""Images with a greater aspect ratio are cropped to their middle before they are resized."""

# Pillow's own warning at 89 megapixels, printed once a process, adds nothing to the dead letter.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class BadPictureError(ValueError):
    """Raised for bytes that are no usable image; the message gives the reason."""


def complaint(value: bytes) -> str | None:
    """Reason why `value` is no usable image, or None when it decodes.

    Of an animation the first frame counts.
    """
    try:
        with _loaded(value):
            return None
    except BadPictureError as error:
        return str(error)


def decode(value: bytes, *, size: int, short_side: int | None = None) -> U8:
    """Decode an image to pixels for an encoder.

    As torchvision prepares images: the short side is resized bilinearly with antialiasing to `short_side`,
    then the centre is cropped. An animation gives its first frame, transparent pixels become white, EXIF
    orientation is applied, and 16-bit channels lose their lower 8 bits.

    Args:
        value: encoded image in one of FORMATS.
        size: side of the result in pixels.
        short_side: length of the short side before the crop; by default `size`.

    Returns:
        uint8[3, size, size], channels red, green, blue.

    Raises:
        BadPictureError: the bytes are no usable image.
    """
    with _loaded(value) as opened:
        image = _in_colour(_upright(opened))
        width, height = image.size
        least = min(width, height)
        image = _middle(image, min(width, MAX_RATIO * least), min(height, MAX_RATIO * least))
        side = short_side or size
        resized = tuple(int(side * length / least) for length in image.size)
        image = image.resize((resized[0], resized[1]), Image.Resampling.BILINEAR)
        return np.ascontiguousarray(np.asarray(_middle(image, size, size)).transpose(2, 0, 1))


@contextmanager
def _loaded(value: bytes) -> Iterator[Image.Image]:
    """Open an image and load its pixels.

    Any failure, also of the caller's block, becomes a BadPictureError.
    """
    if not value:
        raise BadPictureError("no bytes")
    try:
        with Image.open(io.BytesIO(value), formats=FORMATS) as image:
            width, height = image.size
            if not width or not height:
                raise BadPictureError(f"{width} x {height} pixels")
            if width * height > MAX_PIXELS:
                raise BadPictureError(
                    f"{width} x {height} pixels, more than {MAX_PIXELS // 1_000_000} megapixels"
                )
            image.load()
            yield image
    except BadPictureError:
        raise
    except UnidentifiedImageError:
        raise BadPictureError(f"none of {', '.join(FORMATS)}") from None
    except Exception as error:  # decoders of hostile bytes raise whatever they stumble over
        raise BadPictureError(f"{type(error).__name__}: {error}") from error


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # EXIF is damaged more often than pixels; the image is used without it
        return image


def _in_colour(image: Image.Image) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):  # 16 bits of grey, which `convert` would clip
        image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _middle(image: Image.Image, width: int, height: int) -> Image.Image:
    """Centre crop, as in torchvision."""
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))
