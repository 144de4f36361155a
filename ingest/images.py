"""Pictures in the logs: what counts as one.

A picture that does not decode here would not decode in training either, so its record never gets there.
"""

from __future__ import annotations

import io
import warnings

from PIL import Image, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP")
"""Only these: Pillow knows formats that run other programs (EPS) or that no ad server delivers."""
MAX_PIXELS = 64_000_000
"""A few kilobytes can unpack to gigabytes; larger pictures are refused by their header."""

# Pillow's own warning, at 89 megapixels and printed once a process, says nothing that a letter does not.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def complaint(value: bytes) -> str | None:
    """Why `value` is no usable picture, or None when it decodes (of an animation, its first frame)."""
    if not value:
        return "no bytes"
    try:
        with Image.open(io.BytesIO(value), formats=FORMATS) as image:
            width, height = image.size
            if not width or not height:
                return f"{width} x {height} pixels"
            if width * height > MAX_PIXELS:
                return f"{width} x {height} pixels, more than {MAX_PIXELS // 1_000_000} megapixels"
            image.load()
    except UnidentifiedImageError:
        return f"none of {', '.join(FORMATS)}"
    except Exception as error:  # decoders of hostile bytes raise whatever they stumble over
        return f"{type(error).__name__}: {error}"
    return None
