"""Models as work, for tests of the planner: decoders of any size, without a file."""

from __future__ import annotations

from edgeinfer.graph.op import AttentionHeads
from edgeinfer.scheduling.cost.work import MatMulWork, ModelWork, StageShape, StageWork

OPS = {"Q4_K": 144 / 256, "Q6_K": 210 / 256, "F16": 2.0}


def layer(width: int, ffn: int, heads: int, kv_heads: int, form: str = "Q4_K", down: str | None = None) -> StageShape:
    """A layer of attention and gated feed-forward; `down`: another format of values and of the last product."""
    other = down or form
    kv_width = width // heads * kv_heads
    rows = (
        ("attn_q", form, width, width),
        ("attn_k", form, kv_width, width),
        ("attn_v", other, kv_width, width),
        ("attn_output", form, width, width),
        ("ffn_gate", form, ffn, width),
        ("ffn_up", form, ffn, width),
        ("ffn_down", other, width, ffn),
    )
    products = tuple(MatMulWork(kind, name, OPS[name], n_rows, columns) for kind, name, n_rows, columns in rows)
    return StageShape(products, AttentionHeads(heads, kv_heads, width // heads, width // heads), 4 * width + ffn, 14)


def head(width: int, n_vocab: int, form: str = "Q6_K") -> StageShape:
    """The final norm and the output projection."""
    return StageShape((MatMulWork("output", form, OPS[form], n_vocab, width),), None, 2 * width, 3, for_outputs=True)


def decoder(layers: list[StageShape], width: int, n_vocab: int = 0, name: str = "decoder") -> ModelWork:
    """A whole model; without a vocabulary it ends after its layers."""
    stages = [StageWork("embed", StageShape((), None, width, 1), ())]
    for number, shape in enumerate(layers):
        tensors = tuple(f"blk.{number}.{product.kind}.weight" for product in shape.products)
        stages.append(StageWork(f"blk.{number}", shape, tensors))
    if n_vocab:
        stages.append(StageWork("head", head(width, n_vocab), ("output.weight",)))
    return ModelWork(name, tuple(stages), width)


def of_70_billion() -> ModelWork:
    """80 layers, width 8192, 64 / 8 heads, as Q4_K_M has them: every second layer with some products in 6 bits."""
    light, heavy = (layer(8192, 28672, 64, 8, "Q4_K", down) for down in ("Q4_K", "Q6_K"))
    return decoder([heavy if number % 2 else light for number in range(80)], 8192, 128256, "70B")
