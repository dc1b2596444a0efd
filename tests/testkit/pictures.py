"""Makes pictures small enough for a repository."""

import io
from pathlib import Path

from PIL import Image

DIRECTORY = Path(__file__).parents[2] / "docs" / "images"
"""Where the pages of the documentation have their pictures."""

_COLOURS = 128
"""A screenshot of text needs no more, and is a third as large as with all its colours."""


def small(png: bytes) -> bytes:
    """Returns the picture as a PNG with a palette."""
    written = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").quantize(_COLOURS).save(written, format="PNG", optimize=True)
    return written.getvalue()
