"""Embeddings, which are looked up outside the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.ops.embed import Embed

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: Embed) -> None:
    lowering.set(each.out, lowering.parameters[f"embed.{each.out}"])


OP = OpenVinoOp(_lower, frozenset({"scale"}))
