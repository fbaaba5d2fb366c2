"""Work of models for tests, in plain numbers."""

from __future__ import annotations

from edgeinfer.graph.op import AttentionHeads
from edgeinfer.scheduling.cost.work import MatMulWork, ModelWork, StageShape, StageWork
from edgeinfer.scheduling.placement.placement import Held, Placement, RowRange, StagePlacement

WIDTH = 256
FFN = 512


def layer(bytes_per_weight: float = 2.0, attends: bool = True) -> StageShape:
    """A layer with seven products."""
    sides = [("attn_q", 256, 256), ("attn_k", 64, 256), ("attn_v", 64, 256), ("attn_output", 256, 256)]
    sides += [("ffn_gate", FFN, WIDTH), ("ffn_up", FFN, WIDTH), ("ffn_down", WIDTH, FFN)]
    products = tuple(MatMulWork(kind, "F16", bytes_per_weight, rows, columns) for kind, rows, columns in sides)
    return StageShape(products, AttentionHeads(4, 1, 64, 64) if attends else None, 1000, 16)


def model(n_layers: int = 3) -> ModelWork:
    """Layers and a head."""
    shape = layer()
    stages = [StageWork(f"blk.{number}", shape, ("",) * 7) for number in range(n_layers)]
    head = StageShape((MatMulWork("output", "F16", 2.0, 1000, WIDTH),), None, 256, 3, for_outputs=True)
    return ModelWork("small", (*stages, StageWork("head", head, ("",))), WIDTH)


def placed(shape: StageShape, home: str, lanes: dict[str, float], held: Held, attention: str | None) -> StagePlacement:
    """A stage whose products are shared by lanes in these proportions; lanes other than the first's rows are `held`."""
    products = []
    for product in shape.products:
        total, start, parts = sum(lanes.values()), 0, []
        for number, (device, share) in enumerate(lanes.items()):
            last = number == len(lanes) - 1
            stop = product.n_rows if last else min(product.n_rows, start + round(product.n_rows * share / total))
            parts.append(RowRange(device, start, stop, held if number else "own"))
            start = stop
        products.append(tuple(parts))
    return StagePlacement(home, tuple(products), attention if shape.attention is not None else None)


def split(
    work: ModelWork, home: str, lanes: dict[str, float], held: Held = "own", attention: str | None = None
) -> Placement:
    """Every stage placed the same way."""
    return Placement(tuple(placed(stage.shape, home, lanes, held, attention or home) for stage in work.stages))
