"""Cutting a model into fragments, and running them one after the other as an executor of several devices would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import FragmentDevice, Limits
from edgeinfer.graph.graph import Fragment, ModelSpec, Stage
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.step import PAGE, Batch, Step
from edgeinfer.models.load import Model

Floats = NDArray[np.float32]
LIMITS = Limits(128, 4, 128, 128)


def part(spec: ModelSpec, ops: Iterable[Op], inputs: Sequence[str], outputs: Sequence[str], **widths: int) -> Fragment:
    """Some ops as a fragment with KV layers numbered from 0; `widths` are those of buffers that are cut."""
    chosen = tuple(ops)
    layers = list(dict.fromkeys(op.layer for op in chosen if isinstance(op, StoreKV | Attention)))
    renumbered = tuple(
        replace(op, layer=layers.index(op.layer)) if isinstance(op, StoreKV | Attention) else op for op in chosen
    )
    buffers = tuple(replace(b, width=widths.get(b.name, b.width)) for b in spec.buffers)
    kept = tuple(spec.kv[layer] for layer in layers)
    cut = replace(spec, stages=(Stage("part", renumbered),), kv=kept, buffers=buffers)
    return Fragment(cut, tuple(inputs), tuple(outputs))


def chain(tokens: NDArray[np.int32], n_cached: int) -> Step:
    """The next tokens of a sequence whose pages lie in order; all logits are wanted."""
    index = np.arange(len(tokens), dtype=np.int32)
    zeros = np.zeros_like(index)
    batch = Batch(tokens, zeros, index + np.int32(n_cached), index - 1, index)
    tables = np.arange(LIMITS.n_pages, dtype=np.int32)[None]
    assert n_cached + len(tokens) <= PAGE * LIMITS.n_pages
    return Step(batch, zeros, index + np.int32(n_cached), zeros + np.int32(n_cached), tables)


class Parts:
    """Fragments of one model as lanes of one device."""

    def __init__(self, device: FragmentDevice, model: Model, fragments: Sequence[Fragment]) -> None:
        self.fragments = fragments
        self.lanes = [device.compile_fragment(fragment, model.file, LIMITS) for fragment in fragments]

    def run(self, number: int, step: Step, given: dict[str, Floats]) -> dict[str, Floats]:
        """The outputs of one fragment, copied."""
        lane, fragment = self.lanes[number], self.fragments[number]
        lane.submit(step, {name: given[name] for name in fragment.inputs})
        return {name: rows.copy() for name, rows in lane.wait().items()}

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()
