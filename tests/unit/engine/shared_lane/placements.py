"""Placements of whole models for tests: all in one place, rows split, attention elsewhere, anything at random."""

from __future__ import annotations

import numpy as np

from edgeinfer.graph.graph import ModelSpec, Stage
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.scheduling.placement.placement import Placement, RowRange, StagePlacement


def stage_placed(stage: Stage, home: str, attention: str, shares: dict[str, float]) -> StagePlacement:
    """A stage whose products are split in these shares."""
    products = tuple(_parts(op.weight.n_rows, shares) for op in stage.ops if isinstance(op, MatMul))
    attends = any(isinstance(op, Attention) for op in stage.ops)
    return StagePlacement(home, products, attention if attends else None)


def alike(spec: ModelSpec, home: str, attention: str, shares: dict[str, float]) -> Placement:
    """Every stage placed alike."""
    return Placement(tuple(stage_placed(stage, home, attention, shares) for stage in spec.stages))


def at_random(spec: ModelSpec, devices: list[str], rng: np.random.Generator) -> Placement:
    """Homes, places of attention and rows of each product drawn at random."""
    stages = []
    for stage in spec.stages:
        home, attention = (devices[int(rng.integers(len(devices)))] for _ in range(2))
        products = []
        for op in stage.ops:
            if isinstance(op, MatMul):
                weights = rng.random(len(devices)) * (rng.random(len(devices)) < 0.7)
                shares = weights / weights.sum() if weights.sum() else np.eye(len(devices))[0]
                products.append(_parts(op.weight.n_rows, dict(zip(devices, shares.tolist(), strict=True))))
        attends = any(isinstance(op, Attention) for op in stage.ops)
        stages.append(StagePlacement(home, tuple(products), attention if attends else None))
    return Placement(tuple(stages))


def _parts(n_rows: int, shares: dict[str, float]) -> tuple[RowRange, ...]:
    parts, first, wanted = [], 0, 0.0
    for device, share in shares.items():
        wanted += share
        stop = n_rows if wanted > 1 - 1e-9 else round(wanted * n_rows)
        parts.append(RowRange(device, first, stop))
        first = stop
    return tuple(parts)
