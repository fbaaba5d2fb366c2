"""LLaVA 1.5 and 1.6, BakLLaVA: an inner layer of CLIP, then two products.

LLaVA 1.5 (arXiv 2310.03744) pads the image to a square. LLaVA 1.6 has one more look at it in tiles, on the canvas of
those that its file lists that wastes least; rows of padding are not cut out and lines are not separated, as in
llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import COUNT_MAX, Hyperparameters
from edgeinfer.models.images.patches import normalised_patches
from edgeinfer.models.images.resizing import Padded, resized
from edgeinfer.models.images.sizes import best_canvas, square_size
from edgeinfer.models.images.tiling import llava_next_tiles
from edgeinfer.models.projectors import Projector
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.class_token import TokensOfGrid
from edgeinfer.models.vision.encoder import ImageEncoder, MediaPlan, Pixels, Size, TileInput, TilePlan
from edgeinfer.models.vision.transformer import KEYS

CANVASES = "image_grid_pinpoints"
MOST_TILES = 64


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing, UnsupportedModel for variants."""
    side, patch = hp.integer(f"{KEYS}image_size"), hp.integer(f"{KEYS}patch_size")
    grid = transformer.square_grid(hp, side, patch, 1)
    tokens = TokensOfGrid(hp, grid)
    g = transformer.begun(hp, tokens.n_tokens)
    transformer.embed_patches(g, patch, positions=True, bias=not tokens.has_class)
    if "v.pre_ln.weight" in hp.tensors:
        transformer.norm(g, "v.pre_ln", out="x")
    n_layers, width = _n_layers(hp, g.sizes.n_layers), g.sizes.width
    transformer.layers(g, transformer.activation_of(hp), n_layers=n_layers)
    inner, out = transformer.rows_of(hp, "mm.0.weight"), transformer.rows_of(hp, "mm.2.weight")
    last = transformer.begun_projection(hp, tokens.n_patches, width, out)
    transformer.product(last, "joined", "inner", "mm.0", inner, width)
    last.add(Act("inner", "inner", inner, "gelu"))
    transformer.product(last, "inner", "x", "mm.2", out, inner)
    tile, canvases = TilePlan(grid, tokens.n_patches), _canvases(hp, side)
    mean, deviation = transformer.normalisation(hp)
    colour = tuple(int(each * 255) for each in mean)

    def tiles(pixels: Pixels, _: MediaPlan) -> list[TileInput]:
        cut = llava_next_tiles(pixels, side, canvases) if canvases else [_squared(pixels, side, colour)]
        return [TileInput(partial(rows_of, each)) for each in cut]

    def rows_of(tile: NDArray[np.uint8]) -> Floats:
        return tokens.input_rows(normalised_patches(tile, patch, mean, deviation))

    return ImageEncoder(
        trunk=transformer.end(g),
        projection=transformer.end(last),
        n_most=tokens.n_tokens,
        width=out,
        placeholder="<image>",
        plan=_planned(tile, side, canvases),
        tiles=tiles,
        joined=lambda rows, _: tokens.without_class(rows),
        positions=tokens.positions(width),
        constants=tokens.constants(width),
        unread=r"v\.post_ln\..*|(v|model)\.image_newline" + transformer.layers_from(n_layers, g.sizes.n_layers),
    )


def _n_layers(hp: Hyperparameters, n_layers: int) -> int:
    """How many layers run: up to the one that the file names, else all that it has."""
    key = f"{hp.architecture}.{KEYS}feature_layer"
    if key not in hp.metadata:
        return n_layers
    named = hp.metadata.numbers(key)
    if len(named) != 1:
        raise UnsupportedModel(f"{key} names {len(named)} layers; edgeinfer reads one (it is no Granite Vision)")
    if not 1 <= named[0] <= n_layers:
        raise BadGGUF(f"{key} is {named[0]}, of {n_layers} layers")
    return int(named[0])


def _canvases(hp: Hyperparameters, side: int) -> tuple[Size, ...]:
    """The sizes of canvases that a file lists, in whole tiles. Raises BadGGUF."""
    key = f"{hp.architecture}.{KEYS}{CANVASES}"
    if key not in hp.metadata:
        return ()
    listed = [int(each) for each in hp.metadata.numbers(key) if 0 <= each <= COUNT_MAX]
    sizes = tuple(zip(listed[::2], listed[1::2], strict=False))
    for height, width in sizes:
        if not height or not width or height % side or width % side or height * width > MOST_TILES * side * side:
            raise BadGGUF(f"{key} has {height} x {width}: no 1 to {MOST_TILES} tiles of {side} pixels")
    return sizes


def _planned(tile: TilePlan, side: int, canvases: tuple[Size, ...]) -> Callable[[Size], MediaPlan]:
    def plan(size: Size) -> MediaPlan:
        height, width = best_canvas(size, canvases) if canvases else (0, 0)
        n_tiles = 1 + height // side * (width // side)
        return MediaPlan((tile,) * n_tiles, tuple(range(n_tiles)))

    return plan


def _squared(pixels: Pixels, side: int, colour: tuple[int, ...]) -> NDArray[np.uint8]:
    """The image in the middle of a square of the mean colour."""
    height, width, _ = pixels.shape
    return resized(Padded(pixels, square_size((height, width)), colour, centred=True), (side, side), "bicubic")


PROJECTOR = Projector(build)
