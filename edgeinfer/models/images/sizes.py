"""The sizes that families of models resize an image to, where it stays one picture.

In: sizes as (height, width), what a model's files say. Out: sizes. Pure numbers; the same as those of the image
processors of transformers, rounding included. Each function names its source. Raises BadImage for shapes that a family
does not take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgeinfer.errors import BadImage
from edgeinfer.models.images.resizing import Size

QWEN_RATIO = 200
"""The longest shapes that Qwen's models take."""


def multiples_within(size: Size, factor: int, least: int, most: int) -> Size:
    """Multiples of `factor`, with `least` to `most` pixels in all and nearly the same shape.

    Qwen 2-VL, 2.5-VL, 3-VL and 3.5: `smart_resize` of Qwen2VLImageProcessor; `factor` is a patch times the merged ones.
    """
    if max(size) / min(size) > QWEN_RATIO:
        raise BadImage(f"the image is more than {QWEN_RATIO} times as long as wide, which this model does not take")
    height, width = (round(side / factor) * factor for side in size)
    return _brought_within(size, (height, width), factor, least, most)


def lfm2_size(size: Size, factor: int, least_tokens: int, most_tokens: int) -> Size:
    """The same with one multiple at least; `factor`: pixels along an edge of a token.

    LFM2-VL: `smart_resize` of Lfm2VlImageProcessor.
    """
    height, width = (max(round(side / factor) * factor, factor) for side in size)
    return _brought_within(size, (height, width), factor, least_tokens * factor**2, most_tokens * factor**2)


def _brought_within(size: Size, rounded: Size, factor: int, least: int, most: int) -> Size:
    height, width = size
    if rounded[0] * rounded[1] > most:
        shrink = math.sqrt(height * width / most)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if rounded[0] * rounded[1] < least:
        stretch = math.sqrt(least / (height * width))
        return math.ceil(height * stretch / factor) * factor, math.ceil(width * stretch / factor) * factor
    return rounded


def kimi_size(size: Size, patch: int, most_patches: int, longest: int) -> Size:
    """The same shape, shrunk where there are more patches, or more than `longest` along an edge; padding comes after.

    Kimi-VL: `rescale` of its processor, and `navit_resize` of Kimi_K25ImageProcessor.
    """
    n_patches = math.prod(max(1, edge // patch) for edge in size)
    scale = min(1.0, math.sqrt(most_patches / n_patches), *(longest * patch / edge for edge in size))
    height, width = (min(max(1, int(edge * scale)), longest * patch) for edge in size)
    return height, width


def gemma4_size(size: Size, patch: int, pooled: int, most_tokens: int) -> Size:
    """The largest size of nearly the same shape that gives `most_tokens`; each is `pooled` x `pooled` patches.

    Gemma 4: `get_aspect_ratio_preserving_size` of Gemma4ImageProcessor.
    """
    height, width = size
    side = patch * pooled
    scale = math.sqrt(most_tokens * pooled**2 * patch**2 / (height * width))
    down, across = math.floor(scale * height / side), math.floor(scale * width / side)
    if down == 0:
        down, across = 1, min(width // height, most_tokens)
    elif across == 0:
        down, across = min(height // width, most_tokens), 1
    return down * side, across * side


def pixtral_size(size: Size, longest: int, multiple: int) -> Size:
    """Multiples that hold the image, shrunk where an edge is above `longest`.

    Pixtral, Mistral 3: `get_resize_output_image_size` of PixtralImageProcessor; `multiple` is a patch times the merged.
    """
    ratio = max(size) / longest
    height, width = (math.floor(side / ratio) if ratio > 1 else side for side in size)
    if min(height, width) < 1:
        raise BadImage("the image is too long and narrow for this model")
    return -(-height // multiple) * multiple, -(-width // multiple) * multiple


def shortest_edge_size(size: Size, shortest: int) -> Size:
    """The same shape with this many pixels along the shorter edge, as CLIP's models crop it: CLIPImageProcessor."""
    height, width = size
    if width <= height:
        return int(shortest * height / width), shortest
    return shortest, int(shortest * width / height)


def square_size(size: Size) -> Size:
    """The square that holds the image, for models that pad it: `pad_to_square` of LlavaImageProcessor."""
    return max(size), max(size)


def best_canvas(size: Size, canvases: Sequence[Size]) -> Size:
    """The canvas on which most of the image's pixels are seen, and of these the one with least left empty.

    LLaVA 1.6 (NeXT), Granite Vision: `select_best_resolution`.
    """
    height, width = size

    def seen(canvas: Size) -> tuple[int, int]:
        scale = min(canvas[1] / width, canvas[0] / height)
        pixels = min(int(width * scale) * int(height * scale), width * height)
        return pixels, pixels - canvas[0] * canvas[1]

    return max(canvases, key=seen)


def size_on_canvas(size: Size, canvas: Size) -> Size:
    """The largest size of the same shape that a canvas holds: `get_patch_output_size`."""
    by_width, by_height = canvas[1] / size[1], canvas[0] / size[0]
    if by_width < by_height:
        return min(math.ceil(size[0] * by_width), canvas[0]), canvas[1]
    return canvas[0], min(math.ceil(size[1] * by_height), canvas[1])
