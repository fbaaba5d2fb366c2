"""Keys and values of new tokens, appended to the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.ops.store_kv import StoreKV

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: StoreKV) -> None:
    key = lowering.heads(each.key, each.kv_heads, each.key_width)
    value = lowering.heads(each.value, each.kv_heads, each.value_width)
    lowering.caches.append(each, key, value)


OP = OpenVinoOp(_lower)
