"""What a buffer holds while a graph is built: a tensor, or something that a later operator may take in with it.

In and out: nothing; these are names. A residual sum goes into the norm that reads it, the parts of a joined product and
a rotation go into the attention. Knows no operators.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.ops.rope import Rope


@dataclass(frozen=True, slots=True)
class Plain:
    """A tensor of the graph, [rows, width]."""

    name: str


@dataclass(frozen=True, slots=True)
class Sum:
    """Two tensors that are still to be added."""

    left: str
    right: str


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Columns of a tensor that is cut into parts of `widths`: the part numbered `index`."""

    whole: str
    index: int
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turned:
    """A value that is still to be rotated."""

    value: Plain | Sum | TensorPart
    rope: Rope


Value = Plain | Sum | TensorPart | Turned
