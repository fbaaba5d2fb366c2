"""Lanes that show what their buffers hold: for embeddings, tests and debugging."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from edgeinfer.graph.step import Floats


@runtime_checkable
class Shown(Protocol):
    """A lane that shows what its buffers hold."""

    def value(self, name: str) -> Floats:
        """A copy of a buffer's rows after the last run: float32[T or O, width]."""
        ...
