"""Qwen2.5-VL and Qwen2.5-Omni: Qwen2-VL with RMSNorms, gates, and windows in most layers.

A window is a square of patches, smaller at the right and lower edges. Patches are put in an order in which those of a
window follow one another; the rows go back to reading order. Source: arXiv 2502.13923. An image has 4 to 1280 rows
where the file does not say: the defaults of the processor's class; published ones allow up to 16384.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.step import Floats, Int32s
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.projectors import Projector
from edgeinfer.models.projectors.qwen2a import build_windowed
from edgeinfer.models.vision import native, transformer
from edgeinfer.models.vision.encoder import ImageEncoder, MediaPlan, Pixels, Size, TileInput
from edgeinfer.models.vision.native import Resolution
from edgeinfer.models.vision.transformer import KEYS

LEAST_TOKENS = 4
WINDOW = 112
"""Pixels along the edge of a window."""


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    resolution = Resolution.of(hp, LEAST_TOKENS)
    n_most, block = resolution.n_most, resolution.block
    side = hp.integer(f"{KEYS}window_size", WINDOW) // (resolution.patch * block)
    if not side:
        raise BadGGUF(f"windows hold no block of {block} x {block} patches of {resolution.patch}")
    g = transformer.begun(hp, n_most, norms="rms")
    transformer.embed_patches(g, resolution.patch, positions=False, n_frames=2)
    transformer.shared_cache(g)
    rope, activation = transformer.axial_rope(g.sizes.head_width), transformer.activation_of(hp)
    period = hp.integer(f"{KEYS}n_wa_pattern")
    for number in range(g.sizes.n_layers):
        transformer.layer(g, number, activation, *rope, spans=(number + 1) % period > 0)
    transformer.norm(g, "v.post_ln", out="x")
    joined, width = block**2 * g.sizes.width, hp.integer(f"{KEYS}projection_dim")
    last = transformer.begun_projection(hp, n_most // block**2, joined, width)
    native.merger(last, "joined", "x", ("mm.0", "mm.2"), joined, width)

    def tiles(pixels: Pixels, plan: MediaPlan) -> list[TileInput]:
        grid = plan.tiles[0].grid
        order, spans = windows((grid[0] // block, grid[1] // block), side)
        members = (order[:, None] * block**2 + np.arange(block**2)).reshape(-1)
        first, last = spans.T * block**2
        spans = np.repeat(np.stack([first, last + block**2 - 1], axis=1), block**2, axis=0)
        patches, axes = resolution.late_patches(pixels, grid), resolution.axes(grid)[members]
        return [TileInput(lambda: patches()[members], axes, spans.astype(np.int32))]

    def read(rows: Floats, grid: Size) -> Floats:
        order, _ = windows((grid[0] // block, grid[1] // block), side)
        return rows.reshape(len(order), -1)[np.argsort(order)]

    return ImageEncoder(
        trunk=transformer.end(g),
        projection=transformer.end(last),
        n_most=n_most,
        width=width,
        placeholder=native.QWEN_MARKS.placeholder,
        plan=lambda size: resolution.plan(size, native.QWEN_MARKS),
        tiles=tiles,
        joined=read,
        seen=lambda grid: _mean_side(grid[0], block * side) * _mean_side(grid[1], block * side),
    )


def _mean_side(n: int, side: int) -> float:
    """The length of the stretch of `side`, or less at the end, in which each of `n` is, on average."""
    whole, rest = divmod(n, side)
    return (whole * side**2 + rest**2) / n


def windows(grid: Size, side: int) -> tuple[NDArray[np.int64], Int32s]:
    """The places of a grid, window after window, int64[N], and the first and last of each one's window, int32[N, 2]."""
    down, across = (np.arange(n) // side for n in grid)
    numbers = (down[:, None] * (across[-1] + 1) + across).reshape(-1)
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    spans = np.searchsorted(ordered, ordered, "left"), np.searchsorted(ordered, ordered, "right") - 1
    return order, np.stack(spans, axis=1).astype(np.int32)


PROJECTOR = Projector(build, aliases=("qwen2.5vl_merger", "qwen2.5o"), sound=build_windowed)
