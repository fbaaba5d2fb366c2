"""Activations without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.openvino.nodes import activated
from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.ops.act import Act

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: Act) -> None:
    lowering.set(each.out, activated(each.activation, lowering.rows(each.source)))


OP = OpenVinoOp(_lower)
