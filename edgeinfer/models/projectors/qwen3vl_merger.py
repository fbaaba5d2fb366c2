"""Qwen3-VL and Qwen 3.5 and later: patches of two frames, interpolated positions, rotary embedding over two axes.

Blocks of patches are joined by a merger. Rows after some layers go through mergers of their own (deepstack, arXiv
2406.04334), and the language model adds them after its first layers: a row is [last | deepstack 1 | deepstack 2 …].
Sources: Qwen2-VL (arXiv 2409.12191), Qwen3-VL (arXiv 2511.21631). An image has 64 to 1280 rows where the file does not
say: the least of the published processors, and the most of their class; they themselves allow up to 16384.
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.hidden_rows import HiddenRows
from edgeinfer.graph.ops.join_parts import JoinParts
from edgeinfer.graph.ops.take_part import TakePart
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.images.patches import block_order
from edgeinfer.models.projectors import Projector
from edgeinfer.models.vision import native, transformer
from edgeinfer.models.vision.encoder import ImageEncoder, Size
from edgeinfer.models.vision.native import Resolution
from edgeinfer.models.vision.positions import stretched
from edgeinfer.models.vision.transformer import KEYS

LEAST_TOKENS = 64


def build(hp: Hyperparameters) -> ImageEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    resolution = Resolution.of(hp, LEAST_TOKENS)
    n_most, n = resolution.n_most, resolution.block**2
    g = transformer.begun(hp, n_most)
    transformer.embed_patches(g, resolution.patch, positions=True, n_frames=2)
    transformer.shared_cache(g)
    own, activation = g.sizes.width, transformer.activation_of(hp)
    rope, sections = transformer.axial_rope(g.sizes.head_width)
    deep: dict[int, str] = {}
    for number in range(g.sizes.n_layers):
        transformer.layer(g, number, activation, rope, sections)
        if f"v.deepstack.{number}.fc1.weight" in hp.tensors:
            deep[number] = g.buffer(f"deep {len(deep)}", own)
            g.add(TakePart("x", deep[number], 1, 0, own))
    transformer.norm(g, "v.post_ln", out="x")
    parts = 1 + len(deep)
    if deep:
        g.add(JoinParts(("x", *deep.values()), g.buffer("parts", parts * own), own))

    def joined(rows: Floats, _: Size) -> Floats:
        return rows.reshape(len(rows) // n, n, parts, own).transpose(0, 2, 1, 3)

    def positions(held: Floats, grid: Size) -> Floats:
        return stretched(held, grid)[block_order(grid, resolution.block)]

    width = hp.integer(f"{KEYS}projection_dim")
    return ImageEncoder(
        trunk=transformer.end(g, "parts" if deep else "x"),
        projection=_projection(hp, n_most // n, n * own, width, tuple(deep)),
        n_most=n_most,
        width=parts * width,
        placeholder=native.QWEN_MARKS.placeholder,
        plan=lambda size: resolution.plan(size, native.QWEN_MARKS),
        tiles=resolution.inputs,
        joined=joined,
        positions=(transformer.square_table(hp, own), positions),
    )


def _projection(hp: Hyperparameters, n_most: int, joined: int, width: int, deep: tuple[int, ...]) -> ModelSpec:
    """Mergers of the joined rows of the last layer and of the layers `deep`."""
    g = transformer.begun_projection(hp, n_most, joined, width)
    native.merger(g, "joined", "x", ("mm.0", "mm.2"), joined, width)
    if not deep:
        return transformer.end(g)
    parts = ["x"]
    for part, number in enumerate(deep, 1):
        source, out = g.buffer(f"joined {part}", joined), g.buffer(f"part {part}", width)
        tensors = f"v.deepstack.{number}.fc1", f"v.deepstack.{number}.fc2"
        g.add(HiddenRows(source, joined, part * joined))
        transformer.norm(g, f"v.deepstack.{number}.norm", source, source, joined)
        native.merger(g, source, out, tensors, joined, width)
        parts.append(out)
    all_width = len(parts) * width
    g.add(JoinParts(tuple(parts), g.buffer("parts", all_width), width))
    return transformer.end(g, "parts")


PROJECTOR = Projector(build)
