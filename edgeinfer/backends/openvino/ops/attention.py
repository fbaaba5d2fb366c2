"""Attention over the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.openvino.feeding import mask_name
from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.ops.attention import Attention

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: Attention) -> None:
    query = lowering.heads(each.query, each.heads, each.key_width)
    mask = lowering.parameters[mask_name(each.window)]
    lowering.set_heads(each.out, lowering.caches.attend(each, query, mask))


OP = OpenVinoOp(_lower, frozenset({"window", "soft_cap"}))
