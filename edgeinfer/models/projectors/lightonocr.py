"""LightOnOCR: Pixtral's encoder with joined blocks of patches, whose rows stand in the prompt without marks.

Source: arXiv 2601.14251. The longer edge has as many pixels as the file says, 1540: pages need them, and 12100 patches
take a CPU minutes.
"""

from __future__ import annotations

from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.projectors import Projector
from edgeinfer.models.projectors.pixtral import encoder
from edgeinfer.models.vision.encoder import ImageEncoder, Size, TilePart

MOST_PATCHES = 1 << 14


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    return encoder(hp, "<|image_pad|>", _whole, MOST_PATCHES)


def _whole(grid: Size) -> tuple[str | TilePart, ...]:
    return (TilePart(0, 0, grid[0] * grid[1]),)


PROJECTOR = Projector(build)
