"""Pictures for tests, drawn by rule: a sky above the sea, with a red sun."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image as Pillow


def picture(width: int = 64, height: int = 48, form: str = "PNG") -> bytes:
    """The bytes of an image file."""
    rows, columns = np.mgrid[0:height, 0:width]
    down, across = rows / height, columns / width
    pixels = np.zeros((height, width, 3))
    sky = down < 0.6
    pixels[sky] = np.stack([90 + 150 * down, 140 + 80 * down, 230 - 60 * down], -1)[sky]
    pixels[~sky] = np.stack([20 + 0 * down, 60 + 40 * (1 - down), 110 + 60 * across], -1)[~sky]
    pixels[(down - 0.3) ** 2 + ((across - 0.7) * width / height) ** 2 < 0.02] = 230, 60, 40
    file = io.BytesIO()
    Pillow.fromarray(pixels.astype(np.uint8)).save(file, form)
    return file.getvalue()


def picture_file(path: Path, width: int = 64, height: int = 48, form: str = "PNG") -> Path:
    """The same as a file."""
    path.write_bytes(picture(width, height, form))
    return path
