"""Pictures in the logs: what counts as one, and its pixels as an encoder wants them.

A picture that does not decode here would not decode in training either, so its record never gets there.
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
"""Only these: Pillow knows formats that run other programs (EPS) or that no ad server delivers."""
MAX_PIXELS = 64_000_000
"""A few kilobytes can unpack to gigabytes; larger pictures are refused by their header."""
MAX_RATIO = 4
"""Of a longer picture only the middle is resized: a line of pixels would grow into a wall."""

# Pillow's own warning, at 89 megapixels and printed once a process, says nothing that a letter does not.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class BadPictureError(ValueError):
    """Bytes that are no usable picture; the message says why."""


def complaint(value: bytes) -> str | None:
    """Why `value` is no usable picture, or None when it decodes (of an animation, its first frame)."""
    try:
        with _loaded(value):
            return None
    except BadPictureError as error:
        return str(error)


def decode(value: bytes, *, size: int, short_side: int | None = None) -> U8:
    """The pixels uint8[3, size, size] (red, green, blue) of an encoded picture.

    As torchvision prepares pictures for its networks: the short side is resized to `short_side` (default:
    `size`), bilinearly with antialiasing, then the middle is cut out. Of an animation it is the first frame;
    what is transparent shows white; a camera's note of how it was held (EXIF) is obeyed; 16 bits a channel
    lose their lower 8. Raises BadPictureError.
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
    """A picture with its pixels. Raises BadPictureError; so does what is done with it, if it fails."""
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
    except Exception:  # notes are damaged more often than pixels; a picture is shown without them
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
    """What torchvision's centre crop gives."""
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))
