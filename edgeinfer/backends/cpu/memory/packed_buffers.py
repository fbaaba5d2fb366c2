"""Where buffers lie that share memory, because none is needed while another one is.

In: a ModelSpec whose buffers are scratch (`ModelSpec.scratch`), the layout of its buffers. Out: the place of each
buffer in one piece of memory, largest first, each as low as those allow that are needed at the same time. A buffer
shares only if each op that begins to fill it writes whole rows, padding included, so that none reads another buffer's
numbers as padding. Int8 forms are not packed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu.layout.padding import BLOCK, BufferLayout, heads_of, padded
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.hidden_rows import HiddenRows
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.models.gguf import TensorInfo

ALIGNED = 4096
FILLING = MatMul, HiddenRows
"""Ops that write rows with their padding."""


@dataclass(frozen=True, slots=True)
class PackedBuffers:
    """Buffers in one piece of memory. `ranges`: the bytes of each; `cuts`: where one begins or ends."""

    ranges: Mapping[str, range]
    cuts: tuple[int, ...]

    @classmethod
    def of(cls, spec: ModelSpec, layout: BufferLayout) -> PackedBuffers | None:
        """The places of a model's buffers; None if what they hold is read later than by its ops."""
        if not spec.scratch:
            return None
        sizes = {buffer.name: padded(_float_bytes(layout, buffer.name), ALIGNED) for buffer in spec.buffers}
        together, alone = _needed_together(spec), _not_sharing(spec)
        ranges: dict[str, range] = {}
        for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
            others = [ranges[other] for other in ranges if {name, other} & alone or other in together[name]]
            start = 0
            for other in sorted(others, key=lambda each: each.start):
                if start + sizes[name] <= other.start:
                    break
                start = max(start, other.stop)
            ranges[name] = range(start, start + sizes[name])
        cuts = sorted({edge for each in ranges.values() for edge in (each.start, each.stop)})
        return cls(ranges, tuple(cuts))

    @property
    def n_bytes(self) -> int:
        """Bytes of the memory."""
        return self.cuts[-1]

    def pieces(self, name: str) -> frozenset[str]:
        """Names of the pieces of memory that a buffer takes, each between two cuts: what orders calls."""
        own = self.ranges[name]
        return frozenset(f"memory {start}" for start, _ in pairwise(self.cuts) if start in own)

    def shares(self, name: str) -> bool:
        """Whether another buffer lies in the same memory."""
        own = self.ranges[name]
        others = (each for other, each in self.ranges.items() if other != name)
        return any(other.start < own.stop and own.start < other.stop for other in others)


def buffer_bytes(spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> int:
    """Bytes of a model's buffers, and of all else that `BufferLayout.total_bytes` counts."""
    layout = BufferLayout(spec, tensors, limits)
    packed = PackedBuffers.of(spec, layout)
    return layout.total_bytes - (0 if packed is None else sum(layout.float_bytes.values()) - packed.n_bytes)


def _float_bytes(layout: BufferLayout, name: str) -> int:
    n_rows, width = layout.shape(name)
    return 4 * n_rows * width


def _not_sharing(spec: ModelSpec) -> frozenset[str]:
    """Buffers with padding that some op leaves as it is when it begins to fill them."""
    heads = heads_of(spec)
    dense = {
        each.name
        for each in spec.buffers
        if each.width % BLOCK == 0 and (each.name not in heads or heads[each.name].padded == heads[each.name].width)
    }
    begun = {name for op in spec.ops() if not isinstance(op, FILLING) for name in op.writes - op.reads}
    return frozenset(begun - dense)


def _needed_together(spec: ModelSpec) -> dict[str, set[str]]:
    """For each buffer the others that hold something while it does."""
    ops = list(spec.ops())
    given = {name for op in ops if _is_given(op) for name in op.writes}
    together: dict[str, set[str]] = {buffer.name: set() for buffer in spec.buffers}
    needed = {spec.logits}
    for op in reversed(ops):
        _note(together, [*(needed | op.reads | op.writes)])
        needed = (needed if _is_given(op) else needed - op.writes) | op.reads
    _note(together, [*(needed | given)])
    return together


def _is_given(op: Op) -> bool:
    """Whether it reads no buffer, so that it may be filled before a pass begins."""
    return not op.reads


def _note(together: dict[str, set[str]], names: Sequence[str]) -> None:
    for name in names:
        together[name].update(names)
