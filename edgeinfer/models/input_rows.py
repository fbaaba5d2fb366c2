"""Preparing a model for rows of numbers in place of token ids, and for three positions per token if it supports them.

In: a ModelSpec and what its file says about axes (`rope.dimension_sections`). Out: a ModelSpec whose ops declare rows
and axes; devices without them refuse it by name. Independent of what produces rows. Sources: Qwen2-VL (arXiv
2409.12191), Qwen3-VL (arXiv 2511.21631).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.rotary import RopeSections
from edgeinfer.graph.step import AXES
from edgeinfer.models.hyperparameters import Hyperparameters

KEY = "rope.dimension_sections"


def with_rows(spec: ModelSpec, hp: Hyperparameters, axes: Literal["contiguous", "interleaved"] | None) -> ModelSpec:
    """The model prepared for rows of numbers. `axes`: how files of its family arrange axes.

    Raises BadGGUF for invalid sections, UnsupportedModel if edgeinfer does not know what they mean.
    """
    sections = _sections(hp, axes)
    stages = tuple(replace(stage, ops=tuple(_open(op, sections, hp) for op in stage.ops)) for stage in spec.stages)
    return replace(spec, stages=stages)


def _open(op: Op, sections: RopeSections | None, hp: Hyperparameters) -> Op:
    if isinstance(op, Embed):
        return replace(op, rows=True)
    if isinstance(op, Rope) and sections is not None:
        pairs, total = op.table.rotary_width // 2, sections.temporal + sections.height + sections.width
        if total != pairs:
            raise BadGGUF(f"{hp.architecture}.{KEY} has {total} pairs in all; the heads of the file have {pairs}")
        return replace(op, sections=sections)
    return op


def _sections(hp: Hyperparameters, axes: Literal["contiguous", "interleaved"] | None) -> RopeSections | None:
    """The sections in the file; None if all pairs are rotated by a single position."""
    if not hp.has(KEY):
        return None
    values = hp.metadata.get(f"{hp.architecture}.{KEY}")
    if not isinstance(values, np.ndarray) or not np.issubdtype(values.dtype, np.integer) or len(values) not in (3, 4):
        raise BadGGUF(f"{hp.architecture}.{KEY} must be an array of three or four whole numbers")
    found = [int(value) for value in values]
    if min(found) < 0:
        raise BadGGUF(f"{hp.architecture}.{KEY} is {found}; none may be below zero")
    if not any(found[1:]):
        return None
    if any(found[AXES:]):
        raise UnsupportedModel(f"{hp.architecture}.{KEY} has a fourth axis ({found}); edgeinfer has three")
    if axes is None:
        raise UnsupportedModel(
            f"{hp.architecture} has a rotary embedding of several axes ({KEY}), whose order edgeinfer does not know; "
            "load it without rows=True for texts"
        )
    temporal, height, width = found[:AXES]
    return RopeSections(temporal, height, width, axes == "interleaved")
