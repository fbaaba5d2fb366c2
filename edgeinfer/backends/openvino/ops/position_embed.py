"""Learned positions, which are added to embeddings outside the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.ops.position_embed import PositionEmbed

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: PositionEmbed) -> None:
    if f"embed.{each.out}" not in lowering.parameters:
        raise UnsupportedModel("learned positions stand in another part than the embedding they belong to")


OP = OpenVinoOp(_lower)
